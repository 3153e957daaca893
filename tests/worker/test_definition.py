"""How a stream is defined: type, codec, handler, middleware, settings. What is wrong is refused by name at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import pytest

from millstream import Codec, ConfigError, MalformedPayload, RecoveryConfig, Stream
from millstream.aio import Stream as AsyncStream
from millstream.delivery.config.settings import Settings, SettingsOverrides
from tests.worker.test_stream import MakeStream, running, until

P = TypeVar("P")


@dataclass
class Order:
    number: int


class Orders(Stream[Order]):
    """A stream that fixes its type."""


class Typed(Stream[P], Generic[P]):
    """A stream that leaves it open."""


class AsyncOrders(AsyncStream[Order]):
    """The same for asyncio."""


# Type and codec


@pytest.mark.parametrize("make", [Orders, Typed[Order], Stream[Order]])
def test_a_subclass_keeps_the_type(url: str, make: Callable[..., Stream[Order]]) -> None:
    with make("orders", url) as stream:
        stream.publish(Order(7))
        with pytest.raises(MalformedPayload):
            stream.publish({"number": 7})  # type: ignore[arg-type]
        assert next(iter(stream.consume(wait=5))).data == Order(7)


def test_a_subclass_for_asyncio_keeps_the_type(url: str) -> None:
    async def main() -> None:
        async with AsyncOrders("orders", url) as stream:
            with pytest.raises(MalformedPayload):
                await stream.publish({"number": 7})  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_codec_of_ones_own_writes_and_reads(url: str) -> None:
    codec = Codec.of(lambda value: json.dumps(value)[::-1].encode(), lambda data: json.loads(data.decode()[::-1]))
    with Stream[Any]("orders", url, codec=codec) as stream:
        stream.publish({"n": 1})
        assert stream.backend.execute("XRANGE", "orders", "-", "+")[0][1] == [b"data", b'}1 :"n"{'[::-1][::-1]]
        assert next(iter(stream.consume(wait=5))).data == {"n": 1}


def test_what_a_codec_cannot_read_is_a_dead_letter(url: str) -> None:
    with Stream[Any]("orders", url, codec=Codec.of(lambda value: b"x", lambda data: {}[data])) as stream:
        stream.publish(1)
        assert list(stream.consume(wait=0.2)) == []
        (letter,) = stream.dead.list()
        assert "refused by the codec (KeyError)" in letter.error


def test_a_codec_that_writes_no_bytes_is_refused(url: str) -> None:
    codec: Codec[Any] = Codec(lambda value: {"data": value}, dict)  # type: ignore[dict-item]
    with Stream[Any]("orders", url, codec=codec) as stream, pytest.raises(MalformedPayload, match="dict of bytes"):
        stream.publish(1)
    with pytest.raises(ConfigError, match=r"^codec: "):
        Stream("orders", url, type=int, codec=Codec.of(str.encode, bytes.decode))


# Handlers


def two_more(data: Any, message: Any, other: Any) -> None: ...


def keyword(data: Any, *, database: Any) -> None: ...


def nothing() -> None: ...


def yields(data: Any) -> Iterator[None]:
    yield


async def atwo_more(data: Any, message: Any, other: Any) -> None: ...


@pytest.mark.parametrize("function", [two_more, keyword, nothing, yields, atwo_more])
def test_a_handler_with_a_wrong_signature_is_refused_by_name(make_stream: MakeStream, function: Any) -> None:
    stream = make_stream()
    with pytest.raises(ConfigError, match=rf"the handler {function.__qualname__}"):
        stream.handler(function)
    with pytest.raises(ConfigError, match=rf"the handler {function.__qualname__}"):
        stream.handler(concurrency=3)(function)


def test_what_is_no_function_is_refused(make_stream: MakeStream) -> None:
    with pytest.raises(ConfigError, match="cannot be a handler"):
        make_stream().handler(7)  # type: ignore[call-overload]


def test_middleware_is_a_chain_in_the_order_in_which_it_is_added(make_stream: MakeStream) -> None:
    stream, said = make_stream(), list[str]()

    @stream.middleware
    def first(call_next: Any, message: Any) -> Any:
        said.append("first")
        result = call_next(message)
        said.append("first again")
        return result

    @stream.middleware
    def second(call_next: Any, message: Any) -> Any:
        said.append("second")
        return call_next(message)

    stream.handler(lambda data: said.append("handler"))
    stream.publish({})
    with running(stream):
        until(lambda: len(said) == 4)
    assert said == ["first", "second", "handler", "first again"]


# Settings


def test_overrides_are_typed_as_the_settings_are() -> None:
    hints, settings = get_type_hints(SettingsOverrides), get_type_hints(Settings)
    assert hints == {name: settings[name] for name in Settings.__dataclass_fields__}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"leese": 3}, r"leese: no such setting; did you mean lease\?"),
        ({"lease": "x"}, r"lease: must be a finite number, not 'x'"),
        ({"max_retries": 1.5}, r"max_retries: must be a whole number"),
        ({"backoff": 3}, r"backoff: must be of type Backoff"),
        ({"heartbeat_process": 1}, r"heartbeat_process: must be true or false"),
        ({"maxlen": 0}, r"maxlen: must be a whole number"),
        ({"group": 7}, r"group: must be text"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Stream("orders", **overrides)


MISTAKES = """
from millstream import Stream
Stream("orders", lease=3.0, max_retries=1)
Stream("orders", leese=3)
Stream("orders", lease="x")
"""


@pytest.mark.long
def test_mypy_finds_wrong_settings(tmp_path: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", tmp_path, tmp_path / "mistakes.py"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert 'mistakes.py:4: error: Unexpected keyword argument "leese"' in errors[0]
    assert 'mistakes.py:5: error: Argument "lease"' in errors[1]


def test_the_rfc_profile_takes_settings_by_name_too() -> None:
    with pytest.raises(TypeError, match="leese"):
        RecoveryConfig().settings(leese=3)  # type: ignore[call-arg]


# Publishing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"headers": {"n": 1}}, r"headers\['n'\]: must be a str, not int"),
        ({"headers": {1: "n"}}, r"headers: the name 1 must be a str"),
        ({"headers": ["n"]}, r"headers: must be a dict of texts, not list"),
        ({"dedupe": 7}, r"dedupe: must be text that is not empty, not 7"),
        ({"dedupe": ""}, r"dedupe: must be text that is not empty"),
        ({"delay": "soon"}, r"delay: must be a finite number, not 'soon'"),
        ({"delay": -1}, r"delay: must be 0 seconds or more"),
        ({"ttl": 0}, r"ttl: must be above 0 seconds"),
    ],
)
def test_a_wrong_option_of_publish_is_refused_and_changes_nothing(
    make_stream: MakeStream, options: dict[str, Any], message: str
) -> None:
    stream = make_stream()
    with pytest.raises(ConfigError, match=message):
        stream.publish({"n": 1}, **options)
    assert stream.audit().published == 0


@pytest.mark.parametrize(
    ("dedupe", "message"),
    [
        ([str(n) for n in range(1999)], r"dedupe: has 1999 texts for 2000 values"),
        ([str(n) for n in range(2001)], r"dedupe: has 2001 texts for 2000 values"),
        ([*[str(n) for n in range(1999)], 7], r"dedupe: must be text"),
        ("abc", r"dedupe: must be a list with a text for each value"),
    ],
)
def test_a_wrong_list_of_tokens_is_refused_and_changes_nothing(
    make_stream: MakeStream, dedupe: Any, message: str
) -> None:
    stream = make_stream()
    with pytest.raises(ConfigError, match=message):
        stream.publish_many(({"n": n} for n in range(2000)), dedupe=dedupe)
    assert stream.audit().published == 0
