"""Hears lock keys expire, and has their entries looked at: faster than the scan, and never needed.

    server ── expired ──▶ subscription (a thread) ──▶ queue, bounded ──▶ requeue step, many ids a call (a thread)

The server's keyspace events are fire and forget, late under load, and off on many services. So this only nudges: the
requeue step looks at lock and pending entry again, and what is dropped here the scan finds. Flags are merged into the
server's setting, never replaced; where the setting may not be changed the scan does all the work. On a cluster the
server that has the stream's slot is the one whose locks expire: that one is listened to, and looked up anew every few
seconds.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis

from millstream.client.backend import Backend
from millstream.delivery.consumer import Consumer
from millstream.delivery.rfc import RfcRecovery
from millstream.errors import BackendError
from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))
LOOK_EVERY_S: Final = 5.0  # does the server still answer, and has it still the slot?
AGAIN_AFTER_S: Final = 0.5  # when it does not
STEP_S: Final = 0.2  # how soon a stop is noticed
NEEDED_FLAGS: Final = "Kx"
AWAY: Final = (BackendError, redis.RedisError, OSError)


class ExpiryListener:
    """A subscription and who works through what it hears; `start_for`, then `stop`."""

    def __init__(self, consumer: Consumer, recovery: RfcRecovery, open_backend: Callable[[], Backend]) -> None:
        settings = consumer.settings
        self._consumer = consumer
        self._recovery = recovery
        self._open_backend = open_backend
        self._heard: queue.Queue[tuple[float, bytes]] = queue.Queue(settings.listener_queue)
        self._patience_s = settings.listener_timeout
        self._is_stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"millstream-{name}", daemon=True)
            for name, work in (("expiry", self._listen), ("requeue", self._work_through))
        ]
        self.is_listening = threading.Event()
        self.listens_to: tuple[str, int] | None = None  # the server, while it does

    @classmethod
    def start_for(cls, consumer: Consumer, open_backend: Callable[[], Backend]) -> ExpiryListener | None:
        """Return a running listener if the settings enable it. An unreachable server is tried again later."""
        if consumer.rfc is None or not consumer.settings.has_listener:
            return None
        listener = cls(consumer, consumer.rfc, open_backend)
        for thread in listener._threads:
            thread.start()
        return listener

    def stop(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self, work: Callable[[Backend], None]) -> None:
        """Do something with a connection of one's own until the end, through every outage."""
        backend: Backend | None = None
        is_away = False
        while not self._is_stopping.is_set():
            try:
                if backend is None:
                    backend = self._open_backend()
                elif is_away:  # not opened anew: it knows more servers of a cluster than the URL names
                    backend.reset_topology()
                is_away = False
                work(backend)
            except AWAY as error:
                if not is_away:
                    logger.warning("cannot listen for expired locks now, scans go on: %s", error)
                is_away = True
                self._is_stopping.wait(AGAIN_AFTER_S)
            except BaseException:
                logger.exception("listening for expired locks failed unexpectedly, scans go on; it is begun anew")
                is_away = True
                self._is_stopping.wait(AGAIN_AFTER_S)
        if backend is not None:
            backend.close()

    # Hearing

    def _listen(self, backend: Backend) -> None:
        """Listen to the server that has the stream until another one has, or an error ends it."""
        owner = backend.node_for(self._consumer.stream)
        client = client_of(backend, owner)
        merge_flags(client)
        subscription = client.pubsub(ignore_subscribe_messages=False)
        try:
            subscription.psubscribe(pattern_of(backend, self._consumer.keys.lock_base))
            self.listens_to = owner
            while self._hear(subscription) and self._is_owner(backend, owner):
                pass
        finally:
            self.is_listening.clear()
            self.listens_to = None
            subscription.close()

    def _hear(self, subscription: Any) -> bool:
        """Take events for a few seconds; False if the server has not answered a ping by then, or at the stop."""
        subscription.ping()
        is_answered, until = False, time.monotonic() + LOOK_EVERY_S
        while time.monotonic() < until:
            if self._is_stopping.is_set():
                return False
            event = subscription.get_message(timeout=STEP_S)
            if event is None:
                continue
            if event["type"] == "psubscribe":
                self.is_listening.set()
            is_answered = is_answered or event["type"] == "pong"
            self._on_event(event)
        if not is_answered:
            logger.warning("the subscription to expired locks is dead and is made anew")
        return is_answered

    def _is_owner(self, backend: Backend, owner: tuple[str, int]) -> bool:
        if backend.is_cluster:  # a slot that has moved is known only to who asks for it
            backend.run(self._consumer.steps.server_time())
        return backend.node_for(self._consumer.stream) == owner

    def _on_event(self, event: Mapping[str, Any]) -> None:
        entry_id = id_of_event(event, self._consumer.keys.lock_base)
        if entry_id is None:
            return
        self._consumer.recorder.keyspace_notification()
        try:
            self._heard.put_nowait((time.monotonic(), entry_id))
        except queue.Full:
            self._consumer.recorder.keyspace_notification_dropped()

    # Working

    def _work_through(self, backend: Backend) -> None:
        """Have the entries looked at whose locks are gone, as many a call as there are."""
        ids = self._next_ids()
        if not ids:
            return
        try:
            is_done = self._recovery.on_expired(backend, ids) is not None
        except BackendError:
            self._drop(len(ids))
            raise
        if not is_done:
            self._drop(len(ids))

    def _next_ids(self) -> list[bytes]:
        ids: list[bytes] = []
        try:
            while len(ids) < self._consumer.settings.batch:
                heard, entry_id = self._heard.get(timeout=STEP_S) if not ids else self._heard.get_nowait()
                if time.monotonic() - heard > self._patience_s:
                    self._drop(1)
                else:
                    ids.append(entry_id)
        except queue.Empty:
            pass
        return ids

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._consumer.recorder.keyspace_notification_dropped()


def client_of(backend: Backend, owner: tuple[str, int]) -> Any:
    """Return the redis-py client of one server."""
    raw = backend.raw_client()
    if not backend.is_cluster:
        return raw
    node = raw.get_node(*owner)
    if node is None:
        raise redis.ConnectionError(f"{owner[0]}:{owner[1]} is no longer in the cluster")
    return raw.get_redis_connection(node)


def pattern_of(backend: Backend, lock_base: bytes) -> bytes:
    """Return the pattern to subscribe to: all locks of a stream in the used database. A cluster has database 0."""
    pool = getattr(backend.raw_client(), "connection_pool", None)
    database = int(pool.connection_kwargs.get("db") or 0) if pool is not None else 0
    return b"__keyspace@%d__:%s*" % (database, escape_glob(lock_base))


def id_of_event(event: Mapping[str, Any], lock_base: bytes) -> bytes | None:
    """Return the entry whose lock expired, or None for every other pub/sub message."""
    channel, data = event.get("channel"), event.get("data")
    if event.get("type") != "pmessage" or data != b"expired" or not isinstance(channel, bytes):
        return None
    match = re.fullmatch(rb"__keyspace@\d+__:" + re.escape(lock_base) + rb"(\d{1,20}-\d{1,20})", channel)
    return match.group(1) if match else None


def merge_flags(client: Any) -> bool:
    """Add what we need to the server's notification flags; whether it has them afterwards."""
    try:
        answer = client.execute_command("CONFIG", "GET", "notify-keyspace-events")
        if not answer:
            logger.warning("the server does not say whether it tells of expired keys; scans do the work if not")
            return False
        flags = answer[1].decode()
        missing = [flag for flag in NEEDED_FLAGS if flag not in flags and not (flag == "x" and "A" in flags)]
        if missing:
            client.execute_command("CONFIG", "SET", "notify-keyspace-events", flags + "".join(missing))
    except redis.ResponseError as error:
        logger.warning("the server's keyspace events cannot be switched on, scans do the work: %s", error)
        return False
    return True


def escape_glob(text: bytes) -> bytes:
    """Escape a text so that a pattern matches it literally."""
    return re.sub(rb"([*?\[\]\\^])", rb"\\\1", text)
