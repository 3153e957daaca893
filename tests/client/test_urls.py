"""What a URL says, and what is said about one that cannot be used."""

from __future__ import annotations

import pytest

from millstream.client import connect
from millstream.client.urls import ServerUrl, hide_password, parse_url
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory://", ServerUrl("memory")),
        ("memory://jobs", ServerUrl("memory", path="jobs")),
        ("memory://Two/Parts", ServerUrl("memory", path="Two/Parts")),
        ("file:///var/lib/x", ServerUrl("file", path="/var/lib/x")),
        ("file:///a%20b?appendfsync=no", ServerUrl("file", path="/a b", options={"appendfsync": "no"})),
        ("redis://", ServerUrl("redis", (("localhost", 6379),))),
        ("redis://h", ServerUrl("redis", (("h", 6379),))),
        ("redis://h:1/2", ServerUrl("redis", (("h", 1),), "/2")),
        ("redis://[::1]:7", ServerUrl("redis", (("::1", 7),))),
        ("redis://[::1]", ServerUrl("redis", (("::1", 6379),))),
        ("rediss://u:p%2Fq@h", ServerUrl("rediss", (("h", 6379),), username="u", password="p/q")),
        ("redis://:p@h", ServerUrl("redis", (("h", 6379),), password="p")),
        ("redis://:p@q@h", ServerUrl("redis", (("h", 6379),), password="p@q")),
        ("unix:///run/s.sock?db=3", ServerUrl("unix", (("localhost", 6379),), "/run/s.sock", options={"db": "3"})),
        ("redis+cluster://a,b:2", ServerUrl("redis+cluster", (("a", 6379), ("b", 2)))),
        ("redis+sentinel://a,b:2/main/4", ServerUrl("redis+sentinel", (("a", 26379), ("b", 2)), "/main/4")),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: ServerUrl) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "localhost:6379",
        "http://h",
        "REDIS//h",
        "file://",
        "file:///",
        "file://relative/path",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:x",
        "redis://h/nine",
        "unix://",
        "unix://relative",
        "redis+sentinel://h",
        "redis+sentinel://h/name/x",
        "file:///tmp/x?appendfsync=sometimes",
    ],
)
def test_a_bad_url_is_refused_before_anything_is_opened(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hush@h:1",
        "redis://:hush@h",
        "redis://:hu/hush@h",
        "redis://me:hush/1?x@h:7",
        "redis://:hush#a@h:x",
        "http://me:hush@h",
        "redis+cluster://me:hush@a,b",
        "redis://me:hush:hush@h/0",
    ],
)
def test_no_message_holds_a_password(url: str) -> None:
    assert "hush" not in hide_password(url)
    assert "hush" not in _shown(url)


def _shown(url: str) -> str:
    try:
        return repr(parse_url(url))
    except ConfigError as error:
        return str(error)


def test_a_url_without_a_password_is_shown_whole() -> None:
    for url in ("redis://h:1/2?a=b", "redis://me@h", "memory://x", "unix:///run/s"):
        assert hide_password(url) == url
