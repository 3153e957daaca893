"""Reliable work on streams: a Redis-Streams-compatible engine and broker, workers, and Spark, in Python.

The names below are imported when they are first used: Spark starts many short Python processes that need few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from millstream.version import VERSION

if TYPE_CHECKING:
    from millstream.broker import AutoClaimed, Broker, Entry, PendingEntry, PendingSummary
    from millstream.client import Backend, Capabilities, connect
    from millstream.client.payload import Codec
    from millstream.clock import Clock, ManualClock, SystemClock
    from millstream.delivery.config.settings import Breaker, ClusterMode, RecoveryConfig, Settings
    from millstream.delivery.deadletters import Filter
    from millstream.delivery.policy import Backoff, RetryPolicy
    from millstream.delivery.recorder import NullRecorder, Recorder
    from millstream.delivery.settlement import Discard
    from millstream.delivery.signals import Reject, Release, Retry
    from millstream.engine.streams.ids import EntryId
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
        WorkerFailed,
    )
    from millstream.worker.audit import Audit
    from millstream.worker.message import Message
    from millstream.worker.stream import Stream

__version__ = VERSION

_HOMES = {
    "Audit": "millstream.worker.audit",
    "AutoClaimed": "millstream.broker",
    "Backend": "millstream.client",
    "BackendError": "millstream.errors",
    "Backoff": "millstream.delivery.policy",
    "Breaker": "millstream.delivery.config.settings",
    "Broker": "millstream.broker",
    "Capabilities": "millstream.client",
    "CapabilityMissing": "millstream.errors",
    "Clock": "millstream.clock",
    "ClusterMode": "millstream.delivery.config.settings",
    "Codec": "millstream.client.payload",
    "CommandError": "millstream.errors",
    "ConfigError": "millstream.errors",
    "DeliveryError": "millstream.errors",
    "Discard": "millstream.delivery.settlement",
    "Entry": "millstream.broker",
    "EntryId": "millstream.engine.streams.ids",
    "Filter": "millstream.delivery.deadletters",
    "LeaseLost": "millstream.errors",
    "MalformedPayload": "millstream.errors",
    "ManualClock": "millstream.clock",
    "Message": "millstream.worker.message",
    "MillstreamError": "millstream.errors",
    "NotSettled": "millstream.errors",
    "NullRecorder": "millstream.delivery.recorder",
    "PendingEntry": "millstream.broker",
    "PendingSummary": "millstream.broker",
    "ProtocolError": "millstream.errors",
    "Recorder": "millstream.delivery.recorder",
    "RecoveryConfig": "millstream.delivery.config.settings",
    "Reject": "millstream.delivery.signals",
    "Release": "millstream.delivery.signals",
    "Retry": "millstream.delivery.signals",
    "RetryPolicy": "millstream.delivery.policy",
    "ServerReplied": "millstream.errors",
    "Settings": "millstream.delivery.config.settings",
    "Stream": "millstream.worker.stream",
    "SystemClock": "millstream.clock",
    "Unavailable": "millstream.errors",
    "WorkerFailed": "millstream.errors",
    "connect": "millstream.client",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


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
    "Codec",
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
    "WorkerFailed",
    "connect",
]
