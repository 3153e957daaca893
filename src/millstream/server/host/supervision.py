"""The pid file, and what a service manager is told: systemd's notifications over NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import ConfigError
from millstream.server.config.settings import Config

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def pid_file(config: Config) -> Iterator[None]:
    """Keep the number of this process in `pidfile` while this is open. Raises ConfigError if that cannot be written."""
    name = config["pidfile"].decode("utf-8", "surrogateescape")
    if not name:
        yield
        return
    path, text = Path(name), f"{os.getpid()}\n"
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"pidfile {name}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == text:  # else another server has written its own
                path.unlink()


class ServiceManager:
    """Whoever started this process and wants to hear of it; nobody unless `supervised` says so."""

    def __init__(self, config: Config) -> None:
        """Set up the notifications; raises ConfigError for an unknown manager."""
        mode = config["supervised"]
        if mode == b"upstart":
            raise ConfigError("supervised upstart: not known here; use systemd, auto or no")
        self._address = os.environ.get("NOTIFY_SOCKET", "") if mode in (b"systemd", b"auto") else ""
        self.is_there = bool(self._address)
        if mode == b"systemd" and not self.is_there:
            logger.warning("supervised systemd: NOTIFY_SOCKET is not set, nobody is notified")

    def ready(self) -> None:
        """Clients can connect."""
        self._notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Ready to accept connections")

    def stopping(self) -> None:
        """Notify the manager that the server is about to end."""
        self._notify("STOPPING=1\nSTATUS=Stopping")

    def _notify(self, text: str) -> None:
        if not self.is_there:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.connect(address)
                sock.sendall(text.encode())
        except OSError as error:
            logger.warning("The service manager cannot be notified: %s", error)
