"""Keeps leases from a process of its own, for handlers that never let go of the interpreter.

    worker ── JSON lines through a pipe ──▶ a child process, `main` ── renew ──▶ server
              about, hold, drop

A thread cannot renew while a C function holds the interpreter's lock. The child knows what is held and until when; it
renews with a connection of its own, and ends with the pipe, so that it never outlives the worker. What has a deadline
is renewed up to that and no further. The thread in `leases` goes on as well: this is a second pair of hands.

A worker that is stopped (SIGSTOP) keeps its leases this way: give the handler a timeout if that is not wanted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO, Any

from millstream.client.backend import connect
from millstream.client.urls import parse_url
from millstream.clock import elapsed_ms
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.errors import BackendError, ConfigError, Unavailable
from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))
CHILD = "import sys; from millstream.worker.runtime.lease_process import main; main(sys.stdin)"
READY = "ready\n"
Key = tuple[str, int]  # id and delivery number


def require_server(url: str) -> None:
    """Raise unless a second process can reach the streams."""
    if parse_url(url).is_embedded:
        raise ConfigError(
            f"heartbeat_process: streams at {url} are inside this process, and no other one can renew their leases; "
            "use a server, or leave it off"
        )


class Heart:
    """The worker's end: told what is held, tells the child."""

    def __init__(self, url: str, consumer: Consumer) -> None:
        require_server(url)
        settings = consumer.settings
        self._about = {
            "url": url,
            "stream": consumer.stream.decode("latin-1"),
            "group": consumer.group.decode("latin-1"),
            "consumer": consumer.name.decode("latin-1"),
            "lease": settings.lease,
            "heartbeat": settings.heartbeat_s,
            "lock_keys": settings.has_lock_keys,
        }
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_wanted = False  # started and not stopped

    def start(self) -> None:
        """Start the child; also again, after it has ended."""
        self._end()
        # the URL goes through the pipe: arguments can be seen by everybody on the machine, passwords with them
        self._child = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._is_wanted = True
        self._tell({"about": self._about})
        assert self._child.stdout is not None
        if self._child.stdout.readline() != READY:  # before the first lease begins: starting can take longer than it
            self._end()
            raise Unavailable("the lease-keeping process did not start; its own message is on stderr")

    def hold(self, delivery: Delivery, seconds: float | None) -> None:
        """Renew from now on, for so many seconds at most."""
        self._tell({"hold": [delivery.id.decode(), delivery.number, seconds]})

    def drop(self, delivery: Delivery) -> None:
        self._tell({"drop": [delivery.id.decode(), delivery.number]})

    @property
    def has_ended(self) -> bool:
        """Whether the child was started and has ended by itself; logged once for each child."""
        child = self._child
        if not self._is_wanted or (child is not None and child.poll() is None):
            return False
        if child is not None:
            logger.error("the lease-keeping process %d has ended with status %s", child.pid, child.returncode)
        return True

    def stop(self) -> None:
        """End the child; it ends by itself too when this process does."""
        self._is_wanted = False
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended before, with something of ours unread
                child.stdin.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock:
            child = self._child
            if child is None or child.stdin is None:
                return
            try:
                child.stdin.write(json.dumps(message) + "\n")
                child.stdin.flush()
            except OSError as error:
                logger.warning("the lease-keeping process does not listen (%s): it is started again", error)
                child.stdin = None  # say this once


@dataclass
class Child:
    """The other end: what is held, renewed every heartbeat."""

    held: dict[Key, float | None] = field(default_factory=dict)  # until when, by our watch
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: threading.Event = field(default_factory=threading.Event)

    def listen(self, pipe: IO[str]) -> None:
        """Take in what comes until the pipe closes; what cannot be read ends the process, with a traceback."""
        try:
            for line in pipe:
                self.take(json.loads(line), time.monotonic())
        finally:
            self.is_over.set()

    def take(self, message: dict[str, Any], now_s: float) -> None:
        """One message of the worker's."""
        with self.lock:
            if "hold" in message:
                entry_id, number, seconds = message["hold"]
                self.held[entry_id, number] = None if seconds is None else now_s + seconds
            elif "drop" in message:
                self.held.pop(tuple(message["drop"]), None)

    def due(self, now_s: float) -> list[Key]:
        """Return the leases to renew, and drop those that have ended."""
        with self.lock:
            for key in [key for key, until in self.held.items() if until is not None and now_s >= until]:
                del self.held[key]
            return list(self.held)

    def renew(self, consumer: Consumer) -> None:
        """Renew all that is held; what is lost is forgotten."""
        keys = self.due(time.monotonic())
        if not keys:
            return
        lost = consumer.renew((entry_id.encode(), number) for entry_id, number in keys)
        with self.lock:
            for entry_id, number in keys:
                if entry_id.encode() in lost:
                    self.held.pop((entry_id, number), None)


def main(pipe: IO[str]) -> None:
    """Renew what the worker at the other end of the pipe holds, until it ends."""
    first = pipe.readline()
    if not first:
        return
    about = json.loads(first)["about"]
    settings = Settings(lease=about["lease"], heartbeat=about["heartbeat"], lock_keys=about["lock_keys"])
    child = Child()
    threading.Thread(target=child.listen, args=(pipe,), daemon=True).start()
    with connect(about["url"]) as backend:
        stream, group, name = (about[each].encode("latin-1") for each in ("stream", "group", "consumer"))
        consumer = Consumer(backend, stream, group, name, settings, elapsed_ms)
        print(READY, end="", flush=True)
        while not child.is_over.wait(settings.heartbeat_s):
            try:
                child.renew(consumer)
            except BackendError as error:
                logger.warning("leases could not be renewed now: %s", error)
