"""The hub without connections: one-off commands, waiting threads, who observes, the timer."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from millstream.engine.outcome import NIL_ARRAY, Reply
from millstream.errors import CommandError
from millstream.server.core.hub import Hub, LogLine
from tests.server.support import Peer, World, words


def timers() -> set[threading.Thread]:
    """The timers that run; those of other tests may still be ending."""
    return {thread for thread in threading.enumerate() if thread.name == "millstream-timer"}


def eventually(condition: object, within_s: float = 60) -> bool:
    """Whether something comes true soon: for what another thread does."""
    assert callable(condition)
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class Box:
    """Keeps a reply."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def resume(self, reply: Reply) -> None:
        self.replies.append(reply)


# One command at a time


def test_a_command_runs_without_a_connection(world: World) -> None:
    assert world.hub.run([b"SET", b"k", b"v"], db=3) == b"OK"
    assert world.hub.run([b"GET", b"k"], db=3) == b"v"
    assert world.hub.run([b"GET", b"k"]) is None


def test_an_error_is_raised(world: World) -> None:
    for argv in ([b"NOPE"], [b"GET"], [b"XADD", b"s", b"0-0", b"f", b"v"]):
        with pytest.raises(CommandError, match=r"^ERR "):
            world.hub.run(argv)


@pytest.mark.parametrize("command", ["MULTI", "SUBSCRIBE c", "SELECT 1", "WATCH k", "HELLO 3", "MONITOR"])
def test_what_changes_a_connection_needs_one(world: World, command: str) -> None:
    with pytest.raises(CommandError, match="needs a connection"):
        world.hub.run(words(command))


def test_a_blocking_command_does_not_block(world: World) -> None:
    assert world.hub.run(words("XREAD BLOCK 0 STREAMS s $")) is NIL_ARRAY


def test_server_commands_work_too(world: World) -> None:
    assert world.hub.run([b"PUBLISH", b"c", b"x"]) == 0
    assert world.hub.run([b"CONFIG", b"GET", b"hz"]) == [b"hz", b"10"]


def test_a_command_wakes_those_who_wait(world: World) -> None:
    peer = world.peer()
    peer("XREAD BLOCK 0 STREAMS s $")
    world.hub.run(words("XADD s 1-0 f v"))
    assert b"1-0" in peer.read()


# Waiting without a connection


def test_a_submitted_command_answers_at_once_or_later(world: World) -> None:
    box = Box()
    assert world.hub.submit([b"PING"], box) is None
    assert world.hub.submit([b"NOPE"], box) is None
    assert world.hub.submit(words("XREAD BLOCK 0 STREAMS s $"), box) is not None
    assert len(box.replies) == 2
    world.hub.run(words("XADD s 1-0 f v"))
    assert len(box.replies) == 3


def test_a_submitted_command_can_be_given_up(world: World) -> None:
    world.hub.run(words("XGROUP CREATE s g $ MKSTREAM"))
    box = Box()
    waiter = world.hub.submit(words("XREADGROUP GROUP g c BLOCK 0 STREAMS s >"), box)
    assert waiter is not None
    world.hub.blocking.give_up(waiter)
    world.hub.run(words("XADD s 1-0 f v"))
    assert box.replies == []
    assert not world.hub.observed or world.hub.journal is not None
    assert world.hub.run(words("XPENDING s g")) == [0, None, None, NIL_ARRAY]


def test_a_thread_waits_for_its_reply() -> None:
    hub = Hub()
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(hub.run_blocking(words("XREAD BLOCK 0 STREAMS s $"))))
    thread.start()
    assert eventually(lambda: len(hub.waiters) == 1)
    hub.run(words("XADD s 1-0 f v"))
    thread.join(60)
    assert replies
    assert replies[0] is not NIL_ARRAY
    hub.close()


def test_a_thread_can_stop_waiting_by_itself(world: World) -> None:
    assert world.hub.run_blocking(words("XREAD BLOCK 0 STREAMS s $"), timeout_s=0.01) is NIL_ARRAY
    assert len(world.hub.waiters) == 0


def test_an_error_reaches_a_thread_that_waited() -> None:
    hub = Hub()
    hub.run(words("XGROUP CREATE s g $ MKSTREAM"))
    threading.Timer(0.02, hub.run, [words("DEL s")]).start()
    with pytest.raises(CommandError, match=r"^NOGROUP"):
        hub.run_blocking(words("XREADGROUP GROUP g c BLOCK 0 STREAMS s >"))
    hub.close()


def test_many_threads_read_a_group_and_each_entry_comes_once() -> None:
    hub = Hub()
    hub.run(words("XGROUP CREATE s g $ MKSTREAM"))
    seen: list[Reply] = []

    def read(name: str) -> None:
        while True:
            reply = hub.run_blocking(words(f"XREADGROUP GROUP g {name} COUNT 1 BLOCK 0 STREAMS s >"))
            assert isinstance(reply, list)
            if b"stop" in repr(reply).encode():
                return
            seen.append(repr(reply).encode())

    threads = [threading.Thread(target=read, args=(f"c{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for n in range(200):
        hub.run(words(f"XADD s * n {n}"))
    for _ in threads:
        hub.run(words("XADD s * stop stop"))
    for thread in threads:
        thread.join(60)
    assert len(seen) == len({str(item) for item in seen}) == 200
    hub.close()


# Who observes


def test_nobody_observes_a_quiet_hub() -> None:
    assert not Hub().observed


def test_a_journal_observes() -> None:
    hub = Hub()
    hub.journal = lambda lines: None
    assert hub.observed
    hub.journal = None
    assert not hub.observed


def test_notifications_watches_waiters_and_monitors_observe() -> None:
    world = World()
    world.hub.journal = None
    peer, other = world.peer(), world.peer()
    peer("GET k")
    peer("SUBSCRIBE c")
    peer("UNSUBSCRIBE")
    assert not world.hub.observed
    for begin, end in (
        ("CONFIG SET notify-keyspace-events KEA", ["CONFIG", "SET", "notify-keyspace-events", ""]),
        ("WATCH k", "UNWATCH"),
        ("MONITOR", "RESET"),
        ("WATCH k", "RESET"),
    ):
        peer(begin)
        assert world.hub.observed, begin
        peer(end)
        assert not world.hub.observed, begin
    peer("XREAD BLOCK 100 STREAMS s $")
    assert world.hub.observed
    other("XADD s 1-0 f v")
    assert not world.hub.observed
    peer("XREAD BLOCK 100 STREAMS s $")
    world.pass_ms(100)
    assert not world.hub.observed
    peer("WATCH k")
    peer.session.close()
    assert not world.hub.observed


# Time


def test_nothing_happens_by_itself_with_a_clock_of_one_s_own(world: World) -> None:
    peer = world.peer()
    peer("SET k v PX 1")
    peer("XREAD BLOCK 1 STREAMS s $")
    world.clock.advance(1000)
    time.sleep(0.02)
    assert world.hub._timer is None
    assert peer.is_blocked
    assert world.hub.next_due_ms() is not None
    world.hub.tick()
    assert peer.read() == b"*-1\r\n"
    assert b"k" not in world.hub.keyspace.databases[0].values
    assert world.hub.next_due_ms() is None


def test_all_keys_that_are_due_go_in_one_tick(world: World) -> None:
    for number in range(2500):
        world.hub.run([b"SET", b"k%d" % number, b"v", b"PX", b"5"])
    world.journal.clear()
    world.pass_ms(6)
    assert not world.hub.keyspace.databases[0].values
    assert [line for batch in world.logged() for line in batch].count(b"MULTI") == 0


def test_active_expiry_can_be_switched_off() -> None:
    world = World(enable_debug_command="yes")
    peer = world.peer()
    peer("DEBUG SET-ACTIVE-EXPIRE 0")
    peer("SET k v PX 5")
    world.pass_ms(10)
    assert b"k" in world.hub.keyspace.databases[0].values
    peer("DEBUG SET-ACTIVE-EXPIRE 1")
    world.pass_ms(1)
    assert b"k" not in world.hub.keyspace.databases[0].values


def test_idempotency_records_are_swept_once_a_second(world: World) -> None:
    run = world.hub.run
    run(words("XADD s IDMP p i * f v"))
    run(words("XCFGSET s IDMP-DURATION 1"))
    run(words("XADD s IDMP p i * f v"))
    world.pass_ms(999)
    assert world.hub.keyspace.databases[0].idempotent
    world.pass_ms(1001)
    assert not world.hub.keyspace.databases[0].idempotent
    assert world.hub.next_due_ms() is None


def test_the_timer_is_there_only_while_it_is_needed() -> None:
    before = timers()
    hub = Hub()
    hub.run([b"SET", b"k", b"v"])
    assert not timers() - before
    assert hub.run_blocking(words("XREAD BLOCK 20 STREAMS s $")) is NIL_ARRAY
    assert len(timers() - before) <= 1
    assert eventually(lambda: not timers() - before)
    hub.run_blocking(words("XREAD BLOCK 5 STREAMS s $"))
    hub.close()
    assert eventually(lambda: not timers() - before)


def test_deadlines_are_met_closely_and_never_early() -> None:
    hub = Hub()
    late: list[float] = []
    for _ in range(5):
        started = time.time()
        hub.run_blocking(words("XREAD BLOCK 30 STREAMS s $"))
        late.append(time.time() - started - 0.030)
    assert min(late) >= -0.001
    assert min(late) < 0.5  # a timer that was not aimed would come after a second
    hub.close()


def test_a_claim_is_served_soon_after_it_is_due() -> None:
    hub = Hub()
    hub.run(words("XGROUP CREATE s g $ MKSTREAM"))
    hub.run(words("XADD s 1-0 f v"))
    late: list[float] = []
    for _ in range(5):
        started = time.time()  # before the delivery: the entry's idle time counts from there
        hub.run(words("XREADGROUP GROUP g c CLAIM 0 STREAMS s >"))
        hub.run_blocking(words("XREADGROUP GROUP g c CLAIM 40 BLOCK 2000 STREAMS s >"))
        late.append(time.time() - started - 0.040)
    assert min(late) >= -0.002
    assert min(late) < 0.5  # a timer that was not aimed would come after a second
    hub.close()


def test_keys_expire_by_themselves() -> None:
    hub = Hub()
    hub.run(words("SET later v PX 60000"))
    hub.run(words("SET k v PX 10"))
    assert eventually(lambda: b"k" not in hub.keyspace.databases[0].values)
    hub.run(words("SET k v"))
    hub.run(words("MOVE k 5"))
    hub.run(words("PEXPIRE k 10"), db=5)
    assert eventually(lambda: not hub.keyspace.databases[5].values)
    hub.close()


def test_a_hub_that_nobody_uses_goes_away_with_its_timer() -> None:
    before = timers()
    hub = Hub()
    hub.run(words("SET k v PX 100000"))
    (timer,) = timers() - before
    gone = weakref.ref(hub)
    del hub
    gc.collect()
    assert eventually(lambda: gone() is None)
    assert eventually(lambda: timer not in timers())


def test_closing_ends_connections_and_waits() -> None:
    hub = Hub()
    ended = threading.Event()
    session = hub.session(lambda data: None, ended.set)
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(hub.run_blocking(words("XREAD BLOCK 0 STREAMS s $"))))
    thread.start()
    assert eventually(lambda: len(hub.waiters) == 1)
    hub.close()
    thread.join(60)
    assert replies == [NIL_ARRAY]
    assert ended.is_set()
    assert session.is_closed
    assert hub.run([b"PING"]) == b"PONG"


def test_what_happened_is_logged_later_when_memory_runs_out_while_it_is_logged(world: World, a: Peer) -> None:
    journal, full = world.hub.journal, [True]
    assert journal is not None

    def failing(lines: list[LogLine]) -> None:
        if full[0]:
            raise MemoryError
        journal(lines)

    world.hub.journal = failing
    world.hub.before_replies = lambda: None
    for request in ("SET k 1", "XADD s * f v", "EVAL redis.call('set','k',2) 0", "MULTI"):
        reply = a(request)
        assert reply.startswith(b"-OOM ") is (request != "MULTI"), reply
    assert a("DISCARD") == b"+OK\r\n"
    assert a("GET k") == b"$1\r\n1\r\n"  # it has happened: only the log does not have it yet
    full[0] = False
    assert a("INCR k") == b":2\r\n"
    assert a("EXISTS s") == b":0\r\n"
    assert world.logged() == [[b"SET k 1"], [b"INCR k"]]


def test_what_a_short_way_did_is_logged_later_when_memory_runs_out_while_it_is_logged(world: World, a: Peer) -> None:
    encoded: list[bytes] = []
    full = [True]

    def failing(db: int, pieces: list[bytes]) -> None:
        if full[0]:
            raise MemoryError
        encoded.extend(pieces)

    a("XADD s * f v")
    world.hub.encoded_journal = failing
    world.hub.before_replies = lambda: None
    assert a("XADD s * f second").startswith(b"-OOM ")
    assert a("XADD s * f third").startswith(b"-OOM ")
    assert a("XLEN s") == b":2\r\n"
    full[0] = False
    assert a("XADD s * f fourth").startswith(b"$")
    assert a("XADD s * f fifth").startswith(b"$")
    logged = b"".join(encoded)
    assert [word for word in (b"second", b"third", b"fifth") if word in logged] == [b"second", b"fifth"]
