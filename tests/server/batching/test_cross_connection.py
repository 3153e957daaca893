"""Requests of several connections in one turn: each gets the reply it would have got alone, whoever else is there."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import CommandError
from millstream.persistence.aof.replay import Replay
from millstream.persistence.aof.writer import LineEncoder
from millstream.server.batching import cross_connection, hot_commands
from millstream.server.batching.cross_connection import Turn
from millstream.server.batching.uniform import AlikeReader, split_alike
from millstream.server.core.hub import Hub
from millstream.server.net.epoll import Reactor
from tests.persistence.memory_files import MemoryFiles
from tests.server.support import Peer, World, words
from tests.support.snapshot import snapshot
from tests.support.wire import pack

LOG = Path("/log")
READ = "XREADGROUP GROUP g {} COUNT 1 STREAMS s >"


class Client(Peer):
    """A peer whose bytes come through a turn, as those of a socket do."""

    def __init__(self, hub: Hub, protocol: int = 2) -> None:
        super().__init__(hub, protocol)
        self.usual = 0  # times that its bytes took the usual way
        self.is_aborted = False

    def data_received(self, data: bytes) -> None:
        self.usual += 1
        self.session.feed(data)

    def reply(self, data: bytes) -> None:
        self._received.append(data)

    def abort(self) -> None:
        self.is_aborted = True


class Side:
    """A world with clients; what they send at once is run in one turn, or one after the other."""

    def __init__(self, *, together: bool = True, clients: int = 8, protocol: int = 2, **settings: str) -> None:
        self.world = World(**settings)
        self.hub = self.world.hub
        self.turn = Turn(self.hub)
        self.together = together
        self.clients = [Client(self.hub, protocol) for _ in range(clients)]
        self.clients[0]("XGROUP CREATE s g 0 MKSTREAM")
        for at in range(clients):
            self.clients[0](f"XGROUP CREATECONSUMER s g c{at}")
        for client in self.clients:  # from now on nothing is special about it
            client("XADD s * f 0")
            client.usual = 0

    def send(self, *arrived: tuple[int, bytes]) -> list[bytes]:
        """Clients by their number send bytes; what each of them has got then."""
        if not self.together:
            for number, data in arrived:
                self.clients[number].session.feed(data)
        else:
            with self.hub.lock:
                self.hub.in_turn = True
                try:
                    for number, data in arrived:
                        self.turn.take(cast(Any, self.clients[number]), data)
                    self.turn.run()
                finally:
                    self.hub.in_turn = False
                    self.hub.send_output(self.turn.answer)
        return [client.read() for client in self.clients]

    def all_send(self, requests: list[str]) -> list[bytes]:
        return self.send(*((at, pack(words(request))) for at, request in enumerate(requests)))

    @property
    def usual(self) -> list[int]:
        return [client.usual for client in self.clients]

    def replayed(self) -> Keyspace:
        """What the log makes of an empty keyspace."""
        keyspace, encoder, files = Keyspace(), LineEncoder(), MemoryFiles()
        files.put(LOG, b"".join(map(encoder.encode, self.world.journal)))
        found = Replay(keyspace, self.world.clock.now_ms()).file(files, LOG)
        assert (found.torn_at, found.errors) == (None, 0)
        return keyspace


def ids_of(replies: list[bytes]) -> list[bytes]:
    return [reply.split(b"\r\n")[1] for reply in replies]


# Together


def test_appends_of_several_connections_are_run_together() -> None:
    side = Side()
    ids = ids_of(side.all_send([f"XADD s * f {'v' * 30}{at}" for at in range(8)]))
    assert side.usual == [0] * 8
    assert ids == [b"1767225600000-%d" % seq for seq in range(8, 16)]
    for at, entry_id in enumerate(ids):
        assert b"v" * 30 + b"%d" % at in side.clients[0](f"XRANGE s {entry_id.decode()} {entry_id.decode()}")


def test_deliveries_and_acknowledgements_of_several_connections_are_run_together() -> None:
    side = Side()
    side.clients[0](READ.format("c0"))  # the first delivery of a group has to find its place
    side.clients[0]("XADD s * f v")
    replies = side.all_send([READ.format(f"c{at}") for at in range(8)])
    ids = [reply.split(b"\r\n")[7] for reply in replies]
    assert ids == [b"1767225600000-%d" % seq for seq in range(1, 9)]
    assert side.all_send([f"XNACK s g FAIL IDS 1 {entry_id.decode()}" for entry_id in ids]) == [b":1\r\n"] * 8
    assert side.all_send([f"XACK s g {entry_id.decode()}" for entry_id in ids]) == [b":1\r\n"] * 8
    assert side.usual == [0] * 8
    assert side.clients[0]("XPENDING s g").startswith(b"*4\r\n:1\r\n$15\r\n1767225600000-0\r\n")


def test_one_connection_alone_takes_the_usual_way() -> None:
    side = Side()
    assert side.send((3, pack(words("XADD s * f v"))))[3] == b"$15\r\n1767225600000-8\r\n"
    assert side.usual == [0, 0, 0, 1, 0, 0, 0, 0]


def test_what_is_counted_of_a_connection_is_counted() -> None:
    side = Side()
    request = f"XADD s * f {'v' * 30}"
    session = side.clients[2].session
    commands, bytes_in, total = session.commands, session.bytes_in, side.hub.stats.commands
    side.all_send([request] * 8)
    assert side.usual == [0] * 8
    assert (session.commands, session.bytes_in) == (commands + 1, bytes_in + len(pack(words(request))))
    assert (session.last_command, side.hub.stats.commands) == ("xadd", total + 8)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_a_turn_does_what_its_requests_do_one_after_the_other(seed: int, protocol: int) -> None:
    rng = random.Random(seed)
    requests = 0
    sides = Side(together=True, protocol=protocol), Side(together=False, protocol=protocol)
    for _ in range(40):
        batch = _batch(rng, sides[0])
        pause_ms = rng.choice([0, 0, 1])
        for side in sides:
            side.world.clock.advance(pause_ms)
            for client in side.clients:  # one with something special about it would come after the others
                client("XADD s * f v")
        requests += len(batch)
        together, apart = (side.send(*batch) for side in sides)
        assert together == apart
    together, apart = (snapshot(side.hub.keyspace) for side in sides)
    assert together == apart
    assert snapshot(sides[0].replayed()) == snapshot(sides[1].replayed())
    assert sides[0].hub.stats.commands == sides[1].hub.stats.commands
    assert sum(sides[0].usual) < requests * 3 / 4  # many did not take the usual way
    invariants.check(sides[0].hub.keyspace)


def _batch(rng: random.Random, side: Side) -> list[tuple[int, bytes]]:
    """Requests that begin alike, of some clients in any order; in a turn they are run in this order."""
    stream = cast(Any, side.hub.keyspace.databases[0].values[b"s"])
    pending = [entry_id.decode() for entry_id, _ in stream.groups[b"g"].pending.in_order(0, 2**128)]
    kind = rng.choice(["add", "add two", "read", "ack", "nack"])
    mode = rng.choice(["SILENT", "FAIL", "FATAL"])
    requests = []
    for number in rng.sample(range(8), rng.randrange(2, 9)):
        match kind:
            case "add":
                request = f"XADD s * f {rng.randrange(10 ** rng.choice([1, 25, 40]))}"
            case "add two":
                request = f"XADD s * f {rng.randrange(100)} {rng.choice('fg')} x"
            case "read":
                request = READ.format(f"c{rng.choice([number, number, 0, 99])}")
            case "nack":
                request = f"XNACK s g {mode} IDS 1 {rng.choice([*pending[:20], '1-1', '01-1', 'x'])}"
            case _:
                request = f"XACK s g {rng.choice([*pending[:20], '1-1', '01-1', 'x'])}"
        requests.append((number, pack(words(request))))
    return requests


# Apart


@pytest.mark.parametrize(
    "request_", [f"XADD s * f {'v' * 30}", "XACK s g 1-1", "XNACK s g FAIL IDS 1 1-1", READ.format("c1")]
)
def test_a_request_that_is_cut_anywhere_is_answered_once_it_is_whole(request_: str) -> None:
    whole = pack(words(request_))
    side = Side()
    for cut in range(1, len(whole)):
        first = side.send((0, whole), (1, whole[:cut]), (2, whole))
        assert (bool(first[0]), first[1], bool(first[2])) == (True, b"", True), cut
        second = side.send((3, whole), (1, whole[cut:]), (4, whole))
        assert [reply[:1] for reply in second[1:5]] == [second[3][:1], b"", second[3][:1], second[3][:1]], cut
    assert not any(client.is_aborted or client.is_cut_off for client in side.clients)


def test_a_request_with_the_beginning_of_the_next_is_answered_and_the_rest_is_kept() -> None:
    whole = pack(words(f"XADD s * f {'v' * 30}"))
    side = Side()
    for cut in range(1, len(whole)):
        assert all(side.send((0, whole), (1, whole + whole[:cut]), (2, whole))[:3]), cut
        assert side.send((0, whole), (1, whole[cut:]), (2, whole))[1].count(b"\r\n") == 2, cut


@pytest.mark.parametrize("seed", range(30))
def test_what_one_sends_is_never_taken_for_what_another_sent(seed: int) -> None:
    """Bytes that are cut, changed or doubled, between good ones; each client acknowledges entries of its own."""
    rng = random.Random(seed)
    sides = Side(together=True), Side(together=False)
    for side in sides:
        for at in range(200):
            side.clients[0](f"XADD s 1767225600001-{at} f v")
        side.clients[0]("XREADGROUP GROUP g c0 STREAMS s >")
        for client in side.clients:
            client("XACK s g 1767225600000-1")  # nothing is special any more
            client("XADD t * f v")
    for turn_ in range(25):
        batch = []
        for number in range(8):
            request = pack([b"XACK", b"s", b"g", b"1767225600001-%d" % (8 * turn_ + number)])
            if rng.random() < 0.3:
                request = _damaged(rng, request)
            batch.append((number, request))
        together, apart = (side.send(*batch) for side in sides)
        assert together == apart
    assert snapshot(sides[0].hub.keyspace) == snapshot(sides[1].hub.keyspace)
    assert [client.is_cut_off for client in sides[0].clients] == [client.is_cut_off for client in sides[1].clients]


def _damaged(rng: random.Random, request: bytes) -> bytes:
    at = rng.randrange(1, len(request))
    match rng.randrange(5):
        case 0:
            return request[:at]
        case 1:
            return request[:at] + b"\r\n" + request[at:]
        case 2:
            return request[:at] + request
        case 3:
            return request + request[:at]
        case _:
            return request[:at] + bytes([request[at] ^ (1 << rng.randrange(8))]) + request[at + 1 :]


def test_words_that_look_like_requests_stay_words() -> None:
    inner = pack(words(f"XADD s * f {'w' * 30}"))
    side = Side()
    ids = ids_of(side.send(*((at, pack([b"XADD", b"s", b"*", b"f", inner + b"%d" % at])) for at in range(8))))
    for at, entry_id in enumerate(ids):
        assert inner + b"%d\r\n" % at in side.clients[0](f"XRANGE s {entry_id.decode()} {entry_id.decode()}")
    assert side.clients[0]("XLEN s") == b":16\r\n"


def test_pieces_are_believed_only_if_each_is_one_whole_request() -> None:
    request = pack([b"XACK", b"s", b"g", b"1-1"])
    assert split_alike([request, request], 4) == [[b"XACK", b"s", b"g", b"1-1"]] * 2
    half = request.index(b"$1\r\ng")
    for pieces in ([request[:half], request[half:]], [request + request, request], [request, request[:-1]]):
        assert split_alike(pieces, 4) is None
    assert split_alike([request, request.replace(b"$1\r\ng", b"$2\r\ng")], 4) is None
    reader = AlikeReader()
    assert reader.read([request, request + request]) is None
    assert reader.read([request, request.replace(b"$3\r\n1-1", b"$4\r\n1-1")]) is None
    assert reader.read([request, request.replace(b"$1\r\ng", b"$1\r\nh")]) is None


# Connections with something special about them


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("MULTI", b"+QUEUED\r\n"),
        ("CLIENT REPLY OFF", b""),
        ("SUBSCRIBE channel", b"-ERR Can't execute 'xadd'"),
        ("SELECT 1", b"$"),
        ("HELLO 3", b"$"),
        ("XREAD BLOCK 0 STREAMS none $", b""),
        ("WATCH s", b"$"),
        ("NOPE", b"$"),
    ],
)
def test_a_connection_with_something_special_about_it_gets_what_is_its_own(before: str, expected: bytes) -> None:
    side = Side()
    side.clients[1](before)
    replies = side.all_send([f"XADD s * f {'v' * 30}{at}" for at in range(8)])
    assert replies[1].startswith(expected)
    assert bool(replies[1]) == bool(expected)
    assert all(reply.startswith(b"$") for at, reply in enumerate(replies) if at != 1)
    assert side.clients[2]("XLEN s") == (b":16\r\n" if before in ("HELLO 3", "WATCH s", "NOPE") else b":15\r\n") or (
        before == "CLIENT REPLY OFF"  # it is run, and not answered
    )


def test_connections_in_different_databases_and_protocols_write_to_their_own() -> None:
    side = Side()
    for at, client in enumerate(side.clients):
        client(f"SELECT {at % 3}")
        client(f"HELLO {2 + at % 2}")
        client("XADD s * f v")
        client("XADD s * f v")
    side.all_send([f"XADD s * f {'v' * 30}{at}" for at in range(8)])
    lengths = [side.hub.run([b"XLEN", b"s"], db) for db in range(3)]
    assert lengths == [8 + 3 * 3, 3 * 3, 2 * 3]
    keyspace = side.replayed()
    assert [cast(Any, db.values[b"s"]).entries_added for db in list(keyspace)[:3]] == lengths


def test_nobody_who_is_to_be_told_is_passed_over() -> None:
    side = Side(notify_keyspace_events="KEA")
    listener = Peer(side.hub)
    listener("SUBSCRIBE __keyspace@0__:s")
    side.all_send([f"XADD s * f {'v' * 30}" for _ in range(8)])
    assert listener.read().count(b"xadd") == 8
    side = Side()
    monitor = Peer(side.hub)
    monitor("MONITOR")
    side.all_send([f"XADD s * f {'v' * 30}" for _ in range(8)])
    assert monitor.read().count(b'"XADD"') == 8


def test_a_reader_that_waits_is_woken_by_a_turn() -> None:
    side = Side()
    reader = Peer(side.hub)
    reader("XREAD BLOCK 0 STREAMS s $")
    assert reader.is_blocked
    side.all_send([f"XADD s * f {'v' * 30}" for _ in range(8)])
    assert b"1767225600000-8" in reader.read()
    assert not reader.is_blocked


def test_a_turn_waits_for_the_end_of_a_pause() -> None:
    side = Side()
    admin = Peer(side.hub)
    admin("CLIENT PAUSE 1000 WRITE")
    requests = [f"XADD s * f {'v' * 30}{at}" for at in range(8)]
    assert side.all_send(requests) == [b""] * 8
    admin("CLIENT UNPAUSE")
    replies = [client.read() for client in side.clients]
    assert ids_of(replies) == [b"1767225600000-%d" % seq for seq in range(8, 16)]


# What goes wrong


def test_an_error_in_the_middle_is_for_the_one_who_made_it() -> None:
    side = Side()
    side.clients[0]("SET text x")
    requests = [f"XADD s * f {'v' * 30}" for _ in range(8)]
    requests[2], requests[5] = f"XADD text * f {'v' * 30}", f"XADD s 0-0 f {'v' * 30}"
    replies = side.all_send(requests)
    assert replies[2] == b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    assert replies[5] == b"-ERR The ID specified in XADD must be greater than 0-0\r\n"
    assert all(reply.startswith(b"$") for at, reply in enumerate(replies) if at not in (2, 5))
    assert side.clients[0]("XLEN s") == b":14\r\n"


def test_an_entry_is_acknowledged_once_whoever_else_tries() -> None:
    side = Side()
    side.all_send([READ.format(f"c{at}") for at in range(8)])
    assert sorted(side.all_send(["XACK s g 1767225600000-3"] * 8)) == [b":0\r\n"] * 7 + [b":1\r\n"]


def test_an_entry_is_given_to_one_and_nobody_gets_more_than_there_is() -> None:
    side = Side()
    side.all_send([READ.format(f"c{at}") for at in range(5)] + ["PING"] * 3)
    replies = side.all_send([READ.format(f"c{at}") for at in range(8)])
    assert sorted(reply == b"*-1\r\n" for reply in replies) == [False] * 3 + [True] * 5


def test_one_who_is_closed_within_the_turn_costs_nobody_else_theirs() -> None:
    side = Side()
    requests = [f"XADD s * f {'v' * 30}" for _ in range(8)]
    requests[0] = f"CLIENT KILL ID {side.clients[4].session.id}"
    replies = side.all_send(requests)
    assert replies[0] == b":1\r\n"
    assert replies[4] == b""
    assert side.clients[4].is_cut_off
    assert [reply[:1] for at, reply in enumerate(replies) if at not in (0, 4)] == [b"$"] * 6
    assert side.clients[1]("XLEN s") == b":14\r\n"


def test_one_who_has_left_before_its_turn_has_done_nothing() -> None:
    side = Side()
    side.clients[3].session.close()
    replies = side.all_send([f"XADD s * f {'v' * 30}" for _ in range(8)])
    assert [bool(reply) for reply in replies] == [True] * 3 + [False] + [True] * 4
    assert side.clients[0]("XLEN s") == b":15\r\n"


def test_no_reply_promises_what_could_not_be_kept() -> None:
    side = Side()
    side.hub.before_replies = lambda: CommandError("MISCONF the disk is full")
    requests = [f"XADD s * f {'v' * 30}" for _ in range(8)]
    requests[3] = "PING"
    replies = side.all_send(requests)
    assert replies.pop(3) == b"+PONG\r\n"
    assert replies == [b"-MISCONF the disk is full\r\n"] * 7
    assert side.usual == [0, 0, 0, 1, 0, 0, 0, 0]


def test_no_reply_goes_out_before_the_log_is_written() -> None:
    side = Side()
    seen: list[int] = []

    def write() -> None:
        seen.append(sum(len(client._received) for client in side.clients))

    side.hub.before_replies = write
    assert all(side.all_send([f"XADD s * f {'v' * 30}" for _ in range(8)]))
    assert seen == [0]  # one write for all of them, ahead of their replies


def test_what_fails_in_a_way_it_must_not_costs_those_who_took_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*arguments: object) -> int:
        raise RuntimeError("broken on purpose")

    side = Side()
    monkeypatch.setitem(hot_commands.EXPRESS_ALIKE, b"XACK", ("xack", break_down))
    monkeypatch.setattr(cross_connection, "EXPRESS_ALIKE", hot_commands.EXPRESS_ALIKE)
    replies = side.all_send(["XACK s g 1-1"] * 3 + [f"XADD s * f {'v' * 30}"] * 3 + ["PING"] * 2)
    assert [client.is_aborted for client in side.clients] == [True] * 3 + [False] * 5
    assert [reply[:1] for reply in replies[3:]] == [b"$"] * 3 + [b"+"] * 2
    assert "3 connections" in caplog.text


def test_a_reply_that_cannot_be_sent_costs_its_own_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(data: bytes) -> None:
        raise RuntimeError("broken on purpose")

    side = Side()
    monkeypatch.setattr(side.clients[1], "reply", break_down)
    replies = side.all_send([f"XADD s * f {'v' * 30}"] * 3)
    assert [client.is_aborted for client in side.clients[:3]] == [False, True, False]
    assert [reply[:1] for reply in replies[:3]] == [b"$", b"", b"$"]
    assert "could not be handed over" in caplog.text


def test_replies_do_not_wait_for_a_script_behind_them() -> None:
    side = Side(clients=2)
    loop = asyncio.new_event_loop()
    reactor = Reactor(side.hub, loop)
    try:
        with side.hub.lock:
            side.hub.in_turn = True
            for client in side.clients:
                reactor.turn.take(cast(Any, client), pack(words(f"XADD s * f {'v' * 30}")))
            reactor.turn.run()
            assert [client.read() for client in side.clients] == [b"", b""]
            assert side.hub.hear_others is not None
            side.hub.hear_others()  # as a script does that takes long
            assert [client.read()[:1] for client in side.clients] == [b"$", b"$"]
    finally:
        side.hub.in_turn = False
        reactor.close()
        loop.close()


def test_one_who_has_something_to_read_first_gets_it_first() -> None:
    side = Side()
    with side.hub.lock:
        side.hub.in_turn = True
        side.clients[1].session.push(b"+first\r\n")
    replies = side.all_send([f"XADD s * f {'v' * 30}"] * 3)
    assert [reply[:1] for reply in replies[:3]] == [b"$", b"+", b"$"]
    assert replies[1].startswith(b"+first\r\n$")
    assert side.usual[:3] == [0, 1, 0]
