"""From a URL to redis-py's clients: the one place that knows which client class serves which kind of place.

Two clients a backend: one for commands that answer at once, with a time limit on the socket, and one for blocking
reads, whose limit is longer than any block. Neither repeats commands by itself: whether a call may be sent twice is
known to the call, not to the client library (its default would resend an XADD ten times).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from millstream.client.urls import ServerUrl
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.client.local_brokers import SharedBroker

MAX_BLOCK_S = 30.0  # no single blocking read is longer; a loop reads again
_TRUE = ("1", "yes", "true", "on")


def wants_weaker(place: ServerUrl) -> bool:
    return place.options.get("accept_weaker", "").lower() in _TRUE


def make_clients(place: ServerUrl, timeout_s: float) -> tuple[Any, Any, Any]:
    """Make the client for commands and the one for blocking reads. Returns both, and what else must be closed."""
    if place.is_embedded:
        held = _broker_of(place)
        options = _common(None) | {"retry": Retry(NoBackoff(), 0)}
        return held.broker.client(**options), held.broker.client(**options), held
    quick, slow = _common(timeout_s), _common(MAX_BLOCK_S + timeout_s, timeout_s)
    return _make(place, quick), _make(place, slow), None


def _broker_of(place: ServerUrl) -> SharedBroker:
    from millstream.client.local_brokers import hold_broker  # the whole engine: only for who has no server

    return hold_broker(place)


def make_async_clients(place: ServerUrl, timeout_s: float) -> tuple[Any, Any, Any]:
    """Do the same as `make_clients`, for asyncio."""
    if place.is_embedded:
        held = _broker_of(place)
        options = _common(None) | {"retry": AsyncRetry(NoBackoff(), 0)}
        return held.broker.aclient(**options), held.broker.aclient(**options), held
    quick, slow = _common(timeout_s), _common(MAX_BLOCK_S + timeout_s, timeout_s)
    return _make_async(place, quick), _make_async(place, slow), None


def _common(read_s: float | None, connect_s: float | None = None) -> dict[str, Any]:
    # as many connections as there are callers: redis-py 8 refuses the 101st, and threads may share a backend
    options: dict[str, Any] = {"decode_responses": False, "protocol": 2, "max_connections": 1 << 31}
    if read_s is not None:
        options |= {"socket_timeout": read_s, "socket_connect_timeout": connect_s or read_s, "socket_keepalive": True}
    return options


def _make(place: ServerUrl, options: dict[str, Any]) -> Any:
    once = Retry(NoBackoff(), 0)
    options = _places_options(place) | options
    if place.is_cluster:
        nodes = [_untyped(ClusterNode)(host, port) for host, port in place.hosts]
        # its own retries only follow the cluster's changes; a command that may have run is not repeated by it
        return RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 3), dynamic_startup_nodes=True, **options)
    if place.scheme.endswith("+sentinel"):
        from redis.sentinel import Sentinel

        name, database = _sentinel_names(place)
        asking = {"socket_timeout": options["socket_connect_timeout"], "retry": once}
        sentinel = _untyped(Sentinel)(list(place.hosts), sentinel_kwargs=asking)
        return sentinel.master_for(name, db=database, retry=once, **options)
    if place.scheme == "unix":
        return redis.Redis(
            unix_socket_path=_socket_path(place),
            db=_database(place),
            retry=once,
            **{k: v for k, v in options.items() if k != "socket_keepalive"},
        )
    (host, port), *_ = place.hosts
    return redis.Redis(host=host, port=port, db=_database(place), retry=once, **options)


def _make_async(place: ServerUrl, options: dict[str, Any]) -> Any:
    once = AsyncRetry(NoBackoff(), 0)
    options = _places_options(place) | options
    if place.is_cluster:
        from redis.asyncio.cluster import ClusterNode as AsyncNode
        from redis.asyncio.cluster import RedisCluster as AsyncCluster

        nodes = [AsyncNode(host, port) for host, port in place.hosts]
        return AsyncCluster(startup_nodes=nodes, retry=AsyncRetry(NoBackoff(), 3), **options)
    if place.scheme.endswith("+sentinel"):
        from redis.asyncio.sentinel import Sentinel as AsyncSentinel

        name, database = _sentinel_names(place)
        asking = {"socket_timeout": options["socket_connect_timeout"], "retry": once}
        sentinel = _untyped(AsyncSentinel)(list(place.hosts), sentinel_kwargs=asking)
        return sentinel.master_for(name, db=database, retry=once, **options)
    if place.scheme == "unix":
        return redis.asyncio.Redis(
            unix_socket_path=_socket_path(place),
            db=_database(place),
            retry=once,
            **{k: v for k, v in options.items() if k != "socket_keepalive"},
        )
    (host, port), *_ = place.hosts
    return redis.asyncio.Redis(host=host, port=port, db=_database(place), retry=once, **options)


def _untyped(made: Any) -> Any:
    """Something of redis-py that has no types."""
    return made


def _places_options(place: ServerUrl) -> dict[str, Any]:
    """Return the options of the URL besides the address: user, password and TLS."""
    options: dict[str, Any] = {"username": place.username, "password": place.password}
    if place.is_tls:
        options["ssl"] = True
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"):
            if name in place.options:
                options[name] = place.options[name]
        if place.options.get("ssl_check_hostname", "").lower() in ("0", "no", "false", "off"):
            options["ssl_check_hostname"] = False
    return options


def _database(place: ServerUrl) -> int:
    text = place.options.get("db") or ("" if place.scheme == "unix" else place.path.strip("/"))
    if text and not text.isdigit():
        raise ConfigError(f"{text!r} is not a database number")
    return int(text or 0)


def _socket_path(place: ServerUrl) -> str:
    if not place.path:
        raise ConfigError("unix:// needs the path of a socket: unix:///run/redis.sock")
    return place.path


def _sentinel_names(place: ServerUrl) -> tuple[str, int]:
    name, _, database = place.path.strip("/").partition("/")
    if not name or (database and not database.isdigit()):
        raise ConfigError("redis+sentinel:// needs the primary's name: redis+sentinel://host:26379/name[/db]")
    return name, int(database or 0)
