"""XDEL (base §7.5)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, ID_TOO_SMALL, WRONG_TYPE, Engine, arity


def test_xdel_answers_how_many_it_deleted(e: Engine) -> None:
    e.stream(5)
    assert e("XDEL", "s", "2-0", "4-0", "9-0") == 2
    assert e.live() == ["1-0", "3-0", "5-0"]


def test_a_repeated_id_is_deleted_once(e: Engine) -> None:
    e.stream(2)
    assert e("XDEL", "s", "1-0", "1-0") == 1


def test_ids_are_not_parsed_without_a_stream(e: Engine) -> None:
    """Base §7.5: a missing key and WRONGTYPE come before the ids."""
    assert e("XDEL", "s", "nonsense") == 0
    e("SET", "str", "x")
    assert e.error("XDEL", "str", "nonsense") == WRONG_TYPE


@pytest.mark.parametrize("bad", ["x", "-", "+", "5-*"])
def test_one_bad_id_deletes_nothing(e: Engine, bad: str) -> None:
    e.stream(2)
    assert e.error("XDEL", "s", "1-0", bad) == BAD_ID
    assert e.live() == ["1-0", "2-0"]


def test_deleting_the_last_entry_does_not_lower_the_last_id(e: Engine) -> None:
    """Base §7.5, trap."""
    e.stream(3)
    e("XDEL", "s", "3-0")
    assert e.info()["last-generated-id"] == "3-0"
    assert e.error("XADD", "s", "3-0", "f", "v") == ID_TOO_SMALL


def test_a_partial_id_means_seq_zero_only(e: Engine) -> None:
    """Base §7.5, trap."""
    e("XADD", "s", "5-0", "f", "v")
    e("XADD", "s", "5-1", "f", "v")
    assert e("XDEL", "s", "5") == 1
    assert e.live() == ["5-1"]


def test_the_highest_deleted_id_is_a_maximum(e: Engine) -> None:
    """Base §7.5, trap: not the latest."""
    e.stream(5)
    e("XDEL", "s", "4-0")
    e("XDEL", "s", "2-0")
    assert e.info()["max-deleted-entry-id"] == "4-0"


def test_the_first_id_follows_the_live_entries(e: Engine) -> None:
    e.stream(3)
    e("XDEL", "s", "2-0")
    assert e.info()["recorded-first-entry-id"] == "1-0"
    e("XDEL", "s", "1-0")
    assert e.info()["recorded-first-entry-id"] == "3-0"
    e("XDEL", "s", "3-0")
    info = e.info()
    assert info["recorded-first-entry-id"] == "0-0"
    assert (info["entries-added"], info["length"], info["first-entry"], info["last-entry"]) == (3, 0, None, None)


def test_an_emptied_stream_stays_with_its_groups(e: Engine) -> None:
    """Base §3: a stream is never removed because it became empty."""
    e.stream(1, "g")
    e("XDEL", "s", "1-0")
    assert (e("EXISTS", "s"), e("TYPE", "s")) == (1, "stream")
    assert e.group_info()["name"] == "g"


def test_pending_entries_outlive_their_messages(e: Engine) -> None:
    """Base §3, §7.5: PELs are unchanged."""
    e.stream(2, "g")
    e.deliver("g", "c")
    e("XDEL", "s", "1-0")
    assert e.owners() == {"1-0": "c", "2-0": "c"}


def test_xdel_needs_an_id(e: Engine) -> None:
    assert e.error("XDEL", "s") == arity("xdel")
