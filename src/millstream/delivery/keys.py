"""The keys beside a stream, all in its slot of a cluster.

    orders        {orders}:dlq          {orders}:delayed        {orders}:meta        lock:{orders}:<id>
    {t}:jobs      {t}:jobs:dlq          {t}:jobs:delayed        {t}:jobs:meta        lock:{t}:jobs:<id>

A name with a tag keeps it: only the first tag of a key counts, so text after it changes nothing. A name without a tag
becomes the tag, as in the recovery RFC. For a name with braces that form no tag (`a}b`, `a{}b`, `x{`) neither works,
and no other key can share its slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from millstream.errors import ConfigError


def find_tag(name: bytes) -> bytes | None:
    """Return the part of a key that decides its slot, if it is not the whole key."""
    start = name.find(b"{")
    end = name.find(b"}", start + 1) if start >= 0 else -1
    return name[start + 1 : end] if end > start + 1 else None


def can_share_slot(name: bytes) -> bool:
    """Return whether further keys can be made in the slot of this key."""
    return find_tag(name) is not None or not (b"{" in name or b"}" in name)


@dataclass(frozen=True)
class Keys:
    """The keys that belong to one stream."""

    stream: bytes
    dead_letter: bytes = field(default=b"")  # `{stream}` in it stands for the stream, braces and all
    base: bytes = field(init=False)
    lock_base: bytes = field(init=False)

    def __post_init__(self) -> None:
        if not self.stream:
            raise ConfigError("a stream needs a name")
        base = self.stream if find_tag(self.stream) is not None else b"{%s}" % self.stream
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "lock_base", b"lock:" + base + b":")

    @cached_property
    def dead(self) -> bytes:
        if not self.dead_letter:
            return self.base + b":dlq"
        return self.dead_letter.replace(b"{stream}", self.base)

    @cached_property
    def delayed(self) -> bytes:
        return self.base + b":delayed"

    @cached_property
    def wake(self) -> bytes:
        return self.base + b":wake"

    @cached_property
    def meta(self) -> bytes:
        return self.base + b":meta"

    def retries(self, group: bytes) -> bytes:
        return self.base + b":retry:" + group

    def records(self, group: bytes) -> bytes:
        """Return the key of the records of earlier deliveries; see lua/shared.lua."""
        return self.base + b":records:" + group

    def lock(self, entry_id: bytes) -> bytes:
        return self.lock_base + entry_id

    def producer(self, name: bytes) -> bytes:
        return self.base + b":producer:" + name

    def dedupe(self, token: bytes) -> bytes:
        return self.base + b":dedupe:" + token

    def require_one_slot(self) -> None:
        """Raise unless all of these keys are in the stream's slot. Called on clusters only."""
        if not can_share_slot(self.stream):
            raise ConfigError(
                f"{self.stream.decode('utf-8', 'replace')!r} cannot be used on a cluster: its braces form no hash tag, "
                "so no other key can be put into its slot (dead letters and retries need that); use a name without "
                "braces, or with a tag such as {orders}"
            )
        if not shares_slot(self.stream, self.dead):
            raise ConfigError(
                f"the dead-letter stream {self.dead.decode('utf-8', 'replace')!r} is not in the slot of "
                f"{self.stream.decode('utf-8', 'replace')!r}: on a cluster use a name with its tag, such as "
                "{stream}:dlq"
            )


def shares_slot(one: bytes, other: bytes) -> bool:
    """Return whether two keys are in the same slot by the same tag."""
    return (find_tag(one) or one) == (find_tag(other) or other)
