"""Reliable work on streams: a Redis-Streams-compatible engine and broker, in Python."""

from millstream.broker import AutoClaimed, Broker, Entry, PendingEntry, PendingSummary
from millstream.clock import Clock, ManualClock, SystemClock
from millstream.engine.ids import EntryId
from millstream.errors import CommandError, ConfigError, MillstreamError, ProtocolError

__version__ = "0.1.0"

__all__ = [
    "AutoClaimed",
    "Broker",
    "Clock",
    "CommandError",
    "ConfigError",
    "Entry",
    "EntryId",
    "ManualClock",
    "MillstreamError",
    "PendingEntry",
    "PendingSummary",
    "ProtocolError",
    "SystemClock",
]
