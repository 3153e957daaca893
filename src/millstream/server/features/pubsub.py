"""Channels, patterns and shard channels: who is subscribed, and how a message reaches them.

What a subscriber is sent is a push message, encoded once for each protocol however many receive it.
"""

from __future__ import annotations

from typing import Final, Protocol

from millstream.engine.outcome import Push
from millstream.engine.text.glob import compiled
from millstream.server.protocol.resp import encode

_SUBSCRIPTION: Final = 300  # bytes that one takes besides its name: two dicts know of it


class Subscriber(Protocol):
    """A session, as far as this module knows it."""

    protocol: int

    def push(self, data: bytes) -> None:
        """Send a push message that is already encoded."""


class Topics:
    """Names (channels, patterns, or shard channels) to their subscribers, in the order they came."""

    __slots__ = ("by_name", "kind", "size")

    def __init__(self, kind: bytes) -> None:
        self.size = 0  # bytes that subscriptions take, about
        self.kind = kind  # the word before `subscribe` in messages: nothing, `p` or `s`
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
        """The names that fit a pattern, or all."""
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
        """Bytes that all subscriptions take, about."""
        return self.channels.size + self.patterns.size + self.shards.size

    def publish(self, channel: bytes, payload: bytes) -> int:
        """Send a message to the channel's subscribers, then to those of matching patterns; how many copies."""
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
        """Send a message to the shard channel's subscribers; how many."""
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
