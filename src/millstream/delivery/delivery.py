"""What is delivered: an entry, to whom, and for the how many-th time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry in the hands of one consumer. `id` and `number` are the fence: a settlement must match both."""

    id: bytes
    fields: tuple[tuple[bytes, bytes], ...]  # in order; a name may come twice
    number: int  # deliveries so far, this one included, as the server counts
    idle_ms: int = 0  # how long it had been nobody's or a silent consumer's before; -1: the reply that told was lost
    previous: bytes | None = None  # who had it before, where the server says

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
