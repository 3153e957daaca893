"""Addresses, and what a place knows."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.migration.place import Endpoint, shown


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
