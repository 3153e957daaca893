"""Reading a log with offsets: what is whole, what is torn, what is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from millstream.persistence.aof.scan import Damaged, Scanner, Torn
from tests.support.wire import pack

COMMANDS = [[b"SET", b"k", b"v"], [b"XADD", b"s", b"1-1", b"f", b"a\r\n*1\r\n$1\r\nb"], [b"DEL", b""], [b"MULTI"]]
DATA = b"".join(map(pack, COMMANDS))
ENDS = [len(b"".join(map(pack, COMMANDS[:count]))) for count in range(len(COMMANDS) + 1)]


def scan(data: bytes, chunk: int = 1 << 20, offset: int = 0) -> Iterator[list[bytes]]:
    pieces = (data[at : at + chunk] for at in range(0, len(data), chunk))
    for command in Scanner(pieces, offset):
        yield command.argv


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_commands_are_read_from_pieces_of_any_size(chunk: int) -> None:
    assert list(scan(DATA, chunk)) == COMMANDS


def test_each_command_knows_where_it_stands() -> None:
    found = list(Scanner([DATA], 100))
    assert [(one.start - 100, one.end - 100) for one in found] == list(pairwise(ENDS))


def test_nothing_is_a_whole_log() -> None:
    assert list(scan(b"")) == []


@pytest.mark.parametrize("size", range(1, len(DATA)))
def test_a_log_cut_anywhere_is_torn_at_a_command_s_start(size: int) -> None:
    if size in ENDS:
        assert list(scan(DATA[:size])) == COMMANDS[: ENDS.index(size)]
        return
    with pytest.raises(Torn) as torn:
        list(scan(DATA[:size], chunk=5))
    assert torn.value.at == max(end for end in ENDS if end <= size)


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage\r\n",
        b"\r\n",
        b"+OK\r\n",
        b"*x\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$3\r\nabcde",
        b"*" + b"1" * 50,
        b"*1\r\n$3\r\nabc\n\n",
        bytes(5) + b"x",
        b"*1\r\n$99999999999999999999\r\n",
        b" *1\r\n$1\r\na\r\n",
    ],
)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_what_is_no_command_is_damage(damage: bytes, chunk: int) -> None:
    with pytest.raises(Damaged) as damaged:
        list(scan(pack(COMMANDS[0]) + damage + b"x" * 100 + pack(COMMANDS[0]), chunk))
    assert damaged.value.at == ENDS[1]
    assert damaged.value.reason


@pytest.mark.parametrize("count", [b"*4", b"*9", b"*300"])
def test_a_count_that_would_swallow_other_commands_is_damage(count: bytes) -> None:
    broken = pack(COMMANDS[0]).replace(b"*3", count)
    with pytest.raises(Damaged):
        list(scan(broken + DATA))


@pytest.mark.parametrize("length", [b"$10000", b"$100000000"])
def test_a_command_name_that_would_swallow_other_commands_is_damage(length: bytes) -> None:
    broken = pack(COMMANDS[0]).replace(b"$3", length, 1)
    with pytest.raises(Damaged) as damaged:
        list(scan(DATA + broken + DATA))
    assert damaged.value.at == len(DATA)


def test_a_torn_word_says_whether_it_contains_commands() -> None:
    for value, holds in ((b"x" * 500, False), (b"text\r\n" + DATA, True), (DATA + b"\r\n" + DATA, True)):
        with pytest.raises(Torn) as torn:
            list(scan(DATA + pack([b"SET", b"k", value])[:-1]))
        assert (torn.value.at, torn.value.holds_commands) == (len(DATA), holds)


def test_notes_between_commands_are_passed_over() -> None:
    note = b"#TS:1767225600\r\n"
    assert list(scan(note + pack(COMMANDS[0]) + note + note + pack(COMMANDS[1]) + note, 3)) == COMMANDS[:2]
    with pytest.raises(Torn):
        list(scan(pack(COMMANDS[0]) + note[:-1]))


def test_a_long_log_is_read_piece_by_piece() -> None:
    many = [[b"SET", b"k%d" % number, b"v" * 1000] for number in range(500)]
    assert list(scan(b"".join(map(pack, many)), 4096)) == many
