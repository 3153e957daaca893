"""Bytes to requests: each input whole, a byte at a time, and cut at odd places."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.server.protocol.resp import RequestDecoder
from tests.support.wire import pack

PING = pack([b"PING"])
MANY = PING * 60  # longer than what is split: goes to hiredis


def decode(data: bytes, step: int, decoder: RequestDecoder | None = None) -> list[list[bytes] | str]:
    """The requests in `data`, fed in pieces, and at the end the text of the protocol error if there is one."""
    decoder = decoder or RequestDecoder()
    found: list[list[bytes] | str] = []
    try:
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
            while (request := decoder.next()) is not None:
                found.append(request)
    except ProtocolError as error:
        found.append(str(error))
    return found


FOREIGN = [bytes([mark]) for mark in b"+-:,#(_~>%|=!.$"]  # a header with one of these is an inline request
GOOD = [
    (PING, [[b"PING"]]),
    (b"PING\r\n", [[b"PING"]]),
    (b"PING\n", [[b"PING"]]),
    (b"\r\n \r\nPING\r\n", [[b"PING"]]),
    (b"*0\r\n*-1\r\n*-5\r\n" + PING, [[b"PING"]]),
    (b"$4\r\nPING\r\n", [[b"$4"], [b"PING"]]),
    (PING + b"ECHO x\r\n" + PING, [[b"PING"], [b"ECHO", b"x"], [b"PING"]]),
    (pack([b"ECHO", b"a\r\nb"]), [[b"ECHO", b"a\r\nb"]]),
    (pack([b"ECHO", b""]), [[b"ECHO", b""]]),
    (pack([b"ECHO", b"x" * 3000]) + PING, [[b"ECHO", b"x" * 3000], [b"PING"]]),
    (pack([b"ECHO", b"\r\n+x" * 200]) + PING, [[b"ECHO", b"\r\n+x" * 200], [b"PING"]]),
    (pack([b"DEL", *[b"k"] * 100]), [[b"DEL", *[b"k"] * 100]]),
    (MANY + b"PING\r\n" + MANY, [[b"PING"]] * 121),
    *((MANY + mark + b"1\r\n" + MANY, [[b"PING"]] * 60 + [[mark + b"1"]] + [[b"PING"]] * 60) for mark in FOREIGN),
    *(
        (MANY + mark + b"1\r\n$4\r\nPING\r\n", [[b"PING"]] * 60 + [[mark + b"1"], [b"$4"], [b"PING"]])
        for mark in FOREIGN
    ),
    (pack([b"ECHO", b"x" * 20000]) * 2, [[b"ECHO", b"x" * 20000]] * 2),
]
BROKEN = [
    (b"*01\r\n", "invalid multibulk length"),
    (b"*+1\r\n", "invalid multibulk length"),
    (b"* 1\r\n", "invalid multibulk length"),
    (b"*\r\n", "invalid multibulk length"),
    (b"*2147483648\r\n", "invalid multibulk length"),
    (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
    (b"*1\r\n\r\n", "expected '$', got '\r'"),
    (b"*1\r\n*1\r\n", "expected '$', got '*'"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
    (b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
    (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    (b"*1\r\n$4\r\nPINGxx", "invalid CRLF in request"),
    (b'ECHO "a\r\n', "unbalanced quotes in request"),
    (b'ECHO "a"b\r\n', "unbalanced quotes in request"),
    (b"ECHO 'a\r\n", "unbalanced quotes in request"),
]


@pytest.mark.parametrize("step", [1, 3, 7, 100, 10**6])
@pytest.mark.parametrize(("data", "requests"), GOOD)
def test_requests_are_found_however_they_arrive(data: bytes, requests: list[list[bytes]], step: int) -> None:
    assert decode(data, step) == requests


@pytest.mark.parametrize("before", [b"", PING, MANY])
@pytest.mark.parametrize("step", [1, 7, 10**6])
@pytest.mark.parametrize(("data", "text"), BROKEN)
def test_what_breaks_the_protocol_is_named_after_the_requests_before_it(
    data: bytes, text: str, step: int, before: bytes
) -> None:
    assert decode(before + data + PING, step) == [[b"PING"]] * (len(before) // len(PING)) + [text]


def test_bytes_left_over_wait_for_their_rest() -> None:
    decoder = RequestDecoder()
    decoder.feed(MANY + PING[:7])
    assert [decoder.next() for _ in range(61)] == [[b"PING"]] * 60 + [None]
    decoder.feed(PING[7:] + MANY)
    assert [decoder.next() for _ in range(62)] == [[b"PING"]] * 61 + [None]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"A" * 65537, "too big inline request"),
        (b"A" * 65537 + b"\r\n", "too big inline request"),
        (b"*" + b"1" * 65537, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * 65537, "too big bulk count string"),
    ],
)
def test_lines_without_an_end_are_given_up(data: bytes, text: str) -> None:
    assert decode(data, 10**6) == [text]
    assert decode(data, 5000) == [text]


def test_before_authentication_requests_are_short() -> None:
    for data, text in [
        (pack([b"DEL", *[b"k"] * 10]), "unauthenticated multibulk length"),
        (pack([b"ECHO", b"x" * 16385]), "unauthenticated bulk length"),
    ]:
        decoder = RequestDecoder()
        decoder.restricted = True
        assert decode(data, 10**6, decoder) == [text]


def test_the_limit_of_a_bulk_string_can_be_set() -> None:
    data = pack([b"ECHO", b"x" * 2000])
    assert decode(data, 10**6, RequestDecoder(max_bulk=1999)) == ["invalid bulk length"]
    assert decode(data, 10**6, RequestDecoder(max_bulk=2000)) == [[b"ECHO", b"x" * 2000]]


def test_too_much_unfinished_input_ends_the_connection_without_a_word() -> None:
    decoder = RequestDecoder(max_buffer=1000)
    assert decode(b"*1\r\n$5000\r\n" + b"x" * 2000, 100, decoder) == [""]


def test_a_small_request_cannot_make_a_huge_array() -> None:
    """hiredis would allocate and clear two thousand million places for this: six seconds."""
    started = time.process_time()
    assert decode(MANY + b"*1\r\n*2147483647\r\n", 10**6)[-1] == "expected '$', got '*'"
    assert decode(MANY + b"*2\r\n$1\r\nx\r\n>2147483647\r\n", 10**6)[-1] == "expected '$', got '>'"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb'ECHO "a\x41\n\"\q"', [b"ECHO", b'aA\n"q']),
        (rb"ECHO 'a\'b\n'", [b"ECHO", b"a'b\\n"]),
        (b'ECHO a"b c"', [b"ECHO", b"ab c"]),
        (b"  ECHO   x  \t", [b"ECHO", b"x"]),
        (b"ECHO ''", [b"ECHO", b""]),
        (rb'ECHO "\xzz"', [b"ECHO", b"xzz"]),
        (b"ECHO a'b'\x0cc", [b"ECHO", b"ab", b"c"]),
    ],
)
def test_inline_words_may_be_quoted(line: bytes, expected: list[bytes]) -> None:
    assert decode(line + b"\r\n", 10**6) == [expected]


@given(st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=5), max_size=8), st.integers(1, 2000))
def test_packed_requests_come_out_as_they_went_in(requests: list[list[bytes]], step: int) -> None:
    assert decode(b"".join(map(pack, requests)), step) == requests


@given(st.binary(max_size=400), st.integers(1, 50))
def test_random_bytes_mean_the_same_in_pieces(data: bytes, step: int) -> None:
    assert decode(data, step) == decode(data, 1)


PARTS = [b"*1\r\n", b"*2\r\n", b"$4\r\n", b"PING\r\n", b"+x\r\n", b"$04\r\n", b"\r\n", b"*", b"$1\r\nx\r\n"]


@given(st.lists(st.sampled_from(PARTS), max_size=200), st.sampled_from([7, 513, 10**6]))
def test_nearly_right_requests_mean_the_same_in_pieces(parts: list[bytes], step: int) -> None:
    """The quick way and the careful way agree, also on what is wrong."""
    data = b"".join(parts)
    assert decode(data, step) == decode(data, 1)
    assert decode(MANY + data, step) == decode(MANY + data, 1)
