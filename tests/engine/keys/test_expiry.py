from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.commands import execute
from millstream.engine.keys import expiry
from millstream.engine.keys.deadlines import Deadlines
from millstream.engine.keys.keyspace import Keyspace

NOW_MS = 1_767_225_600_000


def _run(keyspace: Keyspace, line: str, now_ms: int = NOW_MS, db: int = 0) -> object:
    return execute(keyspace, db, line.encode().split(), now_ms).reply


def _keys(keyspace: Keyspace) -> set[bytes]:
    return set(keyspace.databases[0].values)


def test_a_sweep_does_what_an_access_would_have_done() -> None:
    swept, accessed = Keyspace(), Keyspace()
    for keyspace in (swept, accessed):
        _run(keyspace, "SET k v PX 5")
    outcome = expiry.sweep(swept, NOW_MS + 6, 10)
    seen = execute(accessed, 0, [b"EXPIRE", b"k", b"9"], NOW_MS + 6)
    assert outcome.reply == 1
    assert (outcome.log, outcome.touched, outcome.events) == (seen.log, seen.touched, seen.events)
    assert (outcome.ready, outcome.dirty) == (seen.ready, 0)
    assert (outcome.log, [event.name for event in outcome.events]) == ([(0, (b"DEL", b"k"))], [b"expired"])


def test_a_sweep_removes_what_is_over_and_nothing_else() -> None:
    keyspace = Keyspace()
    for line in ("SET a 1 PX 5", "SET b 1 PX 6", "SET c 1", "SET d 1 PX 500"):
        _run(keyspace, line)
    assert expiry.sweep(keyspace, NOW_MS + 5, 100).reply == 0
    assert expiry.sweep(keyspace, NOW_MS + 6, 100).reply == 1
    assert _keys(keyspace) == {b"b", b"c", b"d"}


def test_a_sweep_stops_at_its_limit_and_the_next_goes_on() -> None:
    keyspace = Keyspace()
    for number in range(10):
        _run(keyspace, f"SET k{number} v PX {number + 1}", db=number % 3)
    assert [expiry.sweep(keyspace, NOW_MS + 100, 4).reply for _ in range(4)] == [4, 4, 2, 0]
    assert not any(db.values for db in keyspace)


def test_a_key_whose_expiry_was_moved_or_removed_stays() -> None:
    keyspace = Keyspace()
    for name in "abcd":
        _run(keyspace, f"SET {name} 1 PX 5")
    _run(keyspace, "PEXPIRE a 100")
    _run(keyspace, "PERSIST b")
    _run(keyspace, "SET c 2")
    _run(keyspace, "RENAME d e")
    assert expiry.sweep(keyspace, NOW_MS + 50, 100).reply == 1
    assert _keys(keyspace) == {b"a", b"b", b"c"}
    assert expiry.sweep(keyspace, NOW_MS + 101, 100).reply == 1


def test_an_expiry_can_be_brought_forward() -> None:
    keyspace = Keyspace()
    _run(keyspace, "SET a 1 PX 500")
    _run(keyspace, "PEXPIRE a 5")
    assert expiry.next_due_ms(keyspace) == NOW_MS + 6
    assert expiry.sweep(keyspace, NOW_MS + 6, 1).reply == 1
    assert expiry.next_due_ms(keyspace) is None


def test_swapped_and_flushed_databases_expire_what_they_hold() -> None:
    keyspace = Keyspace()
    _run(keyspace, "SET a 1 PX 5")
    _run(keyspace, "SWAPDB 0 7")
    _run(keyspace, "SET b 1 PX 5")
    _run(keyspace, "FLUSHDB")
    outcome = expiry.sweep(keyspace, NOW_MS + 10, 10)
    assert outcome.log == [(7, (b"DEL", b"a"))]


def test_extending_a_lease_again_and_again_costs_no_memory() -> None:
    deadlines = Deadlines()
    for at_ms in range(100_000):
        deadlines[b"lock"] = at_ms
    assert len(deadlines._heap) == 1
    assert deadlines.due(99_999) is None
    assert deadlines.due(100_000) == b"lock"


def test_keys_that_come_and_go_leave_few_places_behind() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines[b"%d" % number] = 10**9 + number
        del deadlines[b"%d" % number]
    assert len(deadlines._heap) <= 66


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 20)), st.integers(0, 3)), max_size=60
)


@given(STEPS)
def test_the_next_due_key_is_always_known(steps: list[tuple[str, int | None, int]]) -> None:
    deadlines, model, now_ms = Deadlines(), {}, 0
    for name, at_ms, passed_ms in steps:
        key = name.encode()
        now_ms += passed_ms
        if at_ms is None:
            deadlines.pop(key, None)
            model.pop(key, None)
        else:
            deadlines[key] = model[key] = at_ms
        due = {name for name, when_ms in model.items() if when_ms < now_ms}
        found = deadlines.due(now_ms)
        assert (found in due) if due else (found is None)
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not model)
        assert next_ms is None or next_ms <= min(model.values()) + 1


def test_a_sweep_finds_everything_among_many() -> None:
    keyspace, rng = Keyspace(), Random(1)
    times = {b"k%d" % number: rng.randrange(1, 1000) for number in range(3000)}
    for key, ms in times.items():
        execute(keyspace, 0, [b"PSETEX", key, b"%d" % ms, b"v"], NOW_MS)
    for passed_ms in range(0, 1002, 50):
        expiry.sweep(keyspace, NOW_MS + passed_ms, 10_000)
        assert _keys(keyspace) == {key for key, ms in times.items() if ms >= passed_ms}
