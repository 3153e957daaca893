"""What `millstream serve` owes the system around it: signals, its log file, its pid file, its service manager."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.server.config.settings import Config
from millstream.server.host.log import ServerLog
from tests.support.certificates import Certificates, make_certificates
from tests.support.ours import WAIT_S, Process, eventually
from tests.support.servers import free_port
from tests.support.wire import Wire, pack

FOREVER = [b"EVAL", b"redis.call('SET', 'half', 1) while true do end", b"0"]


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# Ending


class Server:
    """A server that listens on TCP, on a unix socket and with TLS."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self.tls_port = free_port()
        self.unix_socket = str(directory / "s")
        self._trusted = str(certificates.authority)
        self.process = Process(
            *("--unixsocket", self.unix_socket, "--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(certificates.certificate), "--tls-key-file", str(certificates.key)),
            *("--busy-reply-threshold", "10", "--dir", str(directory / "data")),
            directory=directory,
        ).await_start()

    def connect(self, kind: str) -> socket.socket:
        if kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(WAIT_S)
            sock.connect(self.unix_socket)
            return sock
        sock = socket.create_connection(("127.0.0.1", self.tls_port if kind == "tls" else self.process.port), WAIT_S)
        if kind == "tls":
            context = ssl.create_default_context(cafile=self._trusted)
            return context.wrap_socket(sock, server_hostname="localhost")
        return sock


@pytest.mark.parametrize("way", ["SIGTERM", "SHUTDOWN"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_an_endless_script_that_has_written_does_not_keep_the_server(
    tmp_path: Path, certificates: Certificates, kind: str, way: str
) -> None:
    server = Server(tmp_path, certificates)
    try:
        with server.connect(kind) as caller, server.connect(kind) as other:
            other.sendall(pack([b"SET", b"kept", b"1"]))
            assert other.recv(100) == b"+OK\r\n"
            caller.sendall(pack(FOREVER))
            if way == "SHUTDOWN":
                other.sendall(pack([b"PING"]))
                assert other.recv(1000)  # PONG, or BUSY: either way it has been heard
                other.sendall(pack([b"SHUTDOWN", b"NOSAVE"]))
            else:
                server.process.process.send_signal(signal.SIGTERM)
            assert server.process.process.wait(WAIT_S) == 0
    finally:
        server.process.close()
    again = Process("--dir", str(tmp_path / "data"), directory=tmp_path).await_start()
    try:
        with Wire(again.port) as wire:
            assert wire.ask(b"MGET", b"kept", b"half") == b"*2\r\n$1\r\n1\r\n$-1\r\n"
    finally:
        again.close()


# The log


def test_the_log_file_is_opened_again_after_it_was_moved_and_sighup_ends_nothing(tmp_path: Path) -> None:
    path, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    process = Process("--logfile", str(path), "--appendonly", "no", directory=tmp_path).await_start()
    try:
        with Wire(process.port) as wire:
            assert wire.ask(b"EVAL", b"redis.log(redis.LOG_WARNING, 'one')", b"0") == b"$-1\r\n"
            assert eventually(lambda: "one" in path.read_text())
            path.rename(moved)
            process.process.send_signal(signal.SIGHUP)
            assert eventually(lambda: path.exists() and "opened again" in path.read_text())
            wire.ask(b"EVAL", b"redis.log(redis.LOG_WARNING, 'two')", b"0")
            assert eventually(lambda: "two" in path.read_text())
            path.unlink()  # and without a signal
            wire.ask(b"EVAL", b"redis.log(redis.LOG_WARNING, 'three')", b"0")
            assert eventually(lambda: path.exists() and "three" in path.read_text())
            assert "two" not in moved.read_text()
    finally:
        assert process.end() == 0
        process.close()


def test_config_set_loglevel_changes_what_is_logged_and_scripts_cannot_forge_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    process = Process("--logfile", str(path), "--appendonly", "no", directory=tmp_path).await_start()
    say = "redis.log(redis.{}, ARGV[1])"
    forged = b"x\n2026-01-01 00:00:00,000 ERROR forged: line\r\x1b[31m"
    try:
        with Wire(process.port) as wire:
            wire.ask(b"EVAL", say.format("LOG_DEBUG").encode(), b"0", b"quiet")
            wire.ask(b"CONFIG", b"SET", b"loglevel", b"debug")
            wire.ask(b"EVAL", say.format("LOG_DEBUG").encode(), b"0", b"loud")
            wire.ask(b"CONFIG", b"SET", b"loglevel", b"warning")
            wire.ask(b"EVAL", say.format("LOG_NOTICE").encode(), b"0", b"still")
            wire.ask(b"EVAL", say.format("LOG_WARNING").encode(), b"0", forged)
            assert eventually(lambda: "forged" in path.read_text())
            text = path.read_text()
            assert "loud" in text
            assert "quiet" not in text
            assert "still" not in text
            (line,) = (line for line in text.splitlines() if "forged" in line)
            assert "A script says: x" in line
            assert "\x1b" not in text
    finally:
        process.close()


def test_syslog_gets_the_log_or_the_setting_is_refused_by_name(tmp_path: Path, root_logger: None) -> None:
    config = Config({"syslog-enabled": "yes", "syslog-ident": "broker", "syslog-facility": "local3"})
    with pytest.raises(ConfigError, match="syslog-enabled"):
        ServerLog(config, tmp_path / "nothing")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.settimeout(WAIT_S)
        syslog.bind(str(tmp_path / "log"))
        ServerLog(config, tmp_path / "log")
        logging.getLogger("some.place").warning("a %s", "line\nand more")
        assert syslog.recv(1000).rstrip(b"\0") == b"<156>broker: WARNING some.place: a line\\nand more"


# Supervision


def test_a_pid_file_is_written_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.pid"
    process = Process("--pidfile", str(path), "--appendonly", "no", directory=tmp_path).await_start()
    try:
        assert path.read_text() == f"{process.process.pid}\n"
        assert process.end() == 0
        assert not path.exists()
    finally:
        process.close()


def test_a_pid_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    process = Process("--pidfile", str(tmp_path / "no" / "pid"), "--appendonly", "no", directory=tmp_path)
    try:
        assert process.process.wait(WAIT_S) == 2
        assert "pidfile" in process.err
    finally:
        process.close()


@pytest.mark.parametrize("mode", ["systemd", "auto"])
def test_the_service_manager_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(WAIT_S)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process = Process("--supervised", mode, "--appendonly", "no", directory=tmp_path)
        try:
            assert manager.recv(1000).startswith(b"READY=1\nMAINPID=%d\n" % process.process.pid)
            with Wire(process.port) as wire:
                assert b"process_supervised:systemd\r\n" in wire.ask(b"INFO", b"server")
            assert process.end() == 0
            assert manager.recv(1000).startswith(b"STOPPING=1\n")
        finally:
            process.close()


def test_upstart_is_refused_by_name(tmp_path: Path) -> None:
    process = Process("--supervised", "upstart", "--appendonly", "no", directory=tmp_path)
    try:
        assert process.process.wait(WAIT_S) == 2
        assert "supervised upstart" in process.err
    finally:
        process.close()


def test_what_is_accepted_without_effect_is_said_in_the_log(tmp_path: Path) -> None:
    options = ("--hz", "50", "--maxmemory-policy", "allkeys-lru", "--list-compress-depth", "1")
    process = Process(*options, "--appendonly", "no", directory=tmp_path).await_start()
    try:
        assert "Accepted without effect: hz, maxmemory-policy, list-compress-depth" in process.err
        with Wire(process.port) as wire:
            wire.ask(b"CONFIG", b"SET", b"lfu-log-factor", b"5")
        assert eventually(lambda: "without effect: lfu-log-factor" in process.err)
    finally:
        process.close()
