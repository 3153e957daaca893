"""Channels, patterns, shard channels, and keyspace notifications."""

from __future__ import annotations

import pytest

from millstream.engine.outcome import Push, Reply
from millstream.server.features import keyspace_events
from millstream.server.protocol.resp import encode
from tests.server.support import Peer, World


def pushed(*items: Reply, protocol: int = 2) -> bytes:
    return encode(Push(items), protocol)


@pytest.fixture(params=[2, 3])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def listener(world: World, protocol: int) -> Peer:
    peer = world.peer(protocol)
    peer.read()
    return peer


def test_subscribing_answers_once_a_channel_and_counts_patterns_too(listener: Peer, protocol: int) -> None:
    assert listener("SUBSCRIBE x y x") == b"".join(
        pushed(b"subscribe", name, count, protocol=protocol) for name, count in ((b"x", 1), (b"y", 2), (b"x", 2))
    )
    assert listener("PSUBSCRIBE *") == pushed(b"psubscribe", b"*", 3, protocol=protocol)
    assert listener("SSUBSCRIBE s") == pushed(b"ssubscribe", b"s", 1, protocol=protocol)
    assert listener("UNSUBSCRIBE y z") == b"".join(
        pushed(b"unsubscribe", name, 2, protocol=protocol) for name in (b"y", b"z")
    )
    assert listener("UNSUBSCRIBE") == pushed(b"unsubscribe", b"x", 1, protocol=protocol)
    assert listener("UNSUBSCRIBE") == pushed(b"unsubscribe", None, 1, protocol=protocol)
    assert listener("SUNSUBSCRIBE") == pushed(b"sunsubscribe", b"s", 0, protocol=protocol)


def test_a_message_comes_once_for_each_way_it_matches(listener: Peer, a: Peer, protocol: int) -> None:
    listener("SUBSCRIBE news")
    listener("PSUBSCRIBE n* ?ews other")
    assert a("PUBLISH news hi") == b":3\r\n"
    assert listener.read() == b"".join(
        [
            pushed(b"message", b"news", b"hi", protocol=protocol),
            pushed(b"pmessage", b"n*", b"news", b"hi", protocol=protocol),
            pushed(b"pmessage", b"?ews", b"news", b"hi", protocol=protocol),
        ]
    )


def test_shard_channels_are_a_world_of_their_own(listener: Peer, a: Peer, protocol: int) -> None:
    listener("SSUBSCRIBE c")
    assert a("PUBLISH c x") == b":0\r\n"
    assert a("SPUBLISH c x") == b":1\r\n"
    assert listener.read() == pushed(b"smessage", b"c", b"x", protocol=protocol)


def test_pubsub_tells_who_is_there(listener: Peer, a: Peer) -> None:
    listener("SUBSCRIBE x")
    listener("PSUBSCRIBE p*")
    listener("SSUBSCRIBE s")
    assert a("PUBSUB CHANNELS") == b"*1\r\n$1\r\nx\r\n"
    assert a("PUBSUB CHANNELS y*") == b"*0\r\n"
    assert a("PUBSUB NUMSUB x y") == b"*4\r\n$1\r\nx\r\n:1\r\n$1\r\ny\r\n:0\r\n"
    assert a("PUBSUB NUMPAT") == b":1\r\n"
    assert a("PUBSUB SHARDCHANNELS") == b"*1\r\n$1\r\ns\r\n"
    assert a("PUBSUB SHARDNUMSUB s") == b"*2\r\n$1\r\ns\r\n:1\r\n"


def test_in_resp2_a_subscriber_may_only_do_a_few_things(a: Peer) -> None:
    a("SUBSCRIBE c")
    assert a("GET k") == (
        b"-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in "
        b"this context\r\n"
    )
    assert a("HELLO 3").startswith(b"-ERR Can't execute 'hello'")
    assert a("PING") == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    assert a("PING x") == b"*2\r\n$4\r\npong\r\n$1\r\nx\r\n"
    a("UNSUBSCRIBE")
    assert a("PING") == b"+PONG\r\n"


def test_in_resp3_a_subscriber_may_do_anything(world: World) -> None:
    peer = world.peer(3)
    peer("SUBSCRIBE c")
    assert peer("PING") == b"+PONG\r\n"
    assert peer("GET k") == b"_\r\n"


def test_a_message_of_one_s_own_comes_after_the_reply(world: World) -> None:
    peer = world.peer(3)
    peer("SUBSCRIBE c")
    message = pushed(b"message", b"c", b"x", protocol=3)
    assert peer("PUBLISH c x") == b":1\r\n" + message
    peer("MULTI")
    peer("PUBLISH c x")
    peer("PUBLISH c x")
    assert peer("EXEC") == b"*2\r\n:1\r\n:1\r\n" + message * 2


def test_a_message_reaches_a_reader_that_blocks(world: World, a: Peer) -> None:
    peer = world.peer(3)
    peer("SUBSCRIBE c")
    peer("XREAD BLOCK 0 STREAMS s $")
    a("PUBLISH c x")
    assert peer.read() == pushed(b"message", b"c", b"x", protocol=3)
    assert peer.is_blocked


# Notifications


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("KEA", "AKE"),
        ("AKEnoc", "AKE"),
        ("ncoKEg$lt", "g$ltnocKE"),
        ("g$lshzxetdKESm", "g$lshzxetdKEmS"),
        ("VITSEKg", "gKESTIV"),
    ],
)
def test_the_setting_is_shown_in_its_normal_form(text: str, normal: str) -> None:
    letters = keyspace_events.parse(text.encode())
    assert letters is not None
    assert keyspace_events.to_text(letters) == normal.encode()


def listen(world: World, setting: str, pattern: str = "*") -> Peer:
    peer = world.peer()
    peer(["CONFIG", "SET", "notify-keyspace-events", setting])
    peer(f"PSUBSCRIBE {pattern}")
    return peer


def told(peer: Peer) -> list[bytes]:
    """The channels and payloads a pattern subscriber was sent."""
    lines = peer.read().split(b"\r\n")
    return [b" ".join(lines[at + 4 : at + 9 : 2][1:]) for at in range(0, len(lines) - 1, 9)]


def test_events_are_told_on_both_kinds_of_channels(world: World, a: Peer) -> None:
    peer = listen(world, "AKE")
    a("SELECT 2")
    a("XADD s 1-0 f v")
    assert told(peer) == [b"__keyspace@2__:s xadd", b"__keyevent@2__:xadd s"]


@pytest.mark.parametrize(("setting", "channels"), [("Kt", 1), ("Et", 1), ("t", 0), ("KE", 0), ("K$", 0)])
def test_only_the_classes_that_are_set_are_told(world: World, a: Peer, setting: str, channels: int) -> None:
    peer = listen(world, setting)
    a("XADD s 1-0 f v")
    assert len(told(peer)) == channels


def test_misses_new_keys_and_overwriting_have_classes_of_their_own(world: World, a: Peer) -> None:
    peer = listen(world, "Emnoc")
    a("GET k")
    a("SET k 1")
    a("XADD s 1-0 f v")
    a("SET s 1")
    assert told(peer) == [
        b"__keyevent@0__:keymiss k",
        b"__keyevent@0__:new k",
        b"__keyevent@0__:new s",
        b"__keyevent@0__:overwritten s",
        b"__keyevent@0__:type_changed s",
    ]


def test_expiry_is_told_when_it_happens(world: World, a: Peer) -> None:
    peer = listen(world, "Ex")
    a("SET k 1 PX 10")
    world.pass_ms(10)
    assert told(peer) == []
    world.pass_ms(1)
    assert told(peer) == [b"__keyevent@0__:expired k"]


def test_a_transaction_tells_as_it_runs(world: World, a: Peer) -> None:
    peer = listen(world, "Kt")
    for request in ("MULTI", "XADD s 1-0 f v", "XDEL s 1-0", "EXEC"):
        a(request)
    assert told(peer) == [b"__keyspace@0__:s xadd", b"__keyspace@0__:s xdel"]


def test_who_wants_no_replies_is_still_told_of_subscriptions(world: World, a: Peer) -> None:
    quiet = world.peer(3)
    quiet("CLIENT REPLY OFF")
    assert quiet("SUBSCRIBE c") == b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    a("PUBLISH c hi")
    assert quiet.read() == b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"
    assert quiet("PING") == b""


def test_events_that_the_setting_does_not_show_are_told_all_the_same(listener: Peer, a: Peer) -> None:
    a("CONFIG SET notify-keyspace-events EAo")
    listener("PSUBSCRIBE __keyevent*")
    a("SET k 1")
    listener.read()
    a("SET k 2")
    assert b":overwritten\r\n" in listener.read()
