"""Arguments of commands that pop from one of several keys: timeouts, and `numkeys key … end [COUNT count]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.text.args import I64_MAX, as_integer
from millstream.engine.text.floats import parse_extended


def timeout_ms_of(call: CommandContext, word: bytes) -> int:
    """Return a timeout in seconds as milliseconds, rounded up: a short wait must not become 0, which is endless."""
    seconds = parse_extended(word)
    if seconds is None:
        raise fault(faults.TIMEOUT_NOT_FLOAT)
    if isinstance(seconds, float):
        raise fault(faults.BLOCK_OUT_OF_RANGE if seconds > 0 else faults.BLOCK_NEGATIVE)
    if seconds.bits < 0:
        raise fault(faults.BLOCK_NEGATIVE)
    ms = seconds.bits * 1000
    ms = ms << seconds.power if seconds.power >= 0 else -(-ms >> -seconds.power)
    if ms > I64_MAX - call.now_ms:
        raise fault(faults.BLOCK_OUT_OF_RANGE)
    return ms


@dataclass(frozen=True, slots=True)
class PopChoice:
    """The keys to try in turn, the end to pop from, and the number of elements."""

    keys: list[bytes]
    end: bytes  # in capitals
    count: int = 1


def parse_choice(argv: list[bytes], at: int, ends: tuple[bytes, ...]) -> PopChoice:
    """Read `numkeys key [key ...] end [COUNT count]` from this word on."""
    number = as_integer(argv[at])
    if number is None or number < 1:
        raise fault(faults.NUMKEYS_BELOW_ONE)
    rest = argv[at + 1 + number :]
    if not rest or rest[0].upper() not in ends:
        raise fault(faults.SYNTAX)
    count = 1
    if len(rest) > 1:
        if len(rest) != 3 or rest[1].upper() != b"COUNT":
            raise fault(faults.SYNTAX)
        count = as_integer(rest[2]) or 0
        if count < 1:
            raise fault(faults.COUNT_BELOW_ONE)
    return PopChoice(argv[at + 1 : at + 1 + number], rest[0].upper(), count)


def keys_after(at: int, step: int = 1, *, before: tuple[int, ...] = ()) -> Callable[[list[bytes]], list[int]]:
    """Return a function that finds the keys of a call: word `at` has their number, and every `step`-th word after it
    is a key. The words in `before` are keys, too.
    """

    def find(argv: list[bytes]) -> list[int]:
        number = as_integer(argv[at]) if at < len(argv) else None
        if number is None or number < 1 or at + number * step >= len(argv):
            return []
        return [*before, *range(at + 1, at + 1 + number * step, step)]

    return find
