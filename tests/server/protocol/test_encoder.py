"""Replies to bytes, in both protocols."""

from __future__ import annotations

import pytest

from millstream.engine.outcome import (
    NIL_ARRAY,
    OK,
    ByKey,
    Encoded,
    Members,
    Pairs,
    Push,
    Reply,
    Scored,
    Simple,
    Verbatim,
)
from millstream.errors import CommandError
from millstream.server.protocol.resp import encode, quoted
from millstream.server.protocol.sequence import NOTHING, Several

CASES: list[tuple[Reply, bytes, bytes]] = [
    (5, b":5\r\n", b":5\r\n"),
    (-1, b":-1\r\n", b":-1\r\n"),
    (b"x", b"$1\r\nx\r\n", b"$1\r\nx\r\n"),
    (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
    (None, b"$-1\r\n", b"_\r\n"),
    (NIL_ARRAY, b"*-1\r\n", b"_\r\n"),
    (OK, b"+OK\r\n", b"+OK\r\n"),
    (CommandError("ERR a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
    ([1, [b"a", None]], b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n", b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n"),
    ([], b"*0\r\n", b"*0\r\n"),
    (Pairs([b"a", 1]), b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
    (ByKey([b"a", [1]]), b"*1\r\n*2\r\n$1\r\na\r\n*1\r\n:1\r\n", b"%1\r\n$1\r\na\r\n*1\r\n:1\r\n"),
    (Scored([b"a", 1.5]), b"*2\r\n$1\r\na\r\n$3\r\n1.5\r\n", b"*1\r\n*2\r\n$1\r\na\r\n,1.5\r\n"),
    (Members([b"a"]), b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
    (Push([b"a"]), b"*1\r\n$1\r\na\r\n", b">1\r\n$1\r\na\r\n"),
    (Verbatim(b"hi"), b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n"),
    (1e20, b"$5\r\n1e+20\r\n", b",1e+20\r\n"),
    (float("-inf"), b"$4\r\n-inf\r\n", b",-inf\r\n"),
    (Encoded(b"*1\r\n$1\r\nx\r\n"), b"*1\r\n$1\r\nx\r\n", b"*1\r\n$1\r\nx\r\n"),
    ([Encoded(b":7\r\n"), Simple(b"x")], b"*2\r\n:7\r\n+x\r\n", b"*2\r\n:7\r\n+x\r\n"),
    (Several([Push([1]), Push([2])]), b"*1\r\n:1\r\n*1\r\n:2\r\n", b">1\r\n:1\r\n>1\r\n:2\r\n"),
    (NOTHING, b"", b""),
]


@pytest.mark.parametrize(("reply", "resp2", "resp3"), CASES, ids=[repr(case[0]) for case in CASES])
def test_a_reply_has_its_form_in_each_protocol(reply: Reply, resp2: bytes, resp3: bytes) -> None:
    assert (encode(reply, 2), encode(reply, 3)) == (resp2, resp3)


def test_maps_inside_sets_follow_the_protocol() -> None:
    assert encode(Members([Pairs([b"a", None])]), 3) == b"~1\r\n%1\r\n$1\r\na\r\n_\r\n"


def test_monitor_shows_words_in_quotes() -> None:
    assert quoted(b'a "b" \\ \n\t\x00\xff') == b'"a \\"b\\" \\\\ \\n\\t\\x00\\xff"'
