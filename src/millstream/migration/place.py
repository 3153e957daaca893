"""One end of a move: a server, a cluster or a broker in this process, asked in plain commands through redis-py.

Replies come as the wire has them in RESP2: redis-py's own conversions differ between its releases, and hide what
tells one server from another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.cluster import RedisCluster

from millstream.broker.redis_clients import make_client
from millstream.errors import ConfigError
from millstream.server.core.hub import Hub

Word = bytes | str | int
Words = Sequence[Word]

_CLUSTERS: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_SERVERS: Final = ("redis", "rediss", "unix")
_SCAN_COUNT: Final = 500
_BROKERS: dict[str, Hub] = {}  # those of memory:// addresses


class Endpoint:
    """The source or the target of a move."""

    def __init__(self, client: redis.Redis | RedisCluster, name: str) -> None:
        """`name` is for messages and has no password."""
        self.name = name
        self._cluster = client if isinstance(client, RedisCluster) else None
        self._nodes: dict[str, redis.Redis] = {}
        self._only = None if isinstance(client, RedisCluster) else _plain(client.connection_pool)
        self._known: dict[str, bool] = {}

    @classmethod
    def connect(cls, url: str, db: int | None = None) -> Endpoint:
        """Connect to a server by its address: redis://, rediss://, unix://, redis+cluster:// or memory://NAME."""
        scheme = url.partition("://")[0]
        if scheme == "memory":
            hub = _BROKERS.setdefault(url, Hub())
            return cls(make_client(hub, db=db or 0), url)
        if scheme in _CLUSTERS:
            if db:
                raise ConfigError("a cluster has database 0 only")
            return cls(RedisCluster.from_url(_CLUSTERS[scheme] + url[len(scheme) :], protocol=2), shown(url))
        if scheme not in _SERVERS:
            raise ConfigError(f"{shown(url)}: an address begins with redis://, rediss://, unix:// or redis+cluster://")
        client = redis.Redis.from_url(url, protocol=2)
        if db is not None:
            client.connection_pool.connection_kwargs["db"] = db
        return cls(client, shown(url))

    @classmethod
    def of_hub(cls, hub: Hub, db: int = 0, name: str = "memory://") -> Endpoint:
        """Return the endpoint of a broker in this process."""
        return cls(make_client(hub, db=db), name)

    # Asking

    def at(self, key: bytes) -> redis.Redis:
        """Return the server that has a key."""
        if self._only is not None:
            return self._only
        cluster: Any = self._cluster
        return self._node(cluster.get_node_from_key(key))

    def nodes(self) -> list[redis.Redis]:
        """Return all servers that hold keys: one, or the primaries of a cluster."""
        if self._cluster is None:
            return [cast(redis.Redis, self._only)]
        cluster: Any = self._cluster
        return [self._node(node) for node in cluster.get_primaries()]

    def _node(self, node: Any) -> redis.Redis:
        found = self._nodes.get(node.name)
        if found is None:
            assert self._cluster is not None
            pool = self._cluster.get_redis_connection(node).connection_pool
            found = self._nodes[node.name] = _plain(pool)
        return found

    def ask(self, key: bytes, *words: Word) -> Any:
        """Send one command about a key. Returns the reply."""
        return _ask(self.at(key), *words)

    def ask_all(self, key: bytes, commands: Iterable[Words], *, atomic: bool = False, strict: bool = True) -> list[Any]:
        """Send commands about one key together. Returns their replies; unless strict, errors are among them."""
        return _send(self.at(key), commands, atomic=atomic, strict=strict)

    def ask_each(self, keys: Sequence[bytes], *words: Word) -> list[Any]:
        """Send a command for each key, which is appended to it. Returns the replies in key order, errors included."""
        return self.ask_many([(key, (*words, key)) for key in keys])

    def ask_many(self, commands: Sequence[tuple[bytes, Words]]) -> list[Any]:
        """Send commands, each about the key beside it. Returns the replies in their order, errors included."""
        by_client: dict[int, tuple[redis.Redis, list[int]]] = {}
        for place, (key, _) in enumerate(commands):
            client = self.at(key)
            by_client.setdefault(id(client), (client, []))[1].append(place)
        replies: list[Any] = [None] * len(commands)
        for client, places in by_client.values():
            answers = _send(client, [commands[place][1] for place in places], strict=False)
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer
        return replies

    def ask_nodes(self, *words: Word) -> list[Any]:
        """Send a command without a key to all servers. Returns their replies."""
        return [_ask(node, *words) for node in self.nodes()]

    # What there is

    def keys(self, match: str | None = None) -> Iterator[bytes]:
        """Yield every key once, server by server."""
        options: list[Word] = ["MATCH", match] if match else []
        for client in self.nodes():
            seen: set[bytes] = set()
            cursor: bytes = b"0"
            while True:
                cursor, found = _ask(client, "SCAN", cursor, "COUNT", _SCAN_COUNT, *options)
                yield from (key for key in found if key not in seen)
                seen.update(found)
                if cursor == b"0":
                    break

    def knows(self, command: str) -> bool:
        """Return whether the server has a command."""
        if command not in self._known:
            try:
                reply = _ask(self.nodes()[0], "COMMAND", "INFO", command)
            except redis.ResponseError:  # renamed or forbidden: what cannot be asked for is not relied on
                reply = []
            self._known[command] = bool(reply and reply[0])
        return self._known[command]

    def is_same(self, other: Endpoint) -> bool:
        """Return whether both lead to the same keys: a server in common and the same database."""
        return self._database() == other._database() and bool(self._run_ids() & other._run_ids())

    def _database(self) -> int:
        return 0 if self._only is None else int(self._only.connection_pool.connection_kwargs.get("db") or 0)

    def _run_ids(self) -> set[str]:
        """Return the ids of the server processes; where INFO is forbidden, the name that was given."""
        try:
            texts = self.ask_nodes("INFO", "server")
        except redis.ResponseError:
            return {self.name}
        found = {id_ for text in texts for id_ in re.findall(r"^run_id:(\S+)", _text(text), re.MULTILINE)}
        return found or {self.name}

    def close(self) -> None:
        """Close all connections."""
        for client in self.nodes():
            client.connection_pool.disconnect()


def _plain(pool: Any) -> redis.Redis:
    """Return a client that does not convert replies."""
    pool.connection_kwargs["protocol"] = 2
    client = redis.Redis(connection_pool=pool)
    client.response_callbacks.clear()
    return client


def _text(reply: object) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def _ask(client: Any, *words: Word) -> Any:
    return client.execute_command(*words)


def _send(client: redis.Redis, commands: Iterable[Words], *, atomic: bool = False, strict: bool = True) -> list[Any]:
    pipe: Any = client.pipeline(transaction=atomic)
    with pipe:
        for words in commands:
            pipe.execute_command(*words)
        return list(pipe.execute(raise_on_error=strict))


def shown(url: str) -> str:
    """Return an address without its password and its options."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if at:
        user = user.partition(":")[0]
        host = f"{user}@{host}" if user else host
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """Return a map from its RESP2 form: names and values in turn."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
