"""MULTI, EXEC, DISCARD, WATCH."""

from __future__ import annotations

import pytest

from tests.server.support import Peer, World

ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
CHANGED = b"*-1\r\n"


def test_commands_are_queued_and_run_together(a: Peer, b: Peer) -> None:
    assert a("MULTI") == b"+OK\r\n"
    assert a("SET k 1") == a("INCR k") == b"+QUEUED\r\n"
    assert b("GET k") == b"$-1\r\n"
    assert a("EXEC") == b"*2\r\n+OK\r\n:2\r\n"
    assert a("EXEC") == b"-ERR EXEC without MULTI\r\n"


def test_an_empty_transaction_is_an_empty_array(a: Peer) -> None:
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


@pytest.mark.parametrize("mistake", ["NOPE", "GET", "XGROUP NOPE"])
def test_a_mistake_while_queueing_aborts(a: Peer, mistake: str) -> None:
    a("MULTI")
    assert a(mistake).startswith(b"-ERR")
    assert a("SET k 1") == b"+QUEUED\r\n"
    assert a("EXEC") == ABORTED
    assert a("GET k") == b"$-1\r\n"
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


def test_a_failure_while_running_does_not(a: Peer) -> None:
    a("SET k x")
    a("MULTI")
    a("INCR k")
    a("SET k 5")
    assert a("EXEC") == b"*2\r\n-ERR value is not an integer or out of range\r\n+OK\r\n"


def test_an_exec_that_is_refused_discards(a: Peer) -> None:
    text = b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n"
    assert a("EXEC now") == text
    a("MULTI")
    assert a("EXEC now") == text
    assert a("DISCARD") == b"-ERR DISCARD without MULTI\r\n"


def test_nested_multi_and_watch_are_errors_and_the_transaction_goes_on(a: Peer) -> None:
    a("MULTI")
    assert a("MULTI") == b"-ERR MULTI calls can not be nested\r\n"
    assert a("WATCH k") == b"-ERR WATCH inside MULTI is not allowed\r\n"
    a("PING")
    assert a("EXEC") == b"*1\r\n+PONG\r\n"


def test_discard_forgets_the_queue_and_the_watches(world: World, a: Peer) -> None:
    a("WATCH k")
    a("MULTI")
    a("SET k 1")
    assert a("DISCARD") == b"+OK\r\n"
    assert a("GET k") == b"$-1\r\n"
    assert not world.hub.watches


def test_time_stands_still_inside(world: World, a: Peer) -> None:
    a("MULTI")
    a("XADD s * f v")
    a("XADD s * f v")
    reply = a("EXEC")
    now = world.hub.now_ms()
    assert reply == b"*2\r\n$15\r\n%d-0\r\n$15\r\n%d-1\r\n" % (now, now)


def test_nothing_blocks_inside(a: Peer) -> None:
    a("MULTI")
    a("XREAD BLOCK 0 STREAMS s $")
    a("WAIT 1 0")
    assert a("EXEC") == b"*2\r\n*-1\r\n:0\r\n"


def test_a_change_of_protocol_inside_holds_for_what_follows(a: Peer) -> None:
    a("MULTI")
    for request in ("GET none", "HELLO 3", "GET none"):
        a(request)
    reply = a("EXEC")
    assert reply.startswith(b"*3\r\n$-1\r\n%7\r\n")
    assert reply.endswith(b"_\r\n")


# WATCH


@pytest.mark.parametrize("change", ["SET k 2", "DEL k", "APPEND k x", "EXPIRE k 100", "RENAME k l", "FLUSHALL"])
def test_a_watched_key_that_changes_stops_the_transaction(world: World, a: Peer, b: Peer, change: str) -> None:
    b("SET k 1")
    a("WATCH k")
    b(change)
    a("MULTI")
    a("SET x 1")
    assert a("EXEC") == CHANGED
    assert a("GET x") == b"$-1\r\n"
    assert not world.hub.watches


def test_the_session_s_own_change_counts(a: Peer) -> None:
    a("WATCH k")
    a("SET k 1")
    a("MULTI")
    assert a("EXEC") == CHANGED


@pytest.mark.parametrize("change", ["GET k", "FLUSHALL", "SET other 1", "DEL k"])
def test_what_changes_nothing_about_a_missing_key_does_not_stop_it(a: Peer, b: Peer, change: str) -> None:
    a("WATCH k")
    b(change)
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


def test_a_watch_is_of_one_database(a: Peer, b: Peer) -> None:
    a("WATCH k")
    b("SELECT 1")
    b("SET k 1")
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


def test_unwatch_forgets(a: Peer, b: Peer) -> None:
    a("WATCH k")
    b("SET k 1")
    assert a("UNWATCH") == b"+OK\r\n"
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_key_that_runs_out_has_changed(world: World, a: Peer, b: Peer, is_noticed: bool) -> None:
    b("SET k 1 PX 100")
    a("WATCH k")
    world.clock.advance(101)
    if is_noticed:
        b("GET k")
    a("MULTI")
    assert a("EXEC") == CHANGED


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_key_that_had_run_out_before_has_not(world: World, a: Peer, b: Peer, is_noticed: bool) -> None:
    b("SET k 1 PX 100")
    world.clock.advance(101)
    a("WATCH k")
    if is_noticed:
        b("GET k")
    a("MULTI")
    assert a("EXEC") == b"*0\r\n"


def test_a_key_that_had_run_out_and_is_made_again_has_changed(world: World, a: Peer, b: Peer) -> None:
    b("SET k 1 PX 100")
    world.clock.advance(101)
    a("WATCH k")
    b("SET k 2")
    a("MULTI")
    assert a("EXEC") == CHANGED


@pytest.mark.parametrize(
    ("change", "stops"),
    [
        ("XADD s 9-0 f v", True),
        ("XDEL s 1-0", True),
        ("XDEL s 7-0", False),
        ("XTRIM s MAXLEN 0", True),
        ("XGROUP CREATE s g2 0", False),
        ("XGROUP DESTROY s g", False),
        ("XREADGROUP GROUP g c STREAMS s >", False),
        ("XACK s g 1-0", False),
        ("XSETID s 9-0", False),
    ],
)
def test_which_stream_commands_stop_a_transaction(a: Peer, b: Peer, change: str, stops: bool) -> None:
    b("XADD s 1-0 f v")
    b("XGROUP CREATE s g 0")
    a("WATCH s")
    assert not b(change).startswith(b"-")
    a("MULTI")
    assert a("EXEC") == (CHANGED if stops else b"*0\r\n")


def test_a_transaction_is_logged_as_one(world: World, a: Peer) -> None:
    a("MULTI")
    a("SET k 1")
    a("SET l 2")
    a("EXEC")
    assert world.logged() == [[b"MULTI", b"SET k 1", b"SET l 2", b"EXEC"]]
    a("MULTI")
    a("SET k 1")
    a("GET k")
    a("EXEC")
    assert world.logged() == [[b"SET k 1"]]


def test_a_missing_key_that_swapdb_replaces_by_one_that_has_run_out_has_not_changed(world: World, a: Peer) -> None:
    world.hub.active_expiry = False
    a("SET x v PX 1")
    world.clock.advance(10)
    for request in ("SELECT 1", "WATCH x", "SWAPDB 0 1", "MULTI", "PING"):
        a(request)
    assert a("EXEC") == b"*1\r\n+PONG\r\n"


def test_a_key_that_swapdb_replaces_by_one_that_has_run_out_has_changed(world: World, a: Peer) -> None:
    world.hub.active_expiry = False
    a("SET x v PX 1")
    world.clock.advance(10)
    for request in ("SELECT 1", "SET x live", "WATCH x", "SWAPDB 0 1", "MULTI", "PING"):
        a(request)
    assert a("EXEC") == CHANGED


def test_who_monitors_sees_the_commands_of_a_transaction_before_its_end(world: World, a: Peer, b: Peer) -> None:
    b("MONITOR")
    for request in ("MULTI", "SET k v", "EXEC"):
        a(request)
    shown = [line.split(b"] ")[1] for line in b.read().split(b"\r\n")[:-1]]
    assert shown == [b'"MULTI"', b'"SET" "k" "v"', b'"EXEC"']
