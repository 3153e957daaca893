"""Reply shapes at a glance, byte by byte in both protocols (base §5; new §2.3, §7.2, §8.6)."""

from __future__ import annotations

import pytest

from .support import Engine, spelled

SAME = None  # RESP3 is as RESP2

TABLE = [
    # nothing there
    ("XADD none NOMKSTREAM * a b", "$-1", "_"),
    ("XLEN none", ":0", SAME),
    ("XDEL none 1-1", ":0", SAME),
    ("XTRIM none MAXLEN 0", ":0", SAME),
    ("XACK none g 1-1", ":0", SAME),
    ("XRANGE none - +", "*0", SAME),
    ("XREVRANGE none + -", "*0", SAME),
    ("XRANGE none - + COUNT 0", "*0", SAME),
    ("XREAD STREAMS none 0", "*-1", "_"),
    ("XDELEX none IDS 2 1-1 1-2", "*2 :-1 :-1", SAME),
    ("XACKDEL none g IDS 1 1-1", "*1 :-1", SAME),
    # s has 1-1 and 1-2 {a 1}; c of group g holds both; 1-1 is deleted; h has read nothing
    ("XADD s 9-9 a b", "$3 9-9", SAME),
    ("XLEN s", ":1", SAME),
    ("XDEL s 1-2", ":1", SAME),
    ("XTRIM s MAXLEN 0", ":1", SAME),
    ("XACK s g 1-1 1-2", ":2", SAME),
    ("XNACK s g FAIL IDS 2 1-1 1-2", ":2", SAME),
    ("XNACK s g FAIL IDS 1 9-9", ":0", SAME),
    ("XDELEX s IDS 2 1-1 1-2", "*2 :-1 :1", SAME),
    ("XACKDEL s g ACKED IDS 2 1-2 9-9", "*2 :2 :-1", SAME),
    ("XRANGE s - +", "*1 *2 $3 1-2 *2 $1 a $1 1", SAME),
    ("XREVRANGE s + -", "*1 *2 $3 1-2 *2 $1 a $1 1", SAME),
    ("XRANGE s - + COUNT 0", "*-1", "_"),
    ("XREAD COUNT 1 STREAMS s 0", "*1 *2 $1 s *1 *2 $3 1-2 *2 $1 a $1 1", "%1 $1 s *1 *2 $3 1-2 *2 $1 a $1 1"),
    ("XREADGROUP GROUP g c STREAMS s >", "*-1", "_"),
    ("XREADGROUP GROUP h c STREAMS s 0", "*1 *2 $1 s *0", "%1 $1 s *0"),
    ("XREADGROUP GROUP g c COUNT 1 STREAMS s 0", "*1 *2 $1 s *1 *2 $3 1-1 *-1", "%1 $1 s *1 *2 $3 1-1 _"),
    (
        "XREADGROUP GROUP h c CLAIM 0 STREAMS s >",
        "*1 *2 $1 s *1 *4 $3 1-2 *2 $1 a $1 1 :0 :0",
        "%1 $1 s *1 *4 $3 1-2 *2 $1 a $1 1 :0 :0",
    ),
    ("XPENDING s g", "*4 :2 $3 1-1 $3 1-2 *1 *2 $1 c $1 2", SAME),
    ("XPENDING s h", "*4 :0 $-1 $-1 *-1", "*4 :0 _ _ _"),
    ("XPENDING s h - + 10", "*0", SAME),
    ("XCLAIM s g d 0 1-2", "*1 *2 $3 1-2 *2 $1 a $1 1", SAME),
    ("XCLAIM s g d 0 1-2 JUSTID", "*1 $3 1-2", SAME),
    ("XCLAIM s g d 0 1-1", "*0", SAME),
    ("XAUTOCLAIM s g d 0 0", "*3 $3 0-0 *1 *2 $3 1-2 *2 $1 a $1 1 *1 $3 1-1", SAME),
    ("XAUTOCLAIM s g c 0 0 JUSTID", "*3 $3 0-0 *1 $3 1-2 *1 $3 1-1", SAME),
    ("XAUTOCLAIM s h c 0 0", "*3 $3 0-0 *0 *0", SAME),
    ("XSETID s 9-9", "+OK", SAME),
    ("XGROUP CREATE s new $", "+OK", SAME),
    ("XGROUP SETID s g 0", "+OK", SAME),
    ("XGROUP DESTROY s g", ":1", SAME),
    ("XGROUP DESTROY s nog", ":0", SAME),
    ("XGROUP CREATECONSUMER s g new", ":1", SAME),
    ("XGROUP CREATECONSUMER s g c", ":0", SAME),
    ("XGROUP DELCONSUMER s g c", ":2", SAME),
    ("XCFGSET s IDMP-DURATION 100", "+OK", SAME),
    ("XIDMPRECORD s p i 1-2", "+OK", SAME),
    ("XINFO CONSUMERS s h", "*0", SAME),
    # errors look the same in both protocols
    ("XCFGSET s", "-ERR At least one parameter must be specified", SAME),
    ("XIDMPRECORD s p i 9-9", "-ERR No such message in stream", SAME),
    ("XNACK s nog FAIL IDS 1 1-0", "-NOGROUP No such key 's' or consumer group 'nog'", SAME),
    ("XNACK s g MAYBE IDS 1 1-0", "-ERR mode must be SILENT, FAIL, or FATAL", SAME),
    ("XTRIM s MAXLEN 5 DELREF ACKED", "-ERR syntax error", SAME),
    ("XADD s DELREF ACKED * f v", "-ERR Invalid stream ID specified as stream command argument", SAME),
    ("XGROUP CREATE s g 0", "-BUSYGROUP Consumer Group name already exists", SAME),
]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(("words", "resp2", "resp3"), TABLE, ids=[row[0] for row in TABLE])
def test_a_reply_has_this_shape(e: Engine, words: str, resp2: str, resp3: str | None, protocol: int) -> None:
    e("XADD", "s", "1-1", "a", "1")
    e("XADD", "s", "1-2", "a", "1")
    e("XGROUP", "CREATE", "s", "g", "0")
    e("XGROUP", "CREATE", "s", "h", "0")
    e.deliver("g", "c")
    e("XDEL", "s", "1-1")
    expected = resp3 if protocol == 3 and resp3 is not SAME else resp2
    assert spelled(e.wire(*words.split(), protocol=protocol)) == expected


def test_user_bytes_in_an_error_cannot_break_its_line(e: Engine) -> None:
    """Base §0.2: CR and LF become spaces, a text built from user bytes ends at its first NUL."""
    assert spelled(e.wire("XNACK", "a\r\nb", "g", "FAIL", "IDS", 1, "1-0")) == (
        "-NOGROUP No such key 'a  b' or consumer group 'g'"
    )
    e.stream(1, "g")
    assert e.wire("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", b"x\0y").startswith(b"-ERR Unrecognized XNACK option 'x")
