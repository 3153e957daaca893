"""Blocked reads: who is served, when, in which order, and what ends a wait otherwise (base §6, new §4.6)."""

from __future__ import annotations

import pytest

from tests.server.support import Peer, World
from tests.support.wire import pack

NIL = b"*-1\r\n"
NO_GROUP = b"-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n"


def entry_of(key: bytes, *ids: bytes) -> bytes:
    """The reply of a read of one stream whose entries are all `f v`."""
    entries = b"".join(b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % (len(i), i) for i in ids)
    return b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(key), key, len(ids)) + entries


def group_read(consumer: str, *options: str, block: int = 0) -> str:
    return " ".join(["XREADGROUP GROUP g", consumer, *options, f"BLOCK {block} STREAMS s >"])


@pytest.fixture
def readers(world: World) -> list[Peer]:
    """Three connections."""
    return [world.peer() for _ in range(3)]


@pytest.fixture
def writer(world: World) -> Peer:
    peer = world.peer()
    peer("XGROUP CREATE s g $ MKSTREAM")
    return peer


# Serving


def test_all_plain_readers_get_a_new_entry(readers: list[Peer], writer: Peer) -> None:
    for reader in readers:
        assert reader("XREAD BLOCK 0 STREAMS s $") == b""
    assert writer("XADD s 1-0 f v") == b"$3\r\n1-0\r\n"
    assert [reader.read() for reader in readers] == [entry_of(b"s", b"1-0")] * 3


def test_readers_of_a_group_are_served_in_the_order_they_came(readers: list[Peer], writer: Peer) -> None:
    for number, reader in enumerate(readers):
        reader(group_read(f"c{number}", "COUNT 1"))
    for number in (1, 2, 3):
        writer(f"XADD s {number}-0 f v")
    assert [reader.read() for reader in readers] == [entry_of(b"s", b"%d-0" % n) for n in (1, 2, 3)]


def test_one_entry_runs_the_command_of_few_of_many_waiting_readers(
    world: World, writer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [world.peer() for _ in range(50)]
    for number, reader in enumerate(many):
        reader(group_read(f"c{number}", "COUNT 1"))
    perform, ran = world.hub.perform, []
    monkeypatch.setattr(world.hub, "perform", lambda *call: ran.append(call[1].name) or perform(*call))
    world.pass_ms(1000)
    ran.clear()
    writer("XADD s 1-0 f v")
    assert ran == ["xadd", "xreadgroup", "xreadgroup"]  # the one that is served, and one that finds nothing more
    assert many[0].read() == entry_of(b"s", b"1-0")
    assert b"$4\r\nidle\r\n:1000" not in writer("XINFO CONSUMERS s g"), "all of them have asked again"
    for number in range(1, 50):
        writer(f"XADD s {number + 1}-0 f v")
        assert many[number].read() == entry_of(b"s", b"%d-0" % (number + 1)), "the order has stayed"


def test_readers_with_another_question_or_group_are_run(world: World, writer: Peer) -> None:
    writer("XGROUP CREATE s other $")
    first, second, third = (world.peer() for _ in range(3))
    first(group_read("c1", "COUNT 1"))
    second(group_read("c2", "COUNT 2"))
    third("XREADGROUP GROUP other c3 COUNT 1 BLOCK 0 STREAMS s >")
    writer("XADD s 1-0 f v")
    assert (first.read(), second.read(), third.read()) == (entry_of(b"s", b"1-0"), b"", entry_of(b"s", b"1-0"))
    writer("XADD s 2-0 f v")
    assert second.read() == entry_of(b"s", b"2-0")


def test_the_first_takes_all_and_the_others_wait_on(readers: list[Peer], writer: Peer) -> None:
    for number, reader in enumerate(readers):
        reader(group_read(f"c{number}"))
    writer("MULTI")
    writer("XADD s 1-0 f v")
    writer("XADD s 2-0 f v")
    writer("EXEC")
    assert [reader.read() for reader in readers] == [entry_of(b"s", b"1-0", b"2-0"), b"", b""]
    assert [reader.is_blocked for reader in readers] == [False, True, True]


def test_nobody_is_served_between_the_commands_of_a_transaction(readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    readers[1](group_read("c"))
    for request in ("MULTI", "XADD s 1-0 f v", "XDEL s 1-0", "EXEC"):
        writer(request)
    assert readers[0].is_blocked
    assert readers[1].is_blocked
    for request in ("MULTI", "XADD s 2-0 f v", "DEL s", "EXEC"):
        writer(request)
    assert readers[0].is_blocked
    assert readers[1].read() == NO_GROUP


def test_somebody_is_served_between_the_commands_of_a_packet(readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    writer.raw(pack([b"XADD", b"s", b"1-0", b"f", b"v"]) + pack([b"DEL", b"s"]))
    assert readers[0].read() == entry_of(b"s", b"1-0")


def test_a_reader_that_waits_on_keeps_its_place_and_its_deadline(
    world: World, readers: list[Peer], writer: Peer
) -> None:
    readers[0](group_read("c0", block=1000))
    world.pass_ms(400)
    readers[1](group_read("c1", block=5000))
    for request in ("MULTI", "XADD s 1-0 f v", "XDEL s 1-0", "EXEC"):  # both run again and find nothing
        writer(request)
    world.pass_ms(599)
    assert readers[0].is_blocked
    writer("XADD s 2-0 f v")
    assert readers[0].read() == entry_of(b"s", b"2-0")
    world.pass_ms(4400)
    assert readers[1].is_blocked
    world.pass_ms(1)
    assert readers[1].read() == NIL


def test_a_reader_of_several_streams_gets_all_that_is_there(readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS a b a $ $ $")
    for request in ("MULTI", "XADD b 1-0 f v", "XADD a 1-0 f v", "EXEC"):
        writer(request)
    reply = readers[0].read()
    assert reply.startswith(b"*3\r\n*2\r\n$1\r\na\r\n")
    assert reply.count(b"1-0") == 3


def test_serving_one_may_make_work_for_another(world: World, readers: list[Peer], writer: Peer) -> None:
    """Requests that had waited behind a block run when it ends, and serve others in turn."""
    readers[0].raw(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]) + pack([b"XADD", b"t", b"5-0", b"f", b"v"]))
    readers[1]("XREAD BLOCK 0 STREAMS t $")
    writer("XADD s 1-0 f v")
    assert readers[0].read() == entry_of(b"s", b"1-0") + b"$3\r\n5-0\r\n"
    assert readers[1].read() == entry_of(b"t", b"5-0")


def test_requests_behind_a_block_wait_for_the_packet_of_the_other(readers: list[Peer], writer: Peer) -> None:
    readers[0].raw(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]) + pack([b"SET", b"k", b"late"]))
    reply = writer.raw(pack([b"XADD", b"s", b"1-0", b"f", b"v"]) + pack([b"GET", b"k"]))
    assert reply.endswith(b"$-1\r\n")
    assert writer("GET k") == b"$4\r\nlate\r\n"


def test_a_read_of_resp3_is_served_with_a_map(world: World, writer: Peer) -> None:
    reader = world.peer(3)
    reader.read()
    reader("XREAD BLOCK 0 STREAMS s $")
    writer("XADD s 1-0 f v")
    assert reader.read().startswith(b"%1\r\n$1\r\ns\r\n*1\r\n")


# What else wakes


@pytest.mark.parametrize(
    ("change", "plain", "of_group"),
    [
        ("DEL s", b"", NO_GROUP),
        ("UNLINK s", b"", NO_GROUP),
        ("XGROUP DESTROY s g", b"", NO_GROUP),
        ("RENAME s t", b"", NO_GROUP),
        ("FLUSHALL", b"", NO_GROUP),
        ("PEXPIRE s 0", b"", NO_GROUP),
        ("SET s x", b"", b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("XGROUP SETID s g 0", b"", b""),
        ("XGROUP CREATE s g2 0", b"", b""),
        ("XSETID s 9-0", b"", b""),
        ("XTRIM s MAXLEN 0", b"", b""),
    ],
)
def test_what_wakes_whom(readers: list[Peer], writer: Peer, change: str, plain: bytes, of_group: bytes) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    readers[1](group_read("c"))
    assert not writer(change).startswith(b"-")
    assert [reader.read() for reader in readers[:2]] == [plain, of_group]
    assert [reader.is_blocked for reader in readers[:2]] == [not plain, not of_group]


def test_a_key_that_runs_out_wakes_readers_of_a_group(world: World, readers: list[Peer], writer: Peer) -> None:
    writer("PEXPIRE s 100")
    readers[0](group_read("c"))
    world.pass_ms(100)
    assert readers[0].is_blocked
    world.pass_ms(1)
    assert readers[0].read() == NO_GROUP


def test_a_stream_that_is_renamed_here_serves(readers: list[Peer], writer: Peer) -> None:
    writer("XADD t 7-0 f v")
    readers[0]("XREAD BLOCK 0 STREAMS new 0")
    writer("RENAME t new")
    assert readers[0].read() == entry_of(b"new", b"7-0")


def test_released_entries_serve_readers_that_claim(readers: list[Peer], writer: Peer) -> None:
    writer("XADD s 1-0 f v")
    writer("XREADGROUP GROUP g dead STREAMS s >")
    readers[0](group_read("c0", "CLAIM 100000"))
    readers[1](group_read("c1"))
    assert writer("XNACK s g FAIL IDS 1 1-0") == b":1\r\n"
    assert b"1-0" in readers[0].read()
    assert readers[1].is_blocked


# Claims that become due


def test_a_claim_is_served_when_its_entry_has_been_idle_long_enough(
    world: World, readers: list[Peer], writer: Peer
) -> None:
    writer("XADD s 1-0 f v")
    writer("XREADGROUP GROUP g dead STREAMS s >")
    readers[0](group_read("c", "CLAIM 300"))
    world.pass_ms(300)
    assert readers[0].is_blocked
    world.pass_ms(1)
    assert b":301\r\n:1\r\n" in readers[0].read()


def test_of_two_claims_each_waits_for_its_own_idle_time(world: World, readers: list[Peer], writer: Peer) -> None:
    """The second claim takes the entry first, and with it the idle time the first one waits for."""
    writer("XADD s 1-0 f v")
    writer("XREADGROUP GROUP g dead STREAMS s >")
    readers[0](group_read("slow", "CLAIM 900"))
    readers[1](group_read("quick", "CLAIM 300"))
    world.pass_ms(301)
    assert b"1-0" in readers[1].read()
    world.pass_ms(600)
    assert readers[0].is_blocked
    world.pass_ms(301)
    assert b"1-0" in readers[0].read()


def test_a_claim_is_looked_at_again_after_its_time_if_it_found_nothing(
    world: World, readers: list[Peer], writer: Peer
) -> None:
    writer("XADD s 1-0 f v")
    writer("XREADGROUP GROUP g dead STREAMS s >")
    readers[0](group_read("c", "CLAIM 300"))
    world.clock.advance(200)
    writer("XCLAIM s g other 0 1-0")  # starts its idle time again
    world.pass_ms(101)
    assert readers[0].is_blocked
    world.pass_ms(200)
    assert b"1-0" in readers[0].read()


def test_a_claim_on_a_stream_that_is_gone_is_forgotten(world: World, readers: list[Peer], writer: Peer) -> None:
    readers[0](group_read("c", "CLAIM 300"))
    writer("DEL s")
    assert readers[0].read() == NO_GROUP
    world.pass_ms(301)
    assert world.hub.next_due_ms() is None


# The end of a wait


def test_a_wait_ends_at_its_deadline_and_not_before(world: World, readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 250 STREAMS s $")
    world.pass_ms(249)
    assert readers[0].read() == b""
    world.pass_ms(1)
    assert readers[0].read() == NIL


def test_resp3_times_out_with_its_null(world: World, writer: Peer) -> None:
    reader = world.peer(3)
    reader.read()
    reader("XREAD BLOCK 1 STREAMS s $")
    world.pass_ms(1)
    assert reader.read() == b"_\r\n"


def test_who_hangs_up_has_taken_nothing(world: World, readers: list[Peer], writer: Peer) -> None:
    readers[0](group_read("gone"))
    readers[0].session.close()
    readers[1](group_read("here"))
    writer("XADD s 1-0 f v")
    assert readers[1].read() == entry_of(b"s", b"1-0")
    assert writer("XPENDING s g") == b"*4\r\n:1\r\n$3\r\n1-0\r\n$3\r\n1-0\r\n*1\r\n*2\r\n$4\r\nhere\r\n$1\r\n1\r\n"


def test_a_client_can_be_unblocked(readers: list[Peer], writer: Peer) -> None:
    number = readers[0].session.id
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    assert writer(f"CLIENT UNBLOCK {number}") == b":1\r\n"
    assert readers[0].read() == NIL
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    assert writer(f"CLIENT UNBLOCK {number} ERROR") == b":1\r\n"
    assert readers[0].read() == b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
    assert writer(f"CLIENT UNBLOCK {number}") == b":0\r\n"


def test_a_client_that_is_killed_takes_nothing(readers: list[Peer], writer: Peer) -> None:
    readers[0](group_read("c"))
    assert writer(f"CLIENT KILL ID {readers[0].session.id}") == b":1\r\n"
    assert readers[0].is_cut_off
    writer("XADD s 1-0 f v")
    assert readers[0].read() == b""
    assert writer("XPENDING s g").startswith(b"*4\r\n:0\r\n")


def test_wait_answers_nought_at_its_deadline(world: World, readers: list[Peer]) -> None:
    assert readers[0]("WAIT 1 100") == b""
    world.pass_ms(100)
    assert readers[0].read() == b":0\r\n"
    assert readers[0]("WAIT 0 100") == b":0\r\n"


# What is counted and logged


def test_blocked_clients_and_their_keys_are_counted_at_once(readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS s t t $ $ $")
    readers[1](group_read("c"))
    info = writer("INFO clients")
    for line in (b"blocked_clients:2", b"total_blocking_keys:2", b"total_blocking_keys_on_nokey:1"):
        assert line + b"\r\n" in info
    readers[0].session.close()
    readers[1].session.close()
    info = writer("INFO clients")
    for line in (b"blocked_clients:0", b"total_blocking_keys:0", b"total_blocking_keys_on_nokey:0"):
        assert line + b"\r\n" in info


def test_a_command_that_blocked_counts_once_when_it_ends(readers: list[Peer], writer: Peer) -> None:
    readers[0]("XREAD BLOCK 0 STREAMS s $")
    assert b"cmdstat_xread:" not in writer("INFO commandstats")
    for request in ("MULTI", "XADD s 1-0 f v", "XDEL s 1-0", "EXEC"):
        writer(request)
    assert b"cmdstat_xread:" not in writer("INFO commandstats")
    writer("XADD s 2-0 f v")
    assert b"cmdstat_xread:calls=1," in writer("INFO commandstats")


def test_a_delivery_to_a_waiter_is_logged_after_what_woke_it(world: World, readers: list[Peer], writer: Peer) -> None:
    readers[0](group_read("c"))
    world.logged()
    writer("XADD s 1-0 f v")
    batches = world.logged()
    assert batches[0] == [b"XADD s 1-0 f v"]
    assert [line.split(b" ")[0] for line in batches[1]] == [b"MULTI", b"XCLAIM", b"XGROUP", b"EXEC"]
