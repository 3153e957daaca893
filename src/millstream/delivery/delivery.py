"""A delivery: an entry, its consumer, and the number of the delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Known:
    """The records of the earlier deliveries of an entry."""

    fence: int  # the fence number of this delivery; 0: another consumer has the entry now
    failures: int
    crashes: int
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry held by one consumer. `id` and `number` are the fence: a settlement must match both."""

    id: bytes
    fields: tuple[tuple[bytes, bytes], ...]  # in order; a name may come twice
    number: int  # deliveries so far, this one included, as the server counts
    idle_ms: int = 0  # idle time before this delivery; -1: unknown because a reply was lost
    previous: bytes | None = None  # the previous owner, if the server reports it
    fence: int = 1  # grows with every delivery of the entry, even if the server's count is lowered
    failures: int = 0  # deliveries that ended in a retry
    crashes: int = 0  # deliveries that ended with the death of a process while the entry was the only one being handled
    is_suspect: bool = False  # its last delivery ended without an answer, so it may have killed its process

    @property
    def is_first(self) -> bool:
        """Return whether this is the first delivery of the entry to any consumer."""
        return self.number == 1 and self.idle_ms == 0 and self.previous is None

    def known_as(self, known: Known) -> Delivery:
        """Return the delivery with the records of the earlier ones."""
        return replace(
            self, fence=known.fence, failures=known.failures, crashes=known.crashes, is_suspect=known.is_suspect
        )

    @property
    def by_name(self) -> Mapping[bytes, bytes]:
        return dict(self.fields)

    @property
    def created_ms(self) -> int:
        """Return when the entry was appended, by its id."""
        return int(self.id.split(b"-", 1)[0])


def pairs(flat: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Return pairs of names and values from a protocol list."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))
