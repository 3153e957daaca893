"""`millstream check` beside a broker that runs, and `--fix`, which asks first."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millstream import Broker
from millstream.cli.main import main
from millstream.errors import PersistenceError
from millstream.persistence.aof.check import check
from millstream.persistence.files import RealFiles
from tests.persistence.memory_files import MemoryFiles
from tests.support.ours import Process, environment
from tests.support.wire import pack

SET = pack([b"SET", b"a", b"1"])


def millstream(*words: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "appendonly.aof"
    path.write_bytes(SET + b"garbage")
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process("--dir", "data", "--appendfsync", "always", directory=tmp_path)
    try:
        yield process.await_start()
    finally:
        process.close()


def test_a_log_under_load_is_whole_and_cannot_be_repaired(server: Process, tmp_path: Path) -> None:
    data = tmp_path / "data"
    ends = threading.Event()
    answered: list[int] = []

    def write() -> None:
        with redis.Redis(port=server.port) as client:
            while not ends.wait(0.001):
                with client.pipeline(transaction=True) as together:
                    together.set("large", b"x" * 20_000)
                    answered.append(together.incr("n").execute()[1])

    def rewrite() -> None:
        with redis.Redis(port=server.port) as client:
            while not ends.wait(0.2):
                try:
                    client.bgrewriteaof()
                except redis.ResponseError:
                    continue  # one is running

    threads = [threading.Thread(target=write), threading.Thread(target=rewrite)]
    for thread in threads:
        thread.start()
    try:
        for at in range(12):
            path = (data, data / "appendonlydir", data / "appendonlydir" / "appendonly.aof.manifest")[at % 3]
            report = check(path)
            assert report.ok, report.text
            assert report.in_use == f"process {server.process.pid}"
            with pytest.raises(PersistenceError, match=f"in use by .*process {server.process.pid}"):
                check(path, fix=True)
        shown = millstream("check", str(data))
        refused = millstream("check", str(data), "--fix", "--yes")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"in use by process {server.process.pid}" in shown.stdout
    assert refused.returncode == 1
    assert f"process {server.process.pid}" in refused.stderr
    server.process.kill()
    server.process.wait()
    assert check(data).in_use is None
    again = Process("--dir", "data", directory=tmp_path)
    try:
        again.await_start()
        with redis.Redis(port=again.port) as client:
            assert int(client.get("n")) >= answered[-1]
    finally:
        again.close()


def test_a_directory_under_repair_cannot_be_opened(tmp_path: Path) -> None:
    Broker(path=tmp_path).close()
    (increment,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    increment.write_bytes(SET + b"garbage")
    refusals = []

    def open_it(damage: object, size: int) -> None:
        with pytest.raises(PersistenceError, match="in use") as refused:
            Broker(path=tmp_path)
        refusals.append(str(refused.value))

    assert check(tmp_path, fix=True, agree=open_it).fixed
    assert len(refusals) == 1
    Broker(path=tmp_path).close()


def test_a_directory_is_the_same_by_any_path(tmp_path: Path) -> None:
    data, link, logs = tmp_path / "data", tmp_path / "link", tmp_path / "logs"
    data.mkdir()
    link.symlink_to(data)
    with Broker(path=data) as broker:
        broker.xadd("s", {"f": "v"})
        logs.symlink_to(data / "appendonlydir")
        (increment,) = logs.glob("*.incr.aof")
        for path in (data, link, logs, increment, logs / "appendonly.aof.manifest"):
            assert check(path).in_use == f"process {os.getpid()} (this one)"
            with pytest.raises(PersistenceError, match="in use"):
                check(path, fix=True)
        with pytest.raises(PersistenceError, match="in use"):
            Broker(path=link)


def test_nothing_is_cut_unless_somebody_says_so(log: Path) -> None:
    before = log.read_bytes()
    done = millstream("check", str(log), "--fix")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert log.read_bytes() == before
    assert [path.name for path in log.parent.iterdir()] == [log.name]
    done = millstream("check", str(log), "--fix", "--yes")
    assert done.returncode == 0
    assert f"as it was: {log}.damaged.1" in done.stdout
    assert log.read_bytes() == SET
    assert log.with_name(log.name + ".damaged.1").read_bytes() == before


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_a_terminal_is_asked(log: Path, answer: bytes, code: int) -> None:
    before = log.read_bytes()
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        done = millstream("check", str(log), "--fix", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert f"Cut it to {len(SET)} bytes? 7 go" in done.stdout + done.stderr
    assert log.read_bytes() == (SET if code == 0 else before)


def test_a_file_of_something_else_has_the_code_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("some notes\n")
    done = millstream("check", str(path), "--fix", "--yes")
    assert done.returncode == 1
    assert "neither a log nor a snapshot" in done.stdout
    assert path.read_text() == "some notes\n"


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "text"])
def test_a_lock_that_is_something_else_is_not_written_over(tmp_path: Path, kind: str) -> None:
    victim, lock = tmp_path / "victim", tmp_path / "data" / "millstream.lock"
    lock.parent.mkdir()
    victim.write_text("precious")
    if kind == "symbolic link":
        lock.symlink_to(victim)
    elif kind == "hard link":
        lock.hardlink_to(victim)
    else:
        lock.write_text("precious")
    for _ in range(2):
        with pytest.raises(PersistenceError, match="lock file of Millstream"):
            Broker(path=lock.parent)
    assert lock.read_text() == victim.read_text() == "precious"


def test_a_lock_of_a_process_that_died_keeps_nobody_out(tmp_path: Path) -> None:
    Broker(path=tmp_path).close()
    for left in ("999999\n", "", "12", "\0\0\0\0"):
        (tmp_path / "millstream.lock").write_text(left)
        assert check(tmp_path).in_use is None
        Broker(path=tmp_path).close()


def test_a_directory_that_cannot_be_written_is_checked(tmp_path: Path) -> None:
    with Broker(path=tmp_path / "data") as broker:
        broker.xadd("s", {"f": "v"})
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy, ignore=shutil.ignore_patterns("millstream.lock"))
    copy.chmod(0o500)
    try:
        assert check(copy).ok
        assert check(copy, fix=True).ok
    finally:
        copy.chmod(0o700)
    assert not (copy / "millstream.lock").exists()


def test_who_asks_for_a_lock_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    files = RealFiles()
    files.lock(tmp_path)()
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            files.is_locked_by(tmp_path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(50):
            files.lock(tmp_path)()
    finally:
        ends.set()
        thread.join()


def test_a_log_that_a_link_leads_to_belongs_to_one_broker(tmp_path: Path) -> None:
    logs = tmp_path / "disk" / "logs"
    logs.mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "appendonlydir").symlink_to(logs)
    with Broker(path=tmp_path / "one") as broker:
        broker.xadd("s", {"f": "v"})
        with pytest.raises(PersistenceError, match="in use"):
            Broker(path=tmp_path / "two")
        assert check(logs).in_use
        with pytest.raises(PersistenceError, match="in use"):
            check(logs, fix=True)
    with Broker(path=tmp_path / "two") as broker:
        assert broker.xlen("s") == 1


def test_a_repair_without_room_for_the_copy_changes_nothing(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.put(Path("/log"), SET + b"garbage")
    files.free = 3
    with pytest.raises(PersistenceError, match="nothing was changed"):
        check(Path("/log"), fix=True, files=files)
    assert files.names(Path("/")) == ["log"]
    assert files.content(Path("/log")) == SET + b"garbage"


def test_an_export_of_a_directory_has_its_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = "#!lua name=l\nredis.register_function('f', function() return 1 end)"
    with Broker(path=tmp_path / "data") as broker:
        broker.xadd("s", {"f": "v"})
        broker.client().function_load(library)
    assert main(["export", str(tmp_path / "out.rdb"), "--dir", str(tmp_path / "data")]) == 0
    assert b"register_function" in (tmp_path / "out.rdb").read_bytes()
    capsys.readouterr()
