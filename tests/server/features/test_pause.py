"""CLIENT PAUSE: who waits, in which order they go on, and what does not happen meanwhile."""

from __future__ import annotations

import pytest

from tests.server.support import Peer, World

FOR_EVER = 100_000


@pytest.fixture
def admin(world: World) -> Peer:
    return world.peer()


def test_writes_wait_and_reads_do_not(world: World, admin: Peer) -> None:
    writer, reader = world.peer(), world.peer()
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    assert writer("SET k 1") == b""
    assert writer.is_blocked
    assert reader("GET k") == b"$-1\r\n"
    assert b"blocked_clients:1\r\n" in reader("INFO clients")
    admin("CLIENT UNPAUSE")
    assert writer.read() == b"+OK\r\n"
    assert reader("GET k") == b"$1\r\n1\r\n"


def test_everything_waits_until_its_time_is_over(world: World, admin: Peer) -> None:
    other = world.peer()
    admin("CLIENT PAUSE 100")
    assert other("PING") == b""
    assert admin("CLIENT UNPAUSE") == b"", "as in Redis"
    world.pass_ms(99)
    assert other.read() == b""
    world.pass_ms(2)
    assert (other.read(), admin.read()) == (b"+PONG\r\n", b"+OK\r\n")
    assert not world.hub.gates


def test_what_a_connection_sends_meanwhile_stays_in_order(world: World, admin: Peer) -> None:
    writer = world.peer()
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    assert writer("INCR k") + writer("GET k") + writer("INCR k") == b""
    admin("CLIENT UNPAUSE")
    assert writer.read() == b":1\r\n$1\r\n1\r\n:2\r\n"


def test_a_later_pause_never_shortens_or_softens_the_first(world: World, admin: Peer) -> None:
    other = world.peer()
    admin("CLIENT PAUSE 200 ALL")
    world.hub.pause.begin(world.clock.now_ms() + 10, of_all=False)
    world.pass_ms(50)
    assert other("GET k") == b""
    world.pass_ms(151)
    assert other.read() == b"$-1\r\n"


def test_a_transaction_waits_if_it_writes(world: World, admin: Peer) -> None:
    writer, reader = world.peer(), world.peer()
    for request in ("MULTI", "SET k 1"):
        writer(request)
    for request in ("MULTI", "GET k"):
        reader(request)
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    assert reader("EXEC") == b"*1\r\n$-1\r\n"
    assert writer("EXEC") == b""
    admin("CLIENT UNPAUSE")
    assert writer.read() == b"*1\r\n+OK\r\n"


def test_a_script_waits_unless_it_declares_not_to_write(world: World, admin: Peer) -> None:
    writer, reader = world.peer(), world.peer()
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    assert writer(["EVAL", "return 1", 0]) == b""
    assert reader(["EVAL", "#!lua flags=no-writes\nreturn 2", 0]) == b":2\r\n"
    admin("CLIENT UNPAUSE")
    assert writer.read() == b":1\r\n"


def test_a_pause_in_a_transaction_begins_behind_it(world: World, admin: Peer) -> None:
    for request in ("MULTI", "SET a 1", f"CLIENT PAUSE {FOR_EVER} WRITE", "SET b 1"):
        admin(request)
    assert admin("EXEC") == b"*3\r\n+OK\r\n+OK\r\n+OK\r\n"
    assert world.peer()("SET c 1") == b""


def test_keys_that_run_out_are_gone_but_removed_only_afterwards(world: World, admin: Peer) -> None:
    admin("SET k v PX 10")
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    world.logged()
    world.pass_ms(50)
    assert (admin("GET k"), admin("EXISTS k"), admin("TTL k")) == (b"$-1\r\n", b":0\r\n", b":-2\r\n")
    assert (admin("RANDOMKEY"), admin("DBSIZE")) == (b"$1\r\nk\r\n", b":1\r\n")
    assert world.logged() == []
    assert b"expired_keys:0\r\n" in admin("INFO stats")
    admin("CLIENT UNPAUSE")
    world.pass_ms(1)
    assert world.logged() == [[b"DEL k"]]


def test_the_wait_cannot_be_ended_by_unblock(world: World, admin: Peer) -> None:
    writer = world.peer()
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    writer("BLPOP l 0")
    assert admin(f"CLIENT UNBLOCK {writer.session.id}") == b":0\r\n"
    admin("CLIENT UNPAUSE")
    assert writer.is_blocked
    assert admin(f"CLIENT UNBLOCK {writer.session.id}") == b":1\r\n"
    assert writer.read() == b"*-1\r\n"


def test_one_who_leaves_while_waiting_has_done_nothing(world: World, admin: Peer) -> None:
    writer = world.peer()
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    writer("SET k 1")
    writer.session.close()
    admin("CLIENT UNPAUSE")
    assert admin("EXISTS k") == b":0\r\n"


def test_wrong_requests_are_answered_at_once(world: World, admin: Peer) -> None:
    admin(f"CLIENT PAUSE {FOR_EVER} WRITE")
    assert world.peer()("SET k").startswith(b"-ERR wrong number")
