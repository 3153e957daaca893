"""CLIENT TRACKING beyond what is compared with a real server: redirection, limits, users, what it costs others."""

from __future__ import annotations

import pytest

from tests.server.support import Peer, World

KEY_CHANGED = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"


@pytest.fixture
def reader(world: World) -> Peer:
    """A RESP3 connection that tracks."""
    peer = world.peer(3)
    assert peer("CLIENT TRACKING ON") == b"+OK\r\n"
    return peer


def test_a_reader_is_told_once_that_a_key_changed(world: World, reader: Peer) -> None:
    writer = world.peer()
    reader("GET k")
    writer("SET k 1")
    assert reader.read() == KEY_CHANGED
    writer("SET k 2")
    assert reader.read() == b""


def test_a_key_that_runs_out_is_told_even_to_whoever_does_not_hear_of_its_own_changes(world: World) -> None:
    reader = world.peer(3)
    reader("CLIENT TRACKING ON NOLOOP")
    reader("SET k 1 PX 10")
    reader("GET k")
    world.pass_ms(20)
    assert reader.read() == KEY_CHANGED


def test_a_stream_read_by_a_group_is_not_tracked_and_an_entry_is_a_change(world: World, reader: Peer) -> None:
    writer = world.peer()
    writer("XGROUP CREATE k g 0 MKSTREAM")
    writer("XADD k 1-1 f v")
    reader("XREADGROUP GROUP g c STREAMS k >")
    writer("XADD k 2-1 f v")
    assert reader.read() == b""
    reader("XRANGE k - +")
    writer("XADD k 3-1 f v")
    assert reader.read() == KEY_CHANGED


def test_a_change_by_the_embedded_interface_is_told(world: World, reader: Peer) -> None:
    reader("GET k")
    world.hub.run([b"SET", b"k", b"v"])
    assert reader.read() == KEY_CHANGED


def test_messages_go_to_the_connection_they_are_redirected_to(world: World) -> None:
    reader, target, writer = world.peer(), world.peer(), world.peer()
    reader(f"CLIENT TRACKING ON REDIRECT {target.session.id}")
    assert reader("CLIENT GETREDIR") == b":%d\r\n" % target.session.id
    reader("GET k")
    writer("SET k 1")
    assert target.read() == b"", "it does not listen"
    target("SUBSCRIBE __redis__:invalidate")
    reader("GET k")
    writer("SET k 1")
    assert target.read() == b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nk\r\n"
    assert reader.read() == b""


def test_a_target_that_has_gone_is_reported(world: World) -> None:
    reader, target = world.peer(3), world.peer(3)
    reader(f"CLIENT TRACKING ON REDIRECT {target.session.id}")
    reader("GET k")
    target.session.close()
    world.peer()("SET k 1")
    assert b"tracking-redir-broken" in reader.read()
    assert b"broken_redirect" in reader("CLIENT TRACKINGINFO")


def test_what_is_beyond_the_limit_is_forgotten_and_told(world: World, reader: Peer) -> None:
    reader("MGET a b c")
    world.peer()("CONFIG SET tracking-table-max-keys 1")
    told = reader.read()
    assert told.count(b"invalidate") == 2
    assert b"tracking_total_keys:1\r\n" in world.peer()("INFO stats")


def test_prefixes_name_only_keys_that_the_user_may_read(world: World) -> None:
    admin = world.peer()
    admin("ACL SETUSER u on >p ~public:* +@all")
    reader = world.peer()
    reader("AUTH u p")
    reader("HELLO 3")
    reader("CLIENT TRACKING ON BCAST")
    admin("MSET public:a 1 secret:b 2")
    assert b"public:a" in (told := reader.read())
    assert b"secret" not in told


def test_what_changed_before_a_user_changed_is_told_by_the_old_rules(world: World) -> None:
    admin, reader = world.peer(), world.peer()
    admin("ACL SETUSER u on >p ~p:* +@all")
    reader("AUTH u p")
    reader("HELLO 3")
    reader("CLIENT TRACKING ON BCAST PREFIX p:")
    for request in ("MULTI", "SET p:x 1", "ACL SETUSER u resetkeys ~q:*", "EXEC"):
        admin(request)
    assert b"p:x" in reader.read()


def test_what_a_script_reads_is_its_callers(world: World, reader: Peer) -> None:
    reader(["EVAL", "redis.call('set', 'w', 1) return redis.call('get', 'k')", 1, "other"])
    writer = world.peer()
    writer("MSET w 2 other 2")
    assert reader.read() == b""
    writer("SET k 2")
    assert reader.read() == KEY_CHANGED


def test_messages_come_even_to_a_connection_that_wants_no_replies(world: World, reader: Peer) -> None:
    reader("GET k")
    reader("CLIENT REPLY OFF")
    world.peer()("SET k 1")
    assert reader.read() == KEY_CHANGED


def test_a_connection_that_leaves_tracks_no_more(world: World, reader: Peer) -> None:
    reader("GET k")
    assert world.hub.is_told
    reader.session.close()
    assert not world.hub.tracking.sessions
    assert not world.hub.is_told, "or nobody would ever take the short way again"
    world.peer()("SET k 1")


def test_client_list_tells_of_it(world: World, reader: Peer) -> None:
    assert b" flags=t " in reader("CLIENT INFO")
    assert b" redir=0 " in reader("CLIENT INFO")
    reader("CLIENT TRACKING OFF")
    reader("CLIENT TRACKING ON BCAST")
    assert b" flags=tB " in reader("CLIENT INFO")
    assert b"tracking_clients:1\r\n" in reader("INFO clients")
