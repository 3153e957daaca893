"""Random members for SRANDMEMBER, HRANDFIELD and ZRANDMEMBER."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from millstream.engine import faults
from millstream.engine.commands.plain.common import integer_between
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.text.args import I64_MAX

MAX_DRAWN: Final = 10_000_000  # members drawn with repetition; Redis has no limit and can run out of memory


class Drawable(Protocol):
    """A list of members, or a set that knows them by position."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def __getitem__(self, place: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Draw:
    """A count of random members, negative for repetition, and whether their values or scores are wanted."""

    count: int
    with_values: bool


def parse_draw(argv: list[bytes], option: bytes) -> Draw:
    """Read `key count [option]`."""
    count = integer_between(argv[2], -I64_MAX, I64_MAX)
    if len(argv) > 4 or (len(argv) == 4 and argv[3].upper() != option):
        raise fault(faults.SYNTAX)
    with_values = len(argv) == 4
    if with_values and not -(I64_MAX // 2) <= count <= I64_MAX // 2:
        raise fault(faults.OUT_OF_RANGE)
    return Draw(count, with_values)


def draw(call: CommandContext, members: Drawable, count: int) -> list[bytes]:
    """Return `count` distinct members, or -count draws with repetition if the count is negative."""
    if count < -MAX_DRAWN:
        raise fault(faults.OUT_OF_RANGE)
    if count < 0:
        return [members[call.keyspace.pick(len(members))] for _ in range(-count)]
    return _distinct(call, members, count)


def _distinct(call: CommandContext, members: Drawable, count: int) -> list[bytes]:
    """Return the first `count` members of a shuffle that records only the positions it has moved."""
    size = len(members)
    if count >= size:
        return list(members)
    moved: dict[int, int] = {}
    chosen = []
    for place in range(count):
        other = place + call.keyspace.pick(size - place)
        chosen.append(members[moved.get(other, other)])
        moved[other] = moved.get(place, place)
    return chosen
