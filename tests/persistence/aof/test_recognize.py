"""What is neither a log nor a snapshot is named and left alone; what a newer version has written is not damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.errors import CorruptFile, NewerFormat, PersistenceError
from millstream.persistence.aof.check import check
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import DIRECTORY, LOGS, Broker
from tests.support.wire import pack

SET = pack([b"SET", b"a", b"1"])
FOREIGN = {
    "text": b"Dear reader,\nthis is no log.\n",
    "text with a star": b"* one\n* two\n",
    "text like a header": b"*3 things\r\n$3 each\r\n",
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
    "empty": b"",
    "zeros": bytes(5000),
    "replies": b"+OK\r\n$5\r\nhello\r\n:1\r\n",
    "reply of two words": b"*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n",
    "requests that read": pack([b"GET", b"a"]) + pack([b"XRANGE", b"s", b"-", b"+"]),
    "requests of a connection": pack([b"HELLO", b"3"]) + SET,
    "pings": pack([b"PING"]) * 3,
    "text that starts as a snapshot": b"REDIS is a server.\n",
    "one damaged command": b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$x\r\n1\r\n",
    "gzip": b"\x1f\x8b\x08" + bytes(100),
    "json": b'{"a": 1}\n',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["notes.txt", "appendonly.aof", "dump.rdb"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for fix in (False, True):
        report = check(path, fix=fix)
        assert (report.ok, report.fixed, report.damage) == (False, False, None)
        assert report.foreign is not None
        assert str(path) in report.text
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == [name]


def test_a_directory_without_anything_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    assert "holds no log and no snapshot" in check(tmp_path, fix=True).text
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_what_is_no_regular_file_is_not_even_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert "not a regular file" in check(path, fix=True).text


@pytest.mark.parametrize(
    "beginning", [SET, pack([b"SELECT", b"0"]), pack([b"MULTI"]) + SET + pack([b"EXEC"]), b"#TS:1\r\n" + SET]
)
def test_a_log_is_recognized_by_its_first_command(beginning: bytes) -> None:
    files = MemoryFiles()
    files.put(Path("/log"), beginning + b"garbage" * 10)
    report = check(Path("/log"), fix=True, files=files)
    assert report.fixed
    assert files.content(Path("/log")) == beginning


def test_a_file_that_a_manifest_names_is_a_log_whatever_it_holds() -> None:
    broker = Broker()
    increment = LOGS / "appendonly.aof.1.incr.aof"
    broker.files.put(increment, FOREIGN["text"])
    report = check(DIRECTORY, fix=True, files=broker.files)
    assert report.fixed
    assert report.copy is not None
    assert broker.files.content(report.copy) == FOREIGN["text"]
    assert broker.reopened()("DBSIZE") == 0


def test_a_file_that_others_follow_is_not_cut() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    broker("SET b 1")
    increment = LOGS / "appendonly.aof.1.incr.aof"
    torn = broker.files.content(increment)[:-1]
    broker.files.put(increment, torn)
    report = check(DIRECTORY, fix=True, files=broker.files)
    assert not report.fixed
    assert "other files of the log follow" in report.text
    assert broker.files.content(increment) == torn


@pytest.mark.parametrize("name", ["appendonly.aof.1.base.rdb", "dump.rdb"])
def test_an_rdb_file_of_a_newer_version_is_not_damaged(name: str) -> None:
    broker = Broker(appendonly="no" if name == "dump.rdb" else "yes")
    broker("SET a 1")
    broker("SAVE")
    path = (DIRECTORY if name == "dump.rdb" else LOGS) / name
    newer = b"REDIS0099" + broker.files.content(path)[9:]
    broker.files.put(path, newer)
    for place in (DIRECTORY, path):
        report = check(place, fix=True, files=broker.files)
        assert not report.ok
        assert report.damage is None
        assert "newer" in report.text
        assert "fix" not in report.text
    with pytest.raises(PersistenceError, match="newer") as refused:
        broker.reopened(appendonly="no" if name == "dump.rdb" else "yes")
    assert not isinstance(refused.value, CorruptFile)
    assert broker.files.content(path) == newer


def test_a_newer_version_is_told_from_no_version_at_all() -> None:
    assert issubclass(NewerFormat, PersistenceError)
    broker = Broker(appendonly="no")
    for magic in (b"REDIS0000", b"REDIS00a1", b"VALKEYabc"):
        broker.files.put(DIRECTORY / "dump.rdb", magic + bytes(50))
        with pytest.raises(CorruptFile):
            broker.reopened(appendonly="no")


def test_a_snapshot_is_checked_in_a_directory_without_a_log(tmp_path: Path) -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    broker("SAVE")
    data = broker.files.content(DIRECTORY / "dump.rdb")
    (tmp_path / "dump.rdb").write_bytes(data)
    assert check(tmp_path).text == "whole: 1 file, 0 commands"
    (tmp_path / "dump.rdb").write_bytes(data[:-9])
    assert "cannot be repaired" in check(tmp_path, fix=True).text


@pytest.mark.parametrize("setting", ["damaged", "missing"])
def test_repair_is_offered_only_where_it_can_be_done(setting: str) -> None:
    broker = Broker()
    broker("SET a 1")
    base = LOGS / "appendonly.aof.1.base.rdb"
    if setting == "damaged":
        broker.files.put(base, broker.files.content(base)[:-3])
    else:
        broker.files.remove(base)
    with pytest.raises(CorruptFile) as corrupt:
        broker.reopened()
    assert "--fix" not in corrupt.value.hint
    damage = check(DIRECTORY, files=broker.files).damage
    assert damage is not None
    assert (damage.path, damage.keeps) == (base, None)
