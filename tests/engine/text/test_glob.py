from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.text import glob


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (b"", [b""], [b"a"]),
        (b"abc", [b"abc"], [b"ab", b"abcd", b"ABC", b""]),
        (b"a*", [b"a", b"ab", b"a\nb"], [b"ba", b""]),
        (b"*a", [b"a", b"ba", b"aa"], [b"ab", b""]),
        (b"a*b*c", [b"abc", b"aXbYc", b"abbcc", b"abcbc"], [b"ac", b"abcd", b"acb"]),
        (b"a?c", [b"abc", b"a\nc", b"a\xffc"], [b"ac", b"abbc"]),
        (b"h[ae]llo", [b"hallo", b"hello"], [b"hillo", b"hllo"]),
        (b"h[^e]llo", [b"hallo", b"h^llo"], [b"hello", b"hllo"]),
        (b"[a-c]", [b"a", b"b", b"c"], [b"d", b"-", b""]),
        (b"[c-a]", [b"a", b"b", b"c"], [b"d"]),
        (b"[a-]", [b"]", b"a", b"^", b"`"], [b"-", b"b"]),
        (b"[a\\]b]", [b"a", b"]", b"b"], [b"\\", b"c"]),
        (b"[abc", [b"a", b"b", b"c"], [b"[", b"d", b"abc"]),
        (b"[", [], [b"[", b"", b"a"]),
        (b"[]", [], [b"[]", b"a", b""]),
        (b"[^]", [b"a", b"]", b"\n"], [b"", b"ab"]),
        (b"\\*", [b"*"], [b"a", b"\\*"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"\\a\\[", [b"a["], [b"a"]),
        (b".+(x|y)$", [b".+(x|y)$"], [b"ax"]),
    ],
)
def test_a_pattern_fits_these_and_not_those(pattern: bytes, fitting: list[bytes], others: list[bytes]) -> None:
    assert [text for text in fitting if not glob.matches(pattern, text)] == []
    assert [text for text in others if glob.matches(pattern, text)] == []


def test_stars_fit_everything_but_nothing() -> None:
    for stars in (b"*", b"**", b"***"):
        assert glob.matches(stars, b"a")
        assert glob.matches(stars, b"\n")
        assert not glob.matches(stars, b"")


def test_case_can_be_ignored() -> None:
    assert glob.matches(b"MAX*", b"maxmemory", ignore_case=True)
    assert glob.matches(b"[a-c]X", b"Bx", ignore_case=True)
    assert not glob.matches(b"MAX*", b"maxmemory")


def _naive(pattern: bytes, text: bytes) -> bool:
    """The rules, one after the other, by trying everything."""
    if not pattern:
        return not text
    if pattern[:1] == b"*":
        return any(_naive(pattern[1:], text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    if pattern[:1] == b"?":
        return _naive(pattern[1:], text[1:])
    if pattern[:1] == b"[" and b"]" in pattern:
        inside, _, rest = pattern[1:].partition(b"]")
        negated = inside.startswith(b"^")
        return (text[:1] in inside[negated:]) != negated and _naive(rest, text[1:])
    return pattern[:1] == text[:1] and _naive(pattern[1:], text[1:])


ELEMENTS = st.sampled_from([b"a", b"b", b"*", b"?", b"[ab]", b"[^a]", b"*"])


@given(
    st.lists(ELEMENTS, max_size=8).map(b"".join),
    st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8).map(b"".join),
)
def test_it_agrees_with_trying_everything(pattern: bytes, text: bytes) -> None:
    stars_alone = bool(pattern) and not pattern.strip(b"*")
    expected = bool(text) if stars_alone else _naive(pattern, text)
    assert glob.matches(pattern, text) == expected


@given(st.binary(max_size=12), st.binary(max_size=6))
def test_any_bytes_are_a_pattern(pattern: bytes, text: bytes) -> None:
    glob.matches(pattern, text)


@pytest.mark.parametrize(
    "pattern", [b"*a" * 30 + b"b", b"a*" * 500 + b"b", b"?*" * 500 + b"b", b"*" + b"a" * 500 + b"b*"]
)
def test_many_stars_do_not_blow_up(pattern: bytes) -> None:
    started = time.process_time()
    assert not glob.matches(pattern, b"a" * 20_000)
    assert time.process_time() - started < 5


def test_a_monstrous_pattern_is_not_compiled_for_short_texts() -> None:
    started = time.process_time()
    assert not glob.matches(b"[^a]" * 100_000, b"b" * 100)
    assert time.process_time() - started < 5
