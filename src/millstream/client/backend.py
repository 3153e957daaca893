"""A place with streams, for blocking code: `run(call)` sends a call to whoever has its key and reads the reply.

What a call may be is in `calls`; what redis-py client does the sending, in `connecting`. This module adds what no
client library knows: that steps may be sent again after a lost reply, that a script may have to be sent whole, and
one error vocabulary for every server. Threads may share a backend; a child of fork may not use its parent's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException
from redis.sentinel import SentinelConnectionPool

from millstream.client.calls import Call, Inside, Word, as_is
from millstream.client.capabilities import Capabilities, detect
from millstream.client.connecting import make_clients, wants_weaker
from millstream.client.urls import ServerUrl, hide_password, parse_url
from millstream.errors import ConfigError, ServerReplied, Unavailable

T = TypeVar("T")
PROBE_KEY = b"millstream:no-such-key"
RESENDS = 4  # with the pauses below: about a second, then the caller decides
FIRST_PAUSE_S = 0.05
MOST_NAMED_KEYS = 7  # in an error; as many as a settlement has beside those of entries


def connect(url: str, *, timeout_s: float = 5.0, accept_weaker: bool = False) -> Backend:
    """Connect to the streams at a URL (see `client.urls`), for blocking code.

    Fails at once with what is wrong: the URL, the server, the password, or a server that cannot run scripts.
    """
    place = parse_url(url)
    return Backend(place, url, timeout_s=timeout_s, accept_weaker=accept_weaker or wants_weaker(place))


class Backend:
    """Streams at one place. Made by `connect`."""

    def __init__(self, place: ServerUrl, url: str, *, timeout_s: float, accept_weaker: bool) -> None:
        self.place = place
        self.url = hide_password(url)
        self._is_closed = False
        self._client, self._blocking_client, self._held = self._translated(lambda: make_clients(place, timeout_s))
        self._direct = None if self._held is None else self._held.direct_client(ServerReplied)
        answer_raw(self._client)
        answer_raw(self._blocking_client)
        try:
            self.capabilities: Capabilities = detect(self._ask, PROBE_KEY)
            self.capabilities.require_scripts(accept_weaker)
        except BaseException:
            self.close()
            raise

    @property
    def is_cluster(self) -> bool:
        return self.place.is_cluster

    def run(self, call: Call[T]) -> T:
        """Send a call; again after a lost reply if it can bear that."""
        if self._is_closed:
            raise Unavailable(f"{self.url}: this backend is closed")
        if call.block_ms is not None:
            return self._send(self._blocking_client, call)
        for attempt in range(RESENDS):
            try:
                return self._send(self._client, call)
            except Unavailable:
                if not call.can_resend or attempt == RESENDS - 1:
                    raise
            time.sleep(pause_s(attempt))
        raise AssertionError("unreachable")

    def execute(self, *words: Word, key: bytes | str | None = None) -> Any:
        """Any command, its RESP2 reply as it came; `key` when it is not the second word. Never sent twice."""
        return self.run(Call(words, route(words, key), as_is, can_resend=False))

    def node_for(self, key: bytes | str) -> tuple[str, int]:
        """Host and port of the server that has a key; for those who open sockets of their own."""
        if self.is_cluster:
            node = self._translated(lambda: self._client.get_node_from_key(key))
            return str(node.host), int(node.port)
        pool = self._client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            host, port = self._translated(pool.get_master_address)
            return str(host), int(port)
        options = pool.connection_kwargs
        return str(options.get("host", "")), int(options.get("port", 0))

    def each_node(self, *words: Word) -> list[Any]:
        """Send a command without a key to all primaries. Returns their replies."""
        if not self.is_cluster:
            return [self.execute(*words, key=b"")]
        return [
            self._translated(lambda node=node: node.redis_connection.execute_command(*words))
            for node in self._client.get_primaries()
        ]

    def scan(self, *words: Word) -> Iterator[bytes]:
        """All keys that SCAN finds with these words (MATCH, TYPE, COUNT), of every primary; some may come twice."""
        nodes = self._client.get_primaries() if self.is_cluster else []
        senders = [node.redis_connection for node in nodes] or [self._client]
        for sender in senders:
            cursor: Any = b"0"
            while True:
                cursor, names = self._translated(
                    lambda sender=sender, cursor=cursor: sender.execute_command("SCAN", cursor, *words)
                )
                yield from names
                if int(cursor) == 0:
                    break

    def reset_topology(self) -> None:
        """Learn the cluster's shape anew; never needed, as MOVED answers do the same."""
        if self.is_cluster:
            for client in (self._client, self._blocking_client):
                client.nodes_manager.initialize()

    def raw_client(self) -> Any:
        """Return the redis-py client underneath, for subscriptions, which are no calls. Replies are raw RESP2."""
        return self._client

    def close(self) -> None:
        """Close the connections, also those that wait; a broker in this process ends with its last user."""
        self._is_closed = True
        if self._direct is not None:
            self._direct.close()
        self._client.close()
        self._blocking_client.close()
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Backend {self.url}>"

    def _send(self, client: Any, call: Call[T]) -> T:
        if self._direct is not None and call.inside is not None:
            made = self._run_inside(self._direct, call.inside)
            if made is not None:
                return made
        try:
            return call.parse(self._reply(client, call.argv, call.key))
        except ServerReplied as error:
            whole = whole_script(call, error)
        return call.parse(self._reply(client, whole, call.key))

    def _run_inside(self, direct: Any, step: Callable[[Inside], T | None]) -> T | None:
        """Fast path for a call to a broker in this process. Test: tests/delivery/test_inside.py."""
        try:
            made: T | None = direct.inside(step)
        except OSError as error:
            raise Unavailable(f"{self.url}: {error}") from error
        return made

    def _reply(self, client: Any, argv: Sequence[Word], key: bytes) -> Any:
        if self._direct is None:
            return self._translated(lambda: client.execute_command(*argv, **self._target(client, key)))
        try:
            return self._direct.execute(argv)
        except OSError as error:
            raise Unavailable(f"{self.url}: {error}") from error

    def _target(self, client: Any, key: bytes) -> dict[str, Any]:
        return {"target_nodes": client.get_node_from_key(key)} if self.is_cluster and key else {}

    def _translated(self, send: Any) -> Any:
        try:
            return send()
        except (redis.RedisError, RedisClusterException) as error:
            raise translated(error, self.url) from error
        except OSError as error:
            raise Unavailable(f"{self.url}: {error}") from error

    def _ask(self, words: Sequence[Word]) -> Any:
        try:
            return self.execute(*words, key=PROBE_KEY)
        except ServerReplied as error:
            return error


def route(words: Sequence[Word], key: bytes | str | None) -> bytes:
    """Return the key that decides the shard: given, or the word after the command."""
    found = key if key is not None else words[1] if len(words) > 1 else b""
    return found if isinstance(found, bytes) else str(found).encode()


def pause_s(attempt: int) -> float:
    """How long to wait before sending again; spread, so that a fleet does not come back as one."""
    return FIRST_PAUSE_S * float(2**attempt) * (0.5 + random.random())


def whole_script(call: Call[Any], error: ServerReplied) -> tuple[Word, ...]:
    """Return what to send to a server that does not know the script; raise every other error.

    A server does not say which key a user may not touch, or is in another slot, so the error names the keys.
    """
    is_about_keys = error.code == "CROSSSLOT" or (error.code == "NOPERM" and " key" in str(error))
    if call.script is not None and is_about_keys:
        keys = call.argv[3 : 3 + int(call.argv[2])][:MOST_NAMED_KEYS]
        names = ", ".join(key.decode("utf-8", "replace") for key in keys if isinstance(key, bytes))
        raise ServerReplied(f"{error}; this step needs all of {names}") from error
    if call.script is None or error.code != "NOSCRIPT":
        raise error
    return ("EVAL", call.script.source, *call.argv[2:])


def translated(error: Exception, url: str) -> Exception:
    """redis-py's exception in our words. Its classes strip some code words from the text: they are put back."""
    if isinstance(error, RedisClusterException):
        if isinstance(error.__cause__, redis.AuthenticationError):  # no node lets us in: not the same as none is there
            error = error.__cause__
        elif "Cluster mode is not enabled" in str(error):
            return ConfigError(f"{url}: the server there is no cluster; use redis:// or rediss://")
    text = str(error)
    code = getattr(error, "status_code", None)  # where redis-py tells it; else by its class
    if code is None:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    is_reply = isinstance(error, (redis.ResponseError, redis.AuthenticationError, redis.BusyLoadingError))
    if not is_reply:
        return Unavailable(f"{url}: {text}")
    if code == "NOAUTH" and "username-password" in text:
        code = "WRONGPASS"
    if code is None:
        code = "" if text.split(" ", 1)[0].isupper() else "ERR"
    return ServerReplied(text if not code or text.startswith(f"{code} ") else f"{code} {text}")


_CODES: list[tuple[type[redis.RedisError], str]] = [
    (redis.exceptions.NoScriptError, "NOSCRIPT"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.AuthenticationError, "NOAUTH"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.ClusterCrossSlotError, "CROSSSLOT"),
]


_OWN_USE = ("CLUSTER", "COMMAND", "READONLY", "READWRITE", "ASKING")  # what a cluster client asks for itself


def answer_raw(client: Any) -> None:
    """Take redis-py's reply conversions off: our calls read replies as the protocol gives them."""
    for tables in ("response_callbacks", "cluster_response_callbacks"):
        table: dict[str, Any] = getattr(client, tables, {})
        for name in [name for name in table if not name.startswith(_OWN_USE)]:
            table.pop(name)
    if isinstance(client, RedisCluster):  # a client a node, made when the node is first seen
        nodes: Any = client.nodes_manager
        make = nodes.create_redis_node

        def make_raw(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            answer_raw(made)
            return made

        nodes.create_redis_node = make_raw
        for node in nodes.nodes_cache.values():
            if node.redis_connection is not None:
                answer_raw(node.redis_connection)
