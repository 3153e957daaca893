"""The broker inside a program: direct calls, the same from several threads, and both ways of the hot ones."""

from __future__ import annotations

import random
import threading
import time

import pytest

import millstream
from millstream import Broker, CommandError, Entry, ManualClock, PendingEntry
from millstream.engine import invariants
from tests.support.snapshot import snapshot


def broker_with(entries: int, clock: ManualClock | None = None) -> Broker:
    broker = Broker(clock=clock or ManualClock())
    for index in range(1, entries + 1):
        broker.xadd("s", {"n": index}, f"{index}-0")
    broker.xgroup_create("s", "g", "0", mkstream=True)
    return broker


def ids(entries: list[Entry]) -> list[bytes]:
    return [entry.id for entry in entries]


def test_the_public_names_are_sorted_and_there() -> None:
    assert millstream.__all__ == sorted(millstream.__all__)
    assert all(hasattr(millstream, name) for name in millstream.__all__)


def test_an_entry_comes_back_as_it_was_added() -> None:
    broker = Broker()
    entry_id = broker.xadd("s", {"a": 1, b"b": b"\r\n\x00", "c": "ü", "d": 1.5})
    (entry,) = broker.xrange("s")
    assert entry.id == entry_id
    assert entry.fields == {b"a": b"1", b"b": b"\r\n\x00", b"c": "ü".encode(), b"d": b"1.5"}
    assert entry.items[1] == (b"b", b"\r\n\x00")
    assert broker.xlen("s") == 1


def test_a_value_that_is_no_text_or_number_is_refused_by_name() -> None:
    broker = Broker()
    with pytest.raises(TypeError, match="not NoneType"):
        broker.xadd("s", {"a": None})
    with pytest.raises(TypeError, match="not bool"):
        broker.xadd("s", {"a": True})
    with pytest.raises(CommandError, match="wrong number of arguments"):
        broker.xadd("s", {})
    assert broker.xlen("s") == 0


def test_a_released_entry_is_the_first_to_be_claimed() -> None:
    clock = ManualClock()
    broker = broker_with(4, clock)
    broker.xreadgroup("g", "c1", {"s": ">"})
    assert broker.xnack("s", "g", "3-0") == broker.xnack("s", b"g", b"1-0") == 1
    clock.advance(10)
    (entries,) = broker.xreadgroup("g", "c2", {"s": ">"}, 3, claim_ms=5).values()
    assert ids(entries) == [b"3-0", b"1-0", b"2-0"]
    assert [entry.delivery_count for entry in entries] == [1, 1, 1]
    assert entries[2].idle_ms == 10


def test_every_stream_command_has_its_direct_call() -> None:
    clock = ManualClock()
    broker = broker_with(6, clock)
    assert broker.xgroup_createconsumer("s", "g", "c") is True
    assert ids(broker.xreadgroup("g", "c", {"s": ">"}, 3)[b"s"]) == [b"1-0", b"2-0", b"3-0"]
    assert ids(broker.xreadgroup("g", "c", {"s": "0"})[b"s"]) == [b"1-0", b"2-0", b"3-0"]
    assert broker.xreadgroup("g", "c", {"s": ">"}, noack=True, max_count=1)[b"s"][0].id == b"4-0"
    assert ids(broker.xread({"s": "4"}, count=1)[b"s"]) == [b"5-0"]
    assert ids(broker.xrevrange("s", count=2)) == [b"6-0", b"5-0"]
    clock.advance(7)
    assert broker.xpending("s", "g") == millstream.PendingSummary(3, b"1-0", b"3-0", {b"c": 3})
    broker.xnack("s", "g", "2-0", mode="FATAL")
    assert broker.xpending_range("s", "g", count=2) == [
        PendingEntry(b"1-0", b"c", 7, 2),
        PendingEntry(b"2-0", None, None, 2**63 - 1),
    ]
    assert [row.id for row in broker.xpending_range("s", "g", consumer="c", idle_ms=7)] == [b"1-0", b"3-0"]
    assert ids(broker.xclaim("s", "g", "d", 0, ["1-0"], idle_ms=3, retry_count=5, justid=True)) == [b"1-0"]
    claimed = broker.xautoclaim("s", "g", "e", 0, count=2)
    assert (claimed.cursor, ids(claimed.entries), claimed.deleted) == (b"3-0", [b"1-0", b"2-0"], [])
    assert broker.xack("s", "g", "1-0", "9-9") == 1
    assert broker.xackdel("s", "g", "2-0", "2-0", references="ACKED") == [1, -1]
    assert broker.xdel("s", "1-0") == 1
    assert broker.xdelex("s", "3-0", "9-9", references="ACKED") == [2, 2]
    assert broker.xtrim("s", maxlen=2) == 2
    broker.xsetid("s", "9-0", entries_added=20, max_deleted="2-0")
    broker.xcfgset("s", duration_s=5, maxsize=7)
    info = broker.xinfo_stream("s")
    assert (info[b"last-generated-id"], info[b"entries-added"], info[b"idmp-maxsize"]) == (b"9-0", 20, 7)
    assert broker.xinfo_stream("s", full=True)[b"groups"][0][b"name"] == b"g"
    broker.xgroup_setid("s", "g", "$", entries_read=20)
    assert broker.xinfo_groups("s")[0][b"lag"] == 0
    assert {row[b"name"] for row in broker.xinfo_consumers("s", "g")} == {b"c", b"d", b"e"}
    assert broker.xgroup_delconsumer("s", "g", "c") == 1
    assert broker.xgroup_destroy("s", "g") is True
    assert broker.xgroup_destroy("s", "g") is False
    first = broker.xadd("s", {"a": 1}, producer="p", idempotent_id="i")
    assert broker.xadd("s", {"a": 2}, producer="p", idempotent_id="i") == first
    assert broker.xadd("nothing", {"a": 1}, nomkstream=True) is None
    assert broker.execute("EXISTS", "s", "nothing") == 1


def test_an_error_of_a_direct_call_is_the_servers_own() -> None:
    broker = broker_with(1)
    with pytest.raises(CommandError, match=r"^NOGROUP No such key 's' or consumer group 'other'") as caught:
        broker.xnack("s", "other", "1-0")
    assert caught.value.code == "NOGROUP"


def test_the_short_way_of_a_hot_call_does_what_the_long_way_does() -> None:
    for seed in range(60):
        short_clock, long_clock = ManualClock(), ManualClock()
        short, long = broker_with(0, short_clock), broker_with(0, long_clock)
        long._hub.journal = lambda lines: None  # somebody must be told, so that no short way is taken
        assert long._hub.observed
        assert not short._hub.observed
        rng = random.Random(seed)
        for _ in range(300):
            step = rng.randrange(3)
            short_clock.advance(step)
            long_clock.advance(step)
            call = random_call(rng)
            results = [perform(broker, call) for broker in (short, long)]
            assert results[0] == results[1], (seed, call)
            invariants.check(short._hub.keyspace)
        assert snapshot(short._hub.keyspace) == snapshot(long._hub.keyspace), seed
        assert short._hub.dirty == long._hub.dirty, seed


def random_call(rng: random.Random) -> tuple[str, tuple[object, ...], dict[str, object]]:
    """A call of a hot method, or of one that gets in its way."""
    group, consumer = rng.choice(["g", b"g", "h"]), rng.choice(["a", b"b", "c"])
    entry_id = rng.choice([f"{1767225600000 + rng.randrange(300)}-{rng.randrange(3)}", b"1767225600001-0", "7"])
    entry_id = entry_id if rng.random() < 0.5 or isinstance(entry_id, bytes) else entry_id.encode()
    count = rng.choice([None, 1, 1, 1, 2, 5])
    return rng.choice(
        [
            ("xadd", ("s", {"f": rng.choice(["v", 12345, b"x" * 500])}), {}),
            ("xadd", (b"s", {"f": 1, "g": 2}), {}),
            ("xadd", ("s", {b"f": b"v"}), {"maxlen": 20}),
            ("xreadgroup", (group, consumer, {"s": ">"}), {"count": count}),
            ("xreadgroup", (group, consumer, {b"s": b">"}), {"count": count}),
            ("xreadgroup", (group, consumer, {"s": ">"}), {"count": count, "claim_ms": rng.choice([0, 1, 5, 20])}),
            ("xreadgroup", (group, consumer, {"s": "0"}), {"count": count}),
            ("xack", ("s", group, entry_id), {}),
            ("xack", ("s", group, entry_id, "1767225600002-0"), {}),
            ("xnack", ("s", group, entry_id), {"mode": rng.choice(["FAIL", "FAIL", "SILENT", "FATAL"])}),
            ("xnack", ("s", group, entry_id), {"force": rng.random() < 0.3}),
            ("xdel", ("s", entry_id), {}),
            ("xackdel", ("s", group, entry_id), {"references": rng.choice(["KEEPREF", "DELREF", "ACKED"])}),
            ("xclaim", ("s", group, consumer, 0, [entry_id]), {"idle_ms": rng.randrange(30)}),
            ("xgroup_setid", ("s", "g", rng.choice(["0", "$", entry_id])), {})
            if rng.random() < 0.2
            else ("xgroup_createconsumer", ("s", "g", consumer), {}),
            ("execute", ("DEL", "s"), {}) if rng.random() < 0.03 else ("xpending", ("s", "g"), {}),
        ]
    )


def perform(broker: Broker, call: tuple[str, tuple[object, ...], dict[str, object]]) -> object:
    name, arguments, options = call
    try:
        result = getattr(broker, name)(*arguments, **options)
    except CommandError as error:
        if error.code == "ERR" and "requires the key to exist" in str(error):
            broker.xgroup_create("s", "g", "0", mkstream=True)
        return str(error)
    if isinstance(result, dict):
        return {key: [(e.id, e.items, e.idle_ms, e.delivery_count) for e in rows] for key, rows in result.items()}
    return result


def test_a_blocked_read_is_woken_by_an_append_from_another_thread() -> None:
    with Broker() as broker:
        broker.xgroup_create("s", "g", "$", mkstream=True)
        found: list[Entry] = []
        reader = threading.Thread(
            target=lambda: found.extend(broker.xreadgroup("g", "c", {"s": ">"}, block_ms=10_000)[b"s"])
        )
        reader.start()
        while broker.execute("INFO", "clients").find(b"blocked_clients:1") < 0:
            time.sleep(0.001)
        entry_id = broker.xadd("s", {"a": 1})
        reader.join(60)
        assert ids(found) == [entry_id]


def test_a_blocked_claim_read_gets_an_entry_when_it_becomes_due() -> None:
    with Broker() as broker:
        broker.xgroup_create("s", "g", "$", mkstream=True)
        broker.xadd("s", {"a": 1})
        broker.xreadgroup("g", "dead", {"s": ">"})
        start = time.monotonic()
        (entry,) = broker.xreadgroup("g", "alive", {"s": ">"}, block_ms=10_000, claim_ms=150)[b"s"]
        waited_ms = (time.monotonic() - start) * 1000
        assert entry.delivery_count == 1
        assert 140 <= waited_ms < 5000


def test_a_blocked_read_ends_at_its_time() -> None:
    with Broker() as broker:
        start = time.monotonic()
        assert broker.xread({"s": "$"}, block_ms=60) == {}
        assert 0.05 < time.monotonic() - start < 30


def test_threads_share_the_work_of_a_group_without_loss_or_double() -> None:
    broker = Broker()
    broker.xgroup_create("s", "g", "0", mkstream=True)
    added: list[bytes] = []
    done: list[bytes] = []
    entries, threads = 4000, 4

    def produce(part: int) -> None:
        for index in range(entries // threads):
            added.append(broker.xadd("s", {b"n": b"%d-%d" % (part, index)}) or b"")

    def consume(name: str) -> None:
        deadline = time.monotonic() + 60
        while len(done) < entries and time.monotonic() < deadline:
            for entry in broker.xreadgroup("g", name, {"s": ">"}, 7, block_ms=5).get(b"s", []):
                if hash(entry.id) % 5 == 0:
                    broker.xnack("s", "g", entry.id)
                elif broker.xack("s", "g", entry.id):  # 0: another thread has claimed and settled it meanwhile
                    done.append(entry.id)
            for entry in broker.xreadgroup("g", name, {"s": ">"}, 7, claim_ms=0).get(b"s", []):
                if broker.xack("s", "g", entry.id):
                    done.append(entry.id)

    workers = [threading.Thread(target=produce, args=(part,)) for part in range(threads)]
    workers += [threading.Thread(target=consume, args=(f"c{part}",)) for part in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(90)
    assert sorted(done) == sorted(added)
    assert len(set(done)) == entries
    assert broker.xpending("s", "g").count == 0
    invariants.check(broker._hub.keyspace)
    broker.close()
