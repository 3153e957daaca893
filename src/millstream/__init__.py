"""Reliable work on streams: a Redis-Streams-compatible engine and broker, workers, and Spark, in Python."""

from millstream.broker import AutoClaimed, Broker, Entry, PendingEntry, PendingSummary
from millstream.client import Backend, Capabilities, connect
from millstream.clock import Clock, ManualClock, SystemClock
from millstream.delivery.deadletters import Filter
from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.delivery.recorder import NullRecorder, Recorder
from millstream.delivery.settings import Breaker, ClusterMode, RecoveryConfig, Settings
from millstream.delivery.settlement import Discard
from millstream.delivery.signals import Reject, Release, Retry
from millstream.engine.ids import EntryId
from millstream.errors import (
    BackendError,
    CapabilityMissing,
    CommandError,
    ConfigError,
    DeliveryError,
    LeaseLost,
    MalformedPayload,
    MillstreamError,
    NotSettled,
    ProtocolError,
    ServerReplied,
    Unavailable,
)
from millstream.worker.message import Message
from millstream.worker.report import Audit
from millstream.worker.stream import Stream

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "AutoClaimed",
    "Backend",
    "BackendError",
    "Backoff",
    "Breaker",
    "Broker",
    "Capabilities",
    "CapabilityMissing",
    "Clock",
    "ClusterMode",
    "CommandError",
    "ConfigError",
    "DeliveryError",
    "Discard",
    "Entry",
    "EntryId",
    "Filter",
    "LeaseLost",
    "MalformedPayload",
    "ManualClock",
    "Message",
    "MillstreamError",
    "NotSettled",
    "NullRecorder",
    "PendingEntry",
    "PendingSummary",
    "ProtocolError",
    "Recorder",
    "RecoveryConfig",
    "Reject",
    "Release",
    "Retry",
    "RetryPolicy",
    "ServerReplied",
    "Settings",
    "Stream",
    "SystemClock",
    "Unavailable",
    "connect",
]
