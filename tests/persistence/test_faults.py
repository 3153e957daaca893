"""Full disks, failing disks, power cuts: what was answered is kept, and nothing is ever half."""

from __future__ import annotations

import errno
import random

import pytest

from millstream.errors import WriteFailed
from tests.persistence.memory_files import MemoryFiles, PowerCut
from tests.persistence.support import LOGS, NOW_MS, Broker, State, without_tie_order
from tests.support.wire import pack

FULL = "MISCONF Errors writing to the AOF file: No space left on device"
BROKEN = "MISCONF Errors writing to the AOF file: Input/output error"
POLICIES = ["always", "everysec", "no"]

PROGRAM = [
    "XGROUP CREATE s g 0 MKSTREAM",
    "XADD s 1-1 f v",
    "XADD s 2-1 f v",
    "XADD s 3-1 f v",
    "XREADGROUP GROUP g a COUNT 2 STREAMS s >",
    "XACK s g 1-1",
    "BGREWRITEAOF",
    "XNACK s g FAIL IDS 1 2-1",
    "XADD s 4-1 f v",
    "tick",
    "XREADGROUP GROUP g b CLAIM 0 STREAMS s >",
    "SET a 1",
    "XDEL s 3-1",
    "tick",
    "BGREWRITEAOF",
    "BGSAVE",
    "SET a 2",
    "tick",
    "XTRIM s MAXLEN 1",
    "tick",
    "DEL a",
    "XADD s 5-1 f v",
]


def play(broker: Broker, request: str) -> object:
    """One step of the program."""
    broker.clock.advance(10)
    if request == "tick":
        broker.seconds += 1
        broker.store.tick()
        return None
    return broker(request)


def states() -> list[State]:
    """The state before the program and after each of its steps."""
    broker = Broker()
    found = [broker.state]
    for request in PROGRAM:
        play(broker, request)
        found.append(broker.state)
    return [without_tie_order(state) for state in found]


STATES = states()


def steps(policy: str) -> int:
    """How many steps that can fail a broker takes for the program, opening included."""
    broker = Broker(appendfsync=policy)
    for request in PROGRAM:
        play(broker, request)
    return broker.files.steps


def cut(policy: str, step: int) -> tuple[MemoryFiles, int]:
    """Files after the power was cut at a step, and how many steps of the program had been answered."""
    files = MemoryFiles()
    files.cut_at = step
    answered = 0
    try:
        broker = Broker(files, appendfsync=policy)
        for request in PROGRAM:
            play(broker, request)
            answered += 1
    except PowerCut:
        pass
    return files, answered


def loaded(files: MemoryFiles) -> State:
    """What a broker finds that is started later."""
    return Broker(files, now_ms=NOW_MS + 1_000_000).state


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_with_always_a_power_cut_at_any_step_loses_nothing_that_was_answered(tail: float) -> None:
    for step in range(1, steps("always") + 1):
        files, answered = cut("always", step)
        files.power_cut(tail)
        after = without_tie_order(loaded(files))
        assert after in STATES[answered : answered + 2], f"cut at step {step}, after {answered} answers"


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_otherwise_a_power_cut_leaves_some_earlier_state(policy: str) -> None:
    choose = random.Random(1)
    for step in range(1, steps(policy) + 1):
        files, answered = cut(policy, step)
        files.power_cut(choose.random())
        after = without_tie_order(loaded(files))
        assert after in STATES[: answered + 2], f"cut at step {step}, after {answered} answers"


def test_with_everysec_a_power_cut_loses_at_most_what_came_since_the_last_tick() -> None:
    for step in range(1, steps("everysec") + 1):
        files, answered = cut("everysec", step)
        files.power_cut()
        ticks = [at for at, request in enumerate(PROGRAM[:answered]) if request == "tick"]
        synced = ticks[-1] if ticks else 0
        after = without_tie_order(loaded(files))
        assert after in STATES[synced : answered + 2], f"cut at step {step}, after {answered} answers"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_process_that_dies_at_any_step_loses_nothing_that_was_answered(policy: str) -> None:
    for step in range(1, steps(policy) + 1):
        files, answered = cut(policy, step)
        files.crash()
        after = without_tie_order(loaded(files))
        assert after in STATES[answered : answered + 2], f"killed at step {step}, after {answered} answers"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_any_single_failure_is_overcome_and_nothing_is_lost(policy: str, code: int) -> None:
    for step in range(1, steps(policy) + 1):
        files = MemoryFiles()
        files.fails_at[step] = code
        try:
            broker = Broker(files, appendfsync=policy)
        except WriteFailed:
            broker = Broker(files, appendfsync=policy)
        for request in PROGRAM:
            broker.seconds += 0.2
            play(broker, request)
        broker.seconds += 1
        assert broker("SET done 1") == b"OK", f"failed at step {step}"
        broker.store.tick()
        assert without_tie_order(broker.reopened(files.copy()).state) == without_tie_order(broker.state)
        files.power_cut()
        if policy != "no":
            assert without_tie_order(broker.reopened().state) == without_tie_order(broker.state)


@pytest.mark.parametrize("longest", [1, 10, 37])
def test_writes_that_take_only_some_make_no_difference(longest: int) -> None:
    files = MemoryFiles()
    files.longest_write = longest
    broker = Broker(files)
    for request in PROGRAM:
        play(broker, request)
    assert without_tie_order(broker.reopened().state) == STATES[-1]


# A disk that is full, and later is not


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_disk_refuses_writes_and_lets_reads_go_on(policy: str) -> None:
    broker = Broker(appendfsync=policy)
    broker("SET a 1")
    broker.files.free = 10
    assert broker("SET b 1") == FULL
    assert broker("SET c 1") == FULL
    assert broker("GET a") == b"1"
    assert broker("PING") == b"PONG"
    assert broker.info("aof_last_write_status") == "err"
    assert broker("EXISTS c") == 0  # refused before it was run


@pytest.mark.parametrize("policy", POLICIES)
def test_writes_are_taken_again_when_there_is_room(policy: str) -> None:
    broker = Broker(appendfsync=policy)
    broker.files.free = 0
    assert broker("SET b 1") == FULL
    broker.files.free = None
    assert broker("SET c 1") == FULL  # it has just been tried
    broker.seconds += 0.2
    assert broker("SET c 1") == b"OK"
    assert broker.info("aof_last_write_status") == "ok"
    assert broker.reopened().state == broker.state


def test_a_tick_writes_what_waits_when_there_is_room() -> None:
    broker = Broker()
    broker.files.free = 0
    broker("SET a 1")
    assert broker.store.pause_s < 1
    broker.files.free = None
    broker.store.tick()
    assert broker.store.pause_s == 1
    assert broker("SET b 1") == b"OK"


@pytest.mark.parametrize("free", range(0, 120, 3))
def test_what_a_full_disk_cuts_off_is_not_half_there(free: int) -> None:
    broker = Broker()
    broker("XGROUP CREATE s g 0 MKSTREAM")
    broker("XADD s 1-1 f v")
    before = broker.state
    broker.files.free = free
    assert broker("XREADGROUP GROUP g c STREAMS s >") == FULL
    assert broker.reopened(broker.files.copy()).state == before


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_disk_that_cannot_sync_refuses_writes_until_it_can(policy: str) -> None:
    broker = Broker(appendfsync=policy)
    broker.files.broken["sync"] = errno.EIO
    broker("SET a 1")
    broker.store.tick()
    assert broker("SET b 1") == BROKEN
    broker.seconds += 1
    assert broker("SET b 1") == BROKEN
    broker.files.broken.clear()
    broker.seconds += 1
    assert broker("SET b 1") == b"OK"
    broker.store.tick()
    broker.files.power_cut()
    assert broker.reopened().state == broker.state


def test_with_everysec_a_sync_that_fails_is_made_up_for() -> None:
    broker = Broker(appendfsync="everysec")
    broker("SET a 1")
    broker.files.broken["sync"] = errno.EIO
    broker.store.tick()
    broker.files.drop_unsynced(LOGS / broker.increments()[0])
    broker.files.broken.clear()
    broker.store.tick()
    broker.files.power_cut()
    assert broker.reopened()("GET a") == b"1"


# What clients see


def test_a_reply_that_cannot_be_kept_becomes_an_error() -> None:
    broker = Broker()
    peer = broker.peer()
    peer("SET a 1")
    broker.files.free = 0
    batch = [[b"GET", b"a"], [b"SET", b"a", b"2"], [b"GET", b"a"], [b"XADD", b"s", b"*", b"f", b"v"], [b"ECHO", b"x"]]
    answer = peer.raw(b"".join(map(pack, batch)))
    error = b"-" + FULL.encode() + b"\r\n"
    assert answer == b"$1\r\n1\r\n" + error + b"$1\r\n2\r\n" + error + b"$1\r\nx\r\n"


def test_a_transaction_that_cannot_be_kept_is_answered_with_one_error() -> None:
    broker = Broker()
    peer = broker.peer()
    for request in ("MULTI", "SET a 1", "GET a"):
        peer(request)
    broker.files.free = 0
    assert peer("EXEC") == b"-" + FULL.encode() + b"\r\n"


def test_a_transaction_with_writes_is_refused_while_the_log_cannot_be_written() -> None:
    broker = Broker()
    writer, reader = broker.peer(), broker.peer()
    for request in ("MULTI", "SET a 1"):
        writer(request)
    for request in ("MULTI", "GET b"):
        reader(request)
    broker.files.free = 0
    broker("SET b 1")
    assert writer("EXEC") == b"-EXECABORT Transaction discarded because of: " + FULL.encode() + b"\r\n"
    assert reader("EXEC") == b"*1\r\n$1\r\n1\r\n"
    assert writer("MULTI") == b"+OK\r\n"
    assert writer("SET a 1") == b"-" + FULL.encode() + b"\r\n"
    assert writer("EXEC").startswith(b"-EXECABORT")


def test_a_blocked_reader_gets_an_error_instead_of_a_delivery_that_cannot_be_kept() -> None:
    broker = Broker()
    reader, plain, writer = broker.peer(), broker.peer(), broker.peer()
    writer("XGROUP CREATE s g $ MKSTREAM")
    reader("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
    plain("XREAD BLOCK 0 STREAMS s $")
    broker.files.free = 0
    error = b"-" + FULL.encode() + b"\r\n"
    assert writer("XADD s * f v") == error
    assert reader.read() == error
    assert plain.read().startswith(b"*1\r\n")


def test_a_direct_call_that_blocks_raises_when_its_delivery_cannot_be_kept() -> None:
    broker = Broker()
    broker("XGROUP CREATE s g $ MKSTREAM")
    answers: list[object] = []

    class Caller:
        def resume(self, reply: object) -> None:
            answers.append(reply)

    broker.hub.submit([b"XREADGROUP", b"GROUP", b"g", b"c", b"BLOCK", b"0", b"STREAMS", b"s", b">"], Caller())
    broker.files.free = 0
    broker("XADD s * f v")
    assert [str(answer) for answer in answers] == [FULL]


def test_errors_are_counted() -> None:
    broker = Broker()
    peer = broker.peer()
    broker.files.free = 0
    peer("SET a 1")
    assert broker.hub.stats.by_error["MISCONF"] == 1


# Rewrites and snapshots that fail


@pytest.mark.parametrize("step", range(1, 12))
def test_a_rewrite_that_fails_leaves_the_log_as_it_was(step: int) -> None:
    broker = Broker()
    for number in range(20):
        broker(f"XADD s {number + 1}-0 f v")
    broker.files.fails_at[broker.files.steps + step] = errno.ENOSPC
    broker("BGREWRITEAOF")
    broker.store.tick()
    broker.seconds += 1
    broker("XADD s 100-0 f v")
    assert broker.reopened(broker.files.copy()).state == broker.state
    broker("BGREWRITEAOF")
    broker.store.tick()
    assert broker.info("aof_last_bgrewrite_status") == "ok"
    assert len(broker.increments()) == 1
    assert broker.reopened().state == broker.state


def test_a_rewrite_that_cannot_even_begin_says_so() -> None:
    broker = Broker()
    broker.files.broken["create"] = errno.EROFS
    assert str(broker("BGREWRITEAOF")).startswith("ERR Can't execute an AOF background rewriting")
    assert broker.info("aof_last_bgrewrite_status") == "err"
    assert broker("SET a 1") == b"OK"


def test_rewrites_that_keep_failing_are_tried_less_and_less_often() -> None:
    broker = Broker(auto_aof_rewrite_min_size="1", auto_aof_rewrite_percentage="1")
    broker.files.broken["create"] = errno.ENOSPC
    broker("SET a 1")
    for _ in range(10):
        broker.store.tick()
    assert broker.info("aof_rewrites") == 3
    broker.clock.advance(60_000)
    for _ in range(10):
        broker.store.tick()
    assert broker.info("aof_rewrites") == 4


def test_a_snapshot_that_fails_leaves_the_old_one_and_refuses_writes_if_there_are_save_points() -> None:
    broker = Broker(appendonly="no", save="3600 1000")
    broker("SET a 1")
    broker("SAVE")
    broker("SET a 2")
    broker.files.free = 0
    broker("BGSAVE")
    broker.store.tick()
    assert broker.info("rdb_last_bgsave_status") == "err"
    assert str(broker("SET a 3")).startswith("MISCONF Redis is configured to save RDB snapshots")
    assert broker("GET a") == b"2"
    assert broker.reopened(appendonly="no")("GET a") == b"1"
    broker.files.free = None
    broker("SAVE")
    assert broker("SET a 3") == b"OK"


def test_a_snapshot_that_fails_does_not_matter_without_save_points() -> None:
    broker = Broker()
    broker.files.broken["rename"] = errno.EIO
    broker("BGSAVE")
    broker.store.tick()
    assert broker.info("rdb_last_bgsave_status") == "err"
    assert broker("SET a 1") == b"OK"


def test_a_shutdown_that_could_not_keep_everything_is_refused_unless_forced() -> None:
    broker = Broker()
    peer = broker.peer()
    broker.files.free = 0
    peer("SET a 1")
    assert peer("SHUTDOWN") == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
    assert not peer.is_cut_off
    assert peer("SHUTDOWN FORCE") == b""
    assert peer.is_cut_off


def test_closing_a_store_that_cannot_write_says_so() -> None:
    broker = Broker()
    broker.files.free = 0
    broker("SET a 1")
    with pytest.raises(WriteFailed, match="No space left on device"):
        broker.store.close()
