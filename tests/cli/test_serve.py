"""`millstream serve` as a process: its start, its end, and what it says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ours import Process, environment, eventually

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers in directories of their own; they end with the test."""
    started: list[Process] = []

    def begin(*arguments: str, directory: Path = tmp_path, port: int | None = None) -> Process:
        directory.mkdir(exist_ok=True)
        started.append(Process(*arguments, directory=directory, port=port))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def client(process: Process, **options: object) -> redis.Redis:
    return redis.Redis(port=process.port, retry=Retry(NoBackoff(), 0), **options)  # type: ignore[arg-type]


def refused(*arguments: str, directory: Path) -> tuple[int, str]:
    """Exit code and errors of a server that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert not done.stdout
    return done.returncode, done.stderr


def test_it_says_where_it_is_and_ends_when_asked(start: Start, tmp_path: Path) -> None:
    process = start("--bind", "127.0.0.1").await_start()
    out = process.out
    assert f"listens    127.0.0.1:{process.port}\n" in out
    assert f"data       {tmp_path}/millstream-data, every change logged, on the disk within a second" in out
    assert "no password, this machine only" in out
    assert f"redis-cli -p {process.port}\n" in out
    assert len(out.splitlines()) < 24
    assert client(process).xadd("s", {"f": "v"})
    assert process.end(signal.SIGTERM) == 0
    assert "Stopped" in process.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_accepted_is_there_after_a_restart(start: Start, number: signal.Signals) -> None:
    process = start("--appendfsync", "no").await_start()
    added = [client(process).xadd("s", {"n": n}) for n in range(20)]
    assert process.end(number) == 0
    again = start(port=process.port).await_start()
    assert [entry[0] for entry in client(again).xrange("s")] == added
    assert "1 keys from the log" in again.out


def test_clients_are_let_go_when_it_ends(start: Start) -> None:
    process = start().await_start()
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as blocked:
        blocked.sendall(b"PING\r\nXREAD BLOCK 0 STREAMS s $\r\n")
        assert blocked.recv(100) == b"+PONG\r\n"
        assert process.end() == 0
        assert blocked.recv(100) == b""


def test_shutdown_ends_it_well(start: Start) -> None:
    process = start("--save", "").await_start()
    client(process).set("k", "v")
    client(process).shutdown()
    assert process.process.wait(60) == 0
    again = start(port=process.port).await_start()
    assert client(again).get("k") == b"v"


def test_a_file_and_options_are_obeyed(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    file.write_text(f"unixsocket {tmp_path}/s\nunixsocketperm 700\nappendonly no\nmaxclients 50\nrdbchecksum yes\n")
    process = start(str(file), "--dir", "elsewhere", "--maxclients", "60").await_start()
    assert "in memory only" in process.out
    assert "settings without effect here: rdbchecksum" in process.out
    local = redis.Redis(unix_socket_path=str(tmp_path / "s"))
    assert local.config_get("maxclients") == {"maxclients": "60"}
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert process.end() == 0
    assert not (tmp_path / "s").exists()


def test_a_password_is_asked_for_and_shown_nowhere(start: Start) -> None:
    process = start("--requirepass", "hunter2", "--loglevel", "debug").await_start()
    assert "by password" in process.out
    with pytest.raises(redis.AuthenticationError):
        client(process).ping()
    with pytest.raises(redis.AuthenticationError):
        client(process, password="hunter3").ping()
    assert client(process, password="hunter2").ping()
    assert process.end() == 0
    assert "hunter" not in process.out + process.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--bind", "0.0.0.0"], 2, "protected mode: 0.0.0.0 can be reached from other machines"),
        (["--prot", "1"], 2, "--prot: unknown directive; did you mean port?"),
        (["--port", "70000"], 2, "--port: argument must be between 0 and 65535"),
        (["/no/such.conf"], 2, "/no/such.conf: No such file or directory"),
        (["--port", "0"], 1, "nothing to listen on"),
        (["--tls-port", "7000"], 2, "tls-port needs tls-cert-file"),
        (["--logfile", "/no/such/dir/log"], 2, "logfile /no/such/dir/log: No such file or directory"),
        (["--user", "bob", "+@nope"], 2, "user 'bob': rule '+@nope'"),
        (["--dir", "/proc/none"], 1, "/proc/none"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_a_line(
    tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    found, said = refused(*arguments, directory=tmp_path)
    assert text in said
    assert "Traceback" not in said
    assert found == code
    if code == 2:
        assert not (tmp_path / "millstream-data").exists()


def test_a_port_or_a_directory_that_is_taken_is_named(start: Start, tmp_path: Path) -> None:
    process = start().await_start()
    other = tmp_path / "other"
    other.mkdir()
    code, said = refused("--port", str(process.port), directory=other)
    assert f"port {process.port}: Address already in use" in said
    assert code == 1
    code, said = refused("--port", "0", "--unixsocket", "s", directory=tmp_path)
    assert "millstream-data" in said
    assert code == 1
    assert client(process).ping()


def test_damage_is_named_and_has_a_code_of_its_own(start: Start, tmp_path: Path) -> None:
    process = start().await_start()
    for number in range(10):
        client(process).set(f"k{number}", "v" * 100)
    assert process.end() == 0
    (log,) = (tmp_path / "millstream-data" / "appendonlydir").glob("*.incr.aof")
    data = bytearray(log.read_bytes())
    data[300:310] = b"x" * 10
    log.write_bytes(data)
    code, said = refused("--port", "0", "--unixsocket", "s", directory=tmp_path)
    assert f"{log.name} is damaged at offset" in said
    assert "millstream check" in said
    assert code == 3


def test_the_log_can_go_to_a_file(start: Start, tmp_path: Path) -> None:
    process = start("--logfile", "server.log").await_start()
    assert process.end() == 0
    assert eventually(lambda: "Stopped" in (tmp_path / "server.log").read_text())
    assert process.err == ""
