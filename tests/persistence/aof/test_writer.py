"""The log as it is written: the format, and that a write or a sync that fails loses nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.persistence.aof.writer import AppendLog, LineEncoder, encode_line
from tests.persistence.memory_files import MemoryFiles
from tests.support.wire import pack

LOG = Path("/log")
HOT = [
    b"XADD key 1-1 name value",
    b"XACK key group 1-1",
    b"XGROUP SETID key group 1-1 ENTRIESREAD 7",
    b"XCLAIM key group consumer 0 1-1 TIME 1767225600000 RETRYCOUNT 1 FORCE JUSTID LASTID 1-0",
    b"MULTI",
]


def line(*argv: bytes, db: int = 0) -> tuple[int, tuple[bytes, ...]]:
    return db, argv


def new_log(files: MemoryFiles, *, keeps_unsynced: bool = True) -> AppendLog:
    return AppendLog(files.create(LOG), 0, keeps_unsynced=keeps_unsynced)


@pytest.mark.parametrize("words", HOT)
def test_hot_lines_are_encoded_as_all_others(words: bytes) -> None:
    argv = tuple(words.split())
    encoder = LineEncoder()
    assert encoder.encode_one(argv) == encoder.encode_one(argv) == encode_line(argv) == pack(argv)


@given(st.sampled_from(HOT), st.lists(st.binary(max_size=300), min_size=14, max_size=14), st.integers(0, 70))
def test_lines_that_look_like_hot_ones_are_encoded_as_all_others(words: bytes, other: list[bytes], more: int) -> None:
    argv = list(words.split())
    for at, word in enumerate(other[: len(argv)]):
        if len(word) % 3:
            argv[at] = word
    argv += [b"x"] * (more if more > 60 else 0)
    assert LineEncoder().encode_one(tuple(argv)) == pack(argv)


def test_a_consumer_s_claims_do_not_mix_with_another_s() -> None:
    encoder = LineEncoder()
    for key, group, consumer in ((b"k", b"g", b"c"), (b"k", b"g", b"d"), (b"kg", b"", b"c"), (b"k", b"gc", b"")):
        argv = (b"XCLAIM", key, group, consumer, *HOT[3].split()[4:])
        assert encoder.encode_one(argv) == pack(argv)


def test_a_database_is_selected_where_it_changes() -> None:
    encoder = LineEncoder()
    data = encoder.encode([line(b"A"), line(b"B"), line(b"C", db=3)]) + encoder.encode([line(b"D", db=3), line(b"E")])
    expected = [[b"SELECT", b"0"], [b"A"], [b"B"], [b"SELECT", b"3"], [b"C"], [b"D"], [b"SELECT", b"0"], [b"E"]]
    assert data == b"".join(map(pack, expected))


def test_lines_are_written_at_once() -> None:
    files = MemoryFiles()
    log = new_log(files)
    for number in range(5):
        log.append([line(b"SET", b"k", b"%d" % number)])
    assert files.content(LOG) == b""
    assert log.waiting_bytes == log.size
    log.write()
    assert [what for what, _ in files.log].count("write") == 1
    assert files.content(LOG).count(b"SET") == 5
    assert log.waiting_bytes == 0
    assert log.size == len(files.content(LOG))


@pytest.mark.parametrize("longest", [1, 3, 7, 100])
def test_a_write_that_takes_only_some_goes_on_behind_it(longest: int) -> None:
    files = MemoryFiles()
    files.longest_write = longest
    log = new_log(files)
    log.append([line(b"SET", b"k", b"v" * 50)])
    log.write()
    assert files.content(LOG) == pack([b"SELECT", b"0"]) + pack([b"SET", b"k", b"v" * 50])


@pytest.mark.parametrize("free", range(0, 50, 7))
def test_a_full_disk_keeps_the_rest_waiting(free: int) -> None:
    files = MemoryFiles()
    log = new_log(files)
    files.free = free
    log.append([line(b"SET", b"k", b"v")])
    with pytest.raises(OSError, match="No space"):
        log.write()
    log.append([line(b"SET", b"k", b"w")])
    with pytest.raises(OSError, match="No space"):
        log.write()
    files.free = None
    log.write()
    expected = [[b"SELECT", b"0"], [b"SET", b"k", b"v"], [b"SET", b"k", b"w"]]
    assert files.content(LOG) == b"".join(map(pack, expected))
    assert log.size == len(files.content(LOG))


def test_what_a_failed_sync_may_have_lost_is_written_again() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append([line(b"SET", b"k", b"1")])
    log.write()
    log.sync()
    log.append([line(b"SET", b"k", b"2")])
    log.write()
    files.broken["sync"] = errno.EIO
    with pytest.raises(OSError, match="error"):
        log.sync()
    whole = files.content(LOG)
    files.drop_unsynced(LOG)
    files.broken.clear()
    assert not log.is_synced
    log.write()
    log.sync()
    assert log.is_synced
    assert files.content(LOG) == whole


def test_what_is_written_while_a_sync_runs_is_not_synced_by_it() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append([line(b"A")])
    log.write()
    chunks = log.begin_sync()
    log.append([line(b"B")])
    log.write()
    log.end_sync(chunks, succeeded=True)
    assert not log.is_synced
    log.sync()
    assert log.is_synced


def test_a_sync_that_failed_meanwhile_puts_everything_back_in_line() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append([line(b"A")])
    log.write()
    chunks = log.begin_sync()
    log.append([line(b"B")])
    log.write()
    log.append([line(b"C")])
    log.end_sync(chunks, succeeded=False)
    whole = pack([b"SELECT", b"0"]) + pack([b"A"]) + pack([b"B"]) + pack([b"C"])
    assert log.waiting_bytes == log.size == len(whole)
    log.write()
    assert files.content(LOG) == whole


def test_a_log_that_nobody_syncs_keeps_nothing_back() -> None:
    files = MemoryFiles()
    log = new_log(files, keeps_unsynced=False)
    log.append([line(b"A")])
    log.write()
    files.broken["sync"] = errno.EIO
    with pytest.raises(OSError, match="error"):
        log.sync()
    assert (log.waiting_bytes, log.is_synced) == (0, False)
    files.broken.clear()
    log.sync()
    assert log.is_synced


def test_a_log_goes_on_behind_what_is_there_and_selects_anew() -> None:
    files = MemoryFiles()
    files.put(LOG, pack([b"OLD"]))
    log = AppendLog(files.open(LOG), files.size(LOG), keeps_unsynced=True)
    log.append([line(b"NEW", db=2)])
    log.write()
    assert files.content(LOG) == pack([b"OLD"]) + pack([b"SELECT", b"2"]) + pack([b"NEW"])


class TooLarge(bytes):
    """A word that there is no memory to encode."""

    def __len__(self) -> int:
        raise MemoryError


def test_lines_that_there_is_no_memory_for_leave_no_trace() -> None:
    """The SELECT before them is not in the log either: the next line must bring its own."""
    files = MemoryFiles()
    log = new_log(files)
    log.append([line(b"SET", b"a", b"1")])
    with pytest.raises(MemoryError):
        log.append([line(b"SET", b"b", b"2", db=3), line(b"SET", b"b", TooLarge(b"2"), db=3)])
    log.append([line(b"SET", b"c", b"3", db=3)])
    log.write()
    commands = [[b"SELECT", b"0"], [b"SET", b"a", b"1"], [b"SELECT", b"3"], [b"SET", b"c", b"3"]]
    assert files.content(LOG) == b"".join(map(pack, commands))
    assert log.size == len(files.content(LOG))
