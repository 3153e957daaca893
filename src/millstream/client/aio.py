"""A place with streams, for asyncio: `Backend` with the same words, each awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import redis
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import RedisClusterException

from millstream.client.backend import PROBE_KEY, RESENDS, answer_raw, pause_s, route, translated, whole_script
from millstream.client.calls import Call, Word, as_is
from millstream.client.capabilities import Capabilities, denials, judge, questions
from millstream.client.connecting import make_async_clients, wants_weaker
from millstream.client.urls import ServerUrl, hide_password, parse_url
from millstream.errors import ServerReplied, Unavailable

T = TypeVar("T")


async def aconnect(url: str, *, timeout_s: float = 5.0, accept_weaker: bool = False) -> AsyncBackend:
    """Connect to the streams at a URL, for asyncio; as `connect`."""
    place = parse_url(url)
    backend = AsyncBackend(place, url, timeout_s=timeout_s)
    try:
        await backend.probe(accept_weaker or wants_weaker(place))
    except BaseException:
        await backend.close()
        raise
    return backend


class AsyncBackend:
    """Streams at one place. Made by `aconnect`."""

    capabilities: Capabilities

    def __init__(self, place: ServerUrl, url: str, *, timeout_s: float) -> None:
        self.place = place
        self.url = hide_password(url)
        self._is_closed = False
        self._client, self._blocking_client, self._held = make_async_clients(place, timeout_s)
        answer_raw(self._client)
        answer_raw(self._blocking_client)

    @property
    def is_cluster(self) -> bool:
        return self.place.is_cluster

    async def probe(self, accept_weaker: bool) -> None:
        """Find out what the server can do."""
        answers: dict[str, Any] = {}
        for name, words in questions(PROBE_KEY).items():
            try:
                answers[name] = await self.execute(*words, key=PROBE_KEY)
            except ServerReplied as error:
                answers[name] = error
        self.capabilities = judge(answers, denials(answers))
        self.capabilities.require_scripts(accept_weaker)

    async def run(self, call: Call[T]) -> T:
        """Send a call; again after a lost reply if it can bear that."""
        if self._is_closed:
            raise Unavailable(f"{self.url}: this backend is closed")
        if call.block_ms is not None:
            return call.parse(await self._send(self._blocking_client, call))
        for attempt in range(RESENDS):
            try:
                return call.parse(await self._send(self._client, call))
            except Unavailable:
                if not call.can_resend or attempt == RESENDS - 1:
                    raise
            await asyncio.sleep(pause_s(attempt))
        raise AssertionError("unreachable")

    async def execute(self, *words: Word, key: bytes | str | None = None) -> Any:
        """Any command, its RESP2 reply as it came; `key` when it is not the second word. Never sent twice."""
        return await self.run(Call(words, route(words, key), as_is, can_resend=False))

    async def node_for(self, key: bytes | str) -> tuple[str, int]:
        """Host and port of the server that has a key; for those who open sockets of their own."""
        await self._ready(self._client)
        if self.is_cluster:
            node = self._client.get_node_from_key(key)
            return str(node.host), int(node.port)
        pool = self._client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            host, port = await self._translated(pool.get_master_address)
            return str(host), int(port)
        return str(pool.connection_kwargs.get("host", "")), int(pool.connection_kwargs.get("port", 0))

    async def each_node(self, *words: Word) -> list[Any]:
        """Send a command without a key to all primaries. Returns their replies."""
        if not self.is_cluster:
            return [await self.execute(*words, key=b"")]
        await self._ready(self._client)
        return [await self._translated(partial(node.execute_command, *words)) for node in self._client.get_primaries()]

    async def reset_topology(self) -> None:
        """Learn the cluster's shape anew; never needed, as MOVED answers do the same."""
        if self.is_cluster:
            for client in (self._client, self._blocking_client):
                await self._ready(client)
                await self._translated(client.nodes_manager.initialize)

    def raw_client(self) -> Any:
        """Return the redis-py client underneath, for subscriptions, which are no calls. Replies are raw RESP2."""
        return self._client

    async def close(self) -> None:
        """Close the connections, also those that wait; a broker in this process ends with its last user."""
        self._is_closed = True
        await self._client.aclose()
        await self._blocking_client.aclose()
        if self._held is not None:
            self._held.close()
            self._held = None

    async def __aenter__(self) -> AsyncBackend:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncBackend {self.url}>"

    async def _send(self, client: Any, call: Call[Any]) -> Any:
        await self._ready(client)
        try:
            return await self._sent(client, call.argv, call.key)
        except ServerReplied as error:
            whole = whole_script(call, error)
        return await self._sent(client, whole, call.key)

    async def _sent(self, client: Any, words: Sequence[Word], key: bytes) -> Any:
        async def send() -> Any:
            return await client.execute_command(*words, **self._target(client, key))

        return await self._translated(send)

    async def _ready(self, client: Any) -> None:
        if self.is_cluster:
            await self._translated(client.initialize)  # does nothing the second time

    def _target(self, client: Any, key: bytes) -> dict[str, Any]:
        return {"target_nodes": client.get_node_from_key(key)} if self.is_cluster and key else {}

    async def _translated(self, send: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return await send()
        except (redis.RedisError, RedisClusterException) as error:
            raise translated(error, self.url) from error
        except OSError as error:
            raise Unavailable(f"{self.url}: {error}") from error
