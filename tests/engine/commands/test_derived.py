"""Set algebra, ranges that are stored, bits and SORT; the differential run compares them with Redis at random."""

from __future__ import annotations

from tests.engine.commands.plain import Plain


def test_lists_are_searched_and_changed_by_position(e: Plain) -> None:
    e("RPUSH l a b c b a")
    assert e("LPOS l b") == 1
    assert e("LPOS l b RANK -1") == 3
    assert e("LPOS l a COUNT 0") == [0, 4]
    assert e("LPOS l a COUNT 0 MAXLEN 2") == [0]
    assert e("LPOS l x") is None
    assert e("LPOS l x COUNT 0") == []
    assert e.did("LSET l -1 z").log == ["LSET l -1 z"]
    assert e("LINSERT l BEFORE c new") == 6
    assert e("LINSERT l AFTER missing new") == -1
    assert e("LRANGE l 0 -1") == [b"a", b"b", b"new", b"c", b"b", b"z"]
    assert e.error("LSET l 9 x") == "ERR index out of range"
    assert e.error("LSET missing 0 x") == "ERR no such key"


def test_hincrbyfloat_is_logged_as_its_result(e: Plain) -> None:
    did = e.did("HINCRBYFLOAT h f 10.5")
    assert (did.reply, did.log) == (b"10.5", ["HSET h f 10.5"])
    assert e("HINCRBYFLOAT h f 0.1") == b"10.6"
    e("HSET h word x")
    assert e.error("HINCRBYFLOAT h word 1") == "ERR hash value is not a float"


def test_random_fields_and_members_are_of_their_key(e: Plain) -> None:
    e("HSET h a 1 b 2 c 3")
    e("ZADD z 1 a 2 b 3 c")
    assert e("HRANDFIELD h") in (b"a", b"b", b"c")
    assert e("ZRANDMEMBER z") in (b"a", b"b", b"c")
    assert sorted(e("HRANDFIELD h 5")) == [b"a", b"b", b"c"]  # type: ignore[arg-type,type-var]
    assert len(e("ZRANDMEMBER z -7")) == 7  # type: ignore[arg-type]
    assert e.wire("HRANDFIELD h 0 WITHVALUES", 3) == b"*0\r\n"
    assert e("HRANDFIELD missing") is None


def test_sets_are_combined(e: Plain) -> None:
    e("SADD a 1 2 3")
    e("SADD b 2 3 4")
    assert sorted(e("SINTER a b")) == [b"2", b"3"]  # type: ignore[arg-type,type-var]
    assert sorted(e("SUNION a b")) == [b"1", b"2", b"3", b"4"]  # type: ignore[arg-type,type-var]
    assert e("SDIFF a b") == [b"1"]
    assert e("SINTER a missing") == []
    assert (e("SINTERCARD 2 a b LIMIT 1"), e("SUNIONCARD 2 a b"), e("SDIFFCARD 2 a b")) == (1, 4, 1)
    did = e.did("SUNIONSTORE dst a b")
    assert (did.reply, did.log, did.events[-1]) == (4, ["SUNIONSTORE dst a b"], "s sunionstore dst")
    did = e.did("SINTERSTORE dst a missing")
    assert (did.reply, did.events[-1], e("EXISTS dst")) == (0, "g del dst", 0)


def test_smove_moves_a_member_once(e: Plain) -> None:
    e("SADD a 1")
    assert e.did("SMOVE a b 1").log == ["SMOVE a b 1"]
    assert (e("EXISTS a"), e("SISMEMBER b 1"), e("SMOVE a b 1")) == (0, 1, 0)


def test_sorted_sets_are_combined_with_weights(e: Plain) -> None:
    e("ZADD a 1 x 2 y")
    e("ZADD b 10 y 20 z")
    e("SADD s x")
    assert e("ZUNION 2 a b WEIGHTS 2 1 WITHSCORES") == [b"x", 2.0, b"y", 14.0, b"z", 20.0]
    assert e("ZINTER 2 a b AGGREGATE MIN WITHSCORES") == [b"y", 2.0]
    assert e("ZDIFF 2 a b WITHSCORES") == [b"x", 1.0]
    assert e("ZINTER 2 a s WITHSCORES") == [b"x", 2.0]
    assert e("ZINTERCARD 2 a b") == 1
    assert e("ZUNIONSTORE dst 2 a b") == 3
    assert e.error("ZUNION 0 a") == "ERR at least 1 input key is needed for 'zunion' command"


def test_ranges_are_stored_and_read_by_member(e: Plain) -> None:
    e("ZADD z 0 a 0 b 0 c 0 d")
    assert e("ZRANGEBYLEX z [b (d") == [b"b", b"c"]
    assert e("ZREVRANGEBYLEX z + [c") == [b"d", b"c"]
    assert e("ZLEXCOUNT z - +") == 4
    assert e("ZRANGESTORE dst z 0 1") == 2
    assert e("ZRANGE dst 0 -1") == [b"a", b"b"]
    assert e("ZREMRANGEBYLEX z [a [b") == 2


def test_bits_are_set_counted_and_combined(e: Plain) -> None:
    assert (e("SETBIT k 7 1"), e("GETBIT k 7"), e("GETBIT k 100"), e("GET k")) == (0, 1, 0, b"\x01")
    assert e.did("SETBIT k 7 1").nothing()
    e("SET n foobar")
    assert (e("BITCOUNT n"), e("BITCOUNT n 1 1"), e("BITCOUNT n 5 30 BIT")) == (26, 6, 17)
    e("SET ones", b"\xff\xff")
    assert (e("BITPOS ones 0"), e("BITPOS ones 0 0 -1"), e("BITPOS n 1")) == (16, -1, 1)
    assert e("BITOP NOT inverse ones") == 2
    assert e("GET inverse") == b"\0\0"
    assert e("BITOP AND none missing other") == 0


def test_bitfield_wraps_saturates_and_fails(e: Plain) -> None:
    assert e("BITFIELD k SET u8 0 255 INCRBY u8 0 1 GET u8 0") == [0, 0, 0]
    assert e("BITFIELD k OVERFLOW SAT INCRBY i8 #1 200 OVERFLOW FAIL INCRBY i8 #1 1") == [127, None]
    assert e("BITFIELD_RO k GET i8 8") == [127]
    assert e.did("BITFIELD k GET u4 0").nothing()


def test_sort_follows_patterns(e: Plain) -> None:
    e("RPUSH l 3 1 2")
    e("MSET w_1 30 w_2 20 w_3 10")
    e("HSET h_1 name one")
    assert e("SORT l") == [b"1", b"2", b"3"]
    assert e("SORT l DESC LIMIT 0 2") == [b"3", b"2"]
    assert e("SORT l BY w_*") == [b"3", b"2", b"1"]
    assert e("SORT l BY nosort") == [b"3", b"1", b"2"]
    assert e("SORT l BY nosort DESC") == [b"2", b"1", b"3"]
    assert e("SORT l GET # GET h_*->name LIMIT 0 1") == [b"1", b"one"]
    assert e("SORT l STORE dst") == 3
    assert e("LRANGE dst 0 -1") == [b"1", b"2", b"3"]
    e("RPUSH words b a C")
    assert e("SORT words ALPHA") == [b"C", b"a", b"b"]
    assert e.error("SORT words") == "ERR One or more scores can't be converted into double"
