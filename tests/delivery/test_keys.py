"""The keys beside a stream: their names, and that a cluster keeps them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from millstream.delivery.keys import Keys, can_share_slot, find_tag, shares_slot
from millstream.errors import ConfigError


def beside(keys: Keys) -> list[bytes]:
    """All names that a step may touch."""
    return [
        keys.dead,
        keys.delayed,
        keys.wake,
        keys.meta,
        keys.retries(b"g"),
        keys.lock(b"1-1"),
        keys.producer(b"p{x}"),
        keys.dedupe(b"t{y}"),
    ]


def test_an_untagged_name_becomes_the_tag_as_the_rfc_has_it() -> None:
    keys = Keys(b"orders")
    assert beside(keys)[:6] == [
        b"{orders}:dlq",
        b"{orders}:delayed",
        b"{orders}:wake",
        b"{orders}:meta",
        b"{orders}:retry:g",
        b"lock:{orders}:1-1",
    ]


def test_a_tagged_name_keeps_its_tag() -> None:
    keys = Keys(b"{t}:jobs")
    assert (keys.dead, keys.meta, keys.lock(b"1-1")) == (b"{t}:jobs:dlq", b"{t}:jobs:meta", b"lock:{t}:jobs:1-1")


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        (b"a", None),
        (b"{a}b", b"a"),
        (b"x{a}{b}", b"a"),
        (b"{}a", None),
        (b"{}{a}", None),
        (b"a}b{c}", b"c"),
        (b"{a", None),
        (b"{{a}}", b"{a"),
        (b"a}b", None),
    ],
)
def test_the_tag_is_what_the_server_hashes(name: bytes, tag: bytes | None) -> None:
    assert find_tag(name) == tag
    assert key_slot(name) == key_slot(name if tag is None else b"{" + tag + b"}")


NAMES = st.one_of(st.binary(min_size=1, max_size=12), st.text("{}ab:", min_size=1, max_size=8).map(str.encode))


@given(NAMES)
def test_whatever_can_share_a_slot_does(name: bytes) -> None:
    keys = Keys(name)
    if not can_share_slot(name):
        with pytest.raises(ConfigError, match="braces"):
            keys.require_one_slot()
        return
    keys.require_one_slot()
    assert {key_slot(key) for key in beside(keys)} == {key_slot(name)}


@given(NAMES, NAMES)
def test_a_shared_slot_is_claimed_only_where_it_is_one(one: bytes, other: bytes) -> None:
    if shares_slot(one, other):
        assert key_slot(one) == key_slot(other)


@pytest.mark.parametrize("name", [b"a}b", b"a{}b", b"x{", b"{}", b"}{"])
def test_braces_without_a_tag_are_refused_on_a_cluster_with_the_reason(name: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        Keys(name).require_one_slot()
    assert name.decode() in str(caught.value)
    assert "hash tag" in str(caught.value)


def test_a_dead_letter_stream_of_ones_own() -> None:
    assert Keys(b"orders", b"{stream}:dead").dead == b"{orders}:dead"
    assert Keys(b"{t}:jobs", b"{stream}:dead").dead == b"{t}:jobs:dead"
    Keys(b"{t}:jobs", b"{t}:graves").require_one_slot()
    with pytest.raises(ConfigError, match="graves"):
        Keys(b"orders", b"graves").require_one_slot()


def test_a_stream_needs_a_name() -> None:
    with pytest.raises(ConfigError):
        Keys(b"")
