"""What is delivered: an entry, to whom, and for the how many-th time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an entry that was delivered before."""

    fence: int  # of this delivery; 0: the entry is somebody else's now
    failures: int
    crashes: int
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry in the hands of one consumer. `id` and `number` are the fence: a settlement must match both."""

    id: bytes
    fields: tuple[tuple[bytes, bytes], ...]  # in order; a name may come twice
    number: int  # deliveries so far, this one included, as the server counts
    idle_ms: int = 0  # how long it had been nobody's or a silent consumer's before; -1: the reply that told was lost
    previous: bytes | None = None  # who had it before, where the server says
    fence: int = 1  # greater with every delivery of the entry, also where the server's count was given back
    failures: int = 0  # deliveries that ended in a retry
    crashes: int = 0  # deliveries that ended with the death of a process while the entry was the only one being handled
    is_suspect: bool = False  # its last delivery ended without an answer: it may have killed its process

    @property
    def is_first(self) -> bool:
        """Whether the entry was never delivered before, to anybody."""
        return self.number == 1 and self.idle_ms == 0 and self.previous is None

    def known_as(self, known: Known) -> Delivery:
        """The delivery with what is known of the earlier ones."""
        return replace(
            self, fence=known.fence, failures=known.failures, crashes=known.crashes, is_suspect=known.is_suspect
        )

    @property
    def by_name(self) -> Mapping[bytes, bytes]:
        return dict(self.fields)

    @property
    def created_ms(self) -> int:
        """When it was appended, by its id."""
        return int(self.id.split(b"-", 1)[0])


def pairs(flat: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Names and values of a protocol list."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))
