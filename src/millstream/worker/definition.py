"""What a stream is in a program: names, type, settings, handler. Shared by the blocking and the asyncio `Stream`."""

from __future__ import annotations

import asyncio
import difflib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

from millstream.client.backend import Backend
from millstream.client.calls import Call
from millstream.client.capabilities import Capabilities
from millstream.client.payload import Codec, checked_codec, codec_for
from millstream.client.urls import hide_password, is_same_server
from millstream.clock import elapsed_ms
from millstream.delivery.config import checks
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer, Runs, keys_of
from millstream.delivery.deadletters import DeadLetters
from millstream.delivery.deadletters import RunsCalls as RunsDead
from millstream.delivery.keys import Keys, find_tag, shares_slot
from millstream.delivery.policy import RetryPolicy, Rule
from millstream.delivery.recorder import Recorder, bound
from millstream.delivery.steps import NewEntry, Publication, Published, Publishing, Steps
from millstream.errors import ConfigError
from millstream.worker.handlers import Handler, Middleware, Registered
from millstream.worker.runtime.lease_process import Heart
from millstream.worker.runtime.loop import Worker, require_handler

AT_ONCE = 1000  # entries a publishing step appends


class HasKind(Protocol):
    """What is asked of a backend before it is used."""

    @property
    def is_cluster(self) -> bool: ...


@dataclass(slots=True)
class Producer:
    """Numbers its calls; one is under way at a time."""

    name: bytes
    calls: int = 0


class Producers:
    """Producers that are free: as many as there are calls at the same time."""

    def __init__(self) -> None:
        self._free: list[Producer] = []
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[Producer]:
        producer = self.take()
        yield producer
        self.give_back(producer)

    def take(self) -> Producer:
        """Lend a producer to one caller until it is given back."""
        with self._lock:
            producer = self._free.pop() if self._free else Producer(secrets.token_hex(8).encode())
        producer.calls += 1
        return producer

    def give_back(self, producer: Producer) -> None:
        """Let it be used again. Not one whose call failed: the server may still have its last number."""
        with self._lock:
            self._free.append(producer)


@dataclass
class Definition:
    """Everything that is known before a connection is."""

    owner: Any  # the Stream: it knows its type argument only after it is made
    name: str
    url: str
    group: str
    type: Any
    given_settings: Settings | None
    overrides: Mapping[str, Any]
    recorder: Recorder
    on: Mapping[type[BaseException], Rule]
    as_fields: bool
    maxlen: int | None
    given_codec: Codec[Any] | None = None
    middlewares: list[Middleware] = field(default_factory=list)  # the first one is outermost
    registered: Registered | None = None
    producers: Producers = field(default_factory=Producers)
    watch_ms: Callable[[], int] = elapsed_ms
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # Unix time, for what expires

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        checks.text("group", self.group)
        checks.text("url", self.url)
        if self.maxlen is not None:
            checks.whole("maxlen", self.maxlen, 1)
        if self.given_codec is not None and (self.type is not None or self.as_fields):
            raise ConfigError("codec: replaces `type` and `fields`, so give it without them")
        self.settings = replace(self.given_settings or Settings(), **known_overrides(self.overrides))
        self._url_at_first = self.url  # `millstream worker --url` moves the streams it runs, and not those beside them

    @property
    def keys(self) -> Keys:
        return keys_of(self.name.encode("utf-8", "surrogateescape"), self.settings)

    @cached_property
    def codec(self) -> Codec[Any]:
        """By `codec=`, by `type=`, by Stream[Type] or a subclass of it, else for what JSON knows."""
        if self.given_codec is not None:
            return checked_codec(self.given_codec)
        chosen = self.type
        if chosen is None:
            chosen = self.owner.type_argument() or Any
        return codec_for(chosen, fields=self.as_fields)

    @property
    def policy(self) -> RetryPolicy:
        return self.settings.policy(self.on)

    @property
    def bound_recorder(self) -> Recorder:
        """The recorder for this stream and group, bound once: that may take a while."""
        if self._bound is None or self._bound[0] is not self.recorder:
            self._bound = (self.recorder, bound(self.recorder, self.name, self.group))
        return self._bound[1]

    _bound: tuple[Recorder, Recorder] | None = field(init=False, default=None, compare=False)

    def check(self, backend: HasKind) -> None:
        """Refuse names that the server's kind cannot have."""
        if backend.is_cluster:
            self.keys.require_one_slot()

    def steps(self, capabilities: Capabilities) -> Steps:
        return Steps(
            self.keys, self.group.encode("utf-8", "surrogateescape"), capabilities, self.settings.field_prefix.encode()
        )

    def publishing(self, capabilities: Capabilities) -> Publishing:
        return Publishing(self.keys, capabilities, self.settings.field_prefix.encode())

    def dead_letters(self, backend: RunsDead) -> DeadLetters:
        publishing = self.publishing(backend.capabilities)  # type: ignore[attr-defined]
        return DeadLetters(backend, self.keys, publishing, self.settings.field_prefix.encode())

    def make_consumer(self, backend: Runs) -> Consumer:
        return Consumer(
            backend,
            self.name.encode("utf-8", "surrogateescape"),
            self.group.encode("utf-8", "surrogateescape"),
            self.settings.consumer_name().encode(),
            self.settings,
            self.watch_ms,
            self.recorder,
        )

    def make_worker(self, open_backend: Callable[[], Backend], loop: asyncio.AbstractEventLoop | None = None) -> Worker:
        handler = require_handler(self.registered, self.name)
        return Worker(
            handler,
            self.codec,
            self.policy,
            open_backend,
            self.make_consumer,
            middlewares=self.middlewares,
            loop=loop,
            make_heart=self.make_heart,
            settings=self.settings,
            urls=self.urls,
        )

    def make_heart(self, consumer: Consumer) -> Heart | None:
        """Return the process that also renews leases, if the settings enable it."""
        return Heart(self.url, consumer) if self.settings.heartbeat_process else None

    def register(self, function: Handler | None, concurrency: int, timeout: float | None) -> Any:
        def take(chosen: Handler) -> Handler:
            if self.registered is not None:
                raise ConfigError(f"stream {self.name!r} has a handler already: {self.registered.function!r}")
            self.registered = Registered.of(chosen, concurrency, timeout, self.owner.present)
            return chosen

        return take if function is None else take(function)

    # Producing

    def appends(
        self,
        capabilities: Capabilities,
        values: Iterable[Any],
        delay: float,
        dedupe: Iterable[str] | None,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> Iterator[AbstractContextManager[Call[list[Published]]]]:
        """Yield the calls that publish values; each is entered, sent and left again."""
        if dedupe is not None:  # nothing may be sent before it is known that there is a token for each
            values, dedupe = list(values), _tokens(dedupe)
            if len(values) != len(dedupe):
                raise ConfigError(f"dedupe: has {len(dedupe)} texts for {len(values)} values; it needs one for each")
        entries = self._entries(values, delay, dedupe, ttl, headers)
        while page := list(islice(entries, AT_ONCE)):
            yield self._append(capabilities, page)

    def append_one(
        self,
        run: Callable[[Call[list[Published]]], list[Published]],
        capabilities: Capabilities,
        value: Any,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> Published:
        """Publish one value without a token. Fast path for `appends`; test: tests/worker/test_stream.py."""
        entries = list(self._entries((value,), delay, None, ttl, headers))
        producer = self.producers.take()
        dedupe_ms = round(self.settings.dedupe_window * 1000)
        call = self.publishing(capabilities).append(
            producer.name, producer.calls, entries, maxlen=self.maxlen, dedupe_ms=dedupe_ms, is_kept=False
        )
        (made,) = run(call)
        self.producers.give_back(producer)
        return made

    @contextmanager
    def _append(self, capabilities: Capabilities, page: list[NewEntry]) -> Iterator[Call[list[Published]]]:
        with self.producers.one() as producer:
            yield self.publishing(capabilities).append(
                producer.name,
                producer.calls,
                page,
                maxlen=self.maxlen,
                dedupe_ms=round(self.settings.dedupe_window * 1000),
            )

    def publication(
        self,
        value: Any,
        delay: float,
        dedupe: str | None,
        ttl: float | None,
        headers: Mapping[str, str] | None,
        now_ms: Callable[[], int],
    ) -> Publication:
        """Return an entry that is appended in the step which acknowledges a message."""
        tokens = None if dedupe is None else _tokens([dedupe])
        (entry,) = self._entries([value], delay, tokens, ttl, headers, now_ms)
        return Publication(
            self.keys, entry, self.maxlen, round(self.settings.dedupe_window * 1000), self.bound_recorder
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """Where it is, and where it was said to be."""
        return (self.url, self._url_at_first)

    def require_beside(self, stream: str, urls: Sequence[str], *, is_cluster: bool) -> None:
        """Raise unless one step can touch that stream, which is at the first of these URLs, and this one."""
        if not any(is_same_server(self.url, url) for url in urls):
            raise ConfigError(
                f"{self.name!r} is at {hide_password(self.url)} and {stream!r} at {hide_password(urls[0])}: what is "
                "published with an acknowledgement must be at the same place"
            )
        if not is_cluster:
            return
        self.keys.require_one_slot()
        if not shares_slot(stream.encode(), self.name.encode("utf-8", "surrogateescape")):
            tag = (find_tag(stream.encode()) or stream.encode()).decode()
            raise ConfigError(
                f"{self.name!r} is not in the slot of {stream!r}, and one step cannot touch two slots of a cluster: "
                f"what is published with an acknowledgement needs the same hash tag, such as '{{{tag}}}:{self.name}'"
            )

    def _entries(
        self,
        values: Iterable[Any],
        delay: float,
        dedupe: Iterable[str] | None,
        ttl: float | None,
        headers: Mapping[str, str] | None,
        now_ms: Callable[[], int] | None = None,
    ) -> Iterator[NewEntry]:
        checks.number("delay", delay)
        checks.holds("delay", delay, delay >= 0, "must be 0 seconds or more")
        if ttl is not None:
            checks.number("ttl", ttl)
            checks.holds("ttl", ttl, ttl > 0, "must be above 0 seconds")
        prefix = self.settings.field_prefix.encode()
        extra = [(prefix + b"h." + name.encode(), value.encode()) for name, value in _checked_headers(headers)]
        if ttl is not None:
            expires = (now_ms or self.now_ms)() + round((delay + ttl) * 1000)
            extra.append((prefix + b"expires_at", b"%d" % expires))
        tokens = iter(dedupe) if dedupe is not None else None
        for value in values:
            token = None if tokens is None else next(tokens).encode()
            yield NewEntry([*self.codec.encode(value).items(), *extra], round(delay * 1000), token)


def _tokens(dedupe: Iterable[str]) -> list[str]:
    """Return the checked tokens of published values."""
    if isinstance(dedupe, str):
        raise ConfigError(f"dedupe: must be a list with a text for each value, not the text {dedupe!r}")
    tokens = list(dedupe)
    for token in tokens:
        if not isinstance(token, str) or not token:
            raise ConfigError(f"dedupe: must be text that is not empty, not {token!r}")
    return tokens


def _checked_headers(headers: Mapping[str, str] | None) -> Iterable[tuple[str, str]]:
    if headers is None:
        return ()
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers: must be a dict of texts, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise ConfigError(f"headers: the name {name!r} must be a str, not {type(name).__name__}")
        if not isinstance(value, str):
            raise ConfigError(f"headers[{name!r}]: must be a str, not {type(value).__name__}")
    return headers.items()


def known_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings given by name. Raises an error that names an unknown one."""
    there = tuple(Settings.__dataclass_fields__)
    for name in overrides:
        if name not in there:
            close = difflib.get_close_matches(name, there, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(there)}"
            raise ConfigError(f"{name}: no such setting; {hint}")
    return dict(overrides)
