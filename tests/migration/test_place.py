"""Addresses, and what a place knows."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from millstream.errors import ConfigError
from millstream.migration.place import Endpoint, shown
from millstream.migration.values import pages


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:secret@localhost:6379", "redis://localhost:6379"),
        ("rediss://anna:secret@localhost:6379?password=secret", "rediss://anna@localhost:6379"),
        ("redis+cluster://anna:s@crt@node", "redis+cluster://anna@node"),
    ],
)
def test_a_password_is_not_shown(url: str, text: str) -> None:
    assert shown(url) == text


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="an address begins with"):
        Endpoint.connect("http://localhost")


def test_a_cluster_has_one_database() -> None:
    with pytest.raises(ConfigError, match="database 0 only"):
        Endpoint.connect("redis+cluster://localhost", 1)


def test_a_memory_place_is_the_same_broker_each_time() -> None:
    Endpoint.connect("memory://same").ask(b"k", "SET", "k", "v")
    assert Endpoint.connect("memory://same").ask(b"k", "GET", "k") == b"v"
    assert list(Endpoint.connect("memory://other").keys()) == []


def test_a_place_says_which_commands_it_knows() -> None:
    place = Endpoint.connect("memory://")
    assert place.knows("xnack")
    assert not place.knows("xwhatever")


def test_a_large_value_is_read_in_pages_at_a_constant_cost_a_page() -> None:
    with closing(Endpoint.connect("memory://large")) as place:
        for first in range(0, 160_000, 1_000):
            place.ask(b"set", "SADD", "set", *range(first, first + 1_000))
            place.ask(b"hash", "HSET", "hash", *(word for n in range(first, first + 1_000) for word in (n, n)))
        started = time.monotonic()
        assert len({word for page in pages(place, b"set", "set") for word in page}) == 160_000
        assert len({word for page in pages(place, b"hash", "hash") for word in page}) == 160_000
        assert time.monotonic() - started < 30  # under a second on a quiet machine; 0.1.0 took 75 s
