"""Channels, patterns and shard channels: their subscribers, and how a message reaches them.

A message is encoded once for each protocol, whatever the number of its receivers.
"""

from __future__ import annotations

from typing import Final, Protocol

from millstream.engine.outcome import Push
from millstream.engine.text.glob import compiled
from millstream.server.protocol.resp import encode

_SUBSCRIPTION: Final = 300  # bytes of a subscription besides its name: two dicts refer to it


class Subscriber(Protocol):
    """The part of a session that this module uses."""

    protocol: int

    def push(self, data: bytes) -> None:
        """Send a push message that is already encoded."""


class Topics:
    """Names (channels, patterns, or shard channels) and their subscribers, oldest first."""

    __slots__ = ("by_name", "kind", "size")

    def __init__(self, kind: bytes) -> None:
        self.size = 0  # approximate bytes of the subscriptions
        self.kind = kind  # the prefix of `subscribe` in messages: nothing, `p` or `s`
        self.by_name: dict[bytes, dict[Subscriber, None]] = {}

    def add(self, name: bytes, subscriber: Subscriber) -> None:
        subscribers = self.by_name.setdefault(name, {})
        if subscriber not in subscribers:
            subscribers[subscriber] = None
            self.size += len(name) + _SUBSCRIPTION

    def drop(self, name: bytes, subscriber: Subscriber) -> None:
        subscribers = self.by_name.get(name)
        if subscribers is not None and subscriber in subscribers:
            del subscribers[subscriber]
            self.size -= len(name) + _SUBSCRIPTION
            if not subscribers:
                del self.by_name[name]

    def count(self, name: bytes) -> int:
        return len(self.by_name.get(name, ()))

    def matching(self, pattern: bytes | None) -> list[bytes]:
        """Return the names that match a pattern, or all names."""
        if pattern is None:
            return list(self.by_name)
        return list(filter(compiled(pattern), self.by_name))


class PubSub:
    """All subscriptions of a hub."""

    __slots__ = ("channels", "patterns", "shards")

    def __init__(self) -> None:
        self.channels = Topics(b"")
        self.patterns = Topics(b"p")
        self.shards = Topics(b"s")

    @property
    def size(self) -> int:
        """Return the approximate bytes of all subscriptions."""
        return self.channels.size + self.patterns.size + self.shards.size

    def publish(self, channel: bytes, payload: bytes) -> int:
        """Send a message to subscribers of the channel, then of matching patterns. Returns the number of copies."""
        if not self.channels.by_name and not self.patterns.by_name:
            return 0
        copies = 0
        subscribers = self.channels.by_name.get(channel)
        if subscribers:
            copies += _send(subscribers, Push([b"message", channel, payload]))
        for pattern, subscribers in self.patterns.by_name.items():
            if compiled(pattern)(channel):
                copies += _send(subscribers, Push([b"pmessage", pattern, channel, payload]))
        return copies

    def publish_to_shard(self, channel: bytes, payload: bytes) -> int:
        """Send a message to the shard channel's subscribers. Returns their number."""
        subscribers = self.shards.by_name.get(channel)
        return _send(subscribers, Push([b"smessage", channel, payload])) if subscribers else 0


def _send(subscribers: dict[Subscriber, None], message: Push) -> int:
    encoded: dict[int, bytes] = {}
    for subscriber in subscribers:
        protocol = subscriber.protocol
        data = encoded.get(protocol)
        if data is None:
            data = encoded[protocol] = encode(message, protocol)
        subscriber.push(data)
    return len(subscribers)
