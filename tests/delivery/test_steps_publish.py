"""Publishing once, setting aside, putting back, and the RFC's requeue: the same everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from millstream.delivery.steps import NewEntry, Publishing
from millstream.errors import ServerReplied
from tests.support.desk import Desk, act, numbers
from tests.support.places import Site


def entry(n: int, **options: object) -> NewEntry:
    return NewEntry([(b"n", b"%d" % n)], **options)  # type: ignore[arg-type]


# Publishing


def test_a_call_that_is_sent_again_appends_nothing_more(place: Site) -> None:
    desk = Desk(place)
    for number, entries in enumerate(
        ([entry(0)], [entry(1), entry(2)], [entry(3, delay_ms=60_000)], [entry(4, dedupe=b"t")]), 1
    ):
        call = desk.publishing.append(b"p", number, entries)
        first = desk.backend.run(call)
        assert desk.backend.run(call) == first
        assert desk.backend.run(desk.publishing.append(b"p", number, entries)) == first
    assert numbers(desk.read()) == [0, 1, 2, 4]
    assert desk.audit().delayed == 1


def test_a_call_that_is_sent_again_after_its_entry_is_done_appends_nothing(place: Site) -> None:
    desk = Desk(place)
    call = desk.publishing.append(b"p", 1, [entry(0)])
    (first,) = desk.backend.run(call)
    assert desk.settle(b"c1", *map(act, desk.read())) == [1]
    assert desk.backend.run(call) == [first]
    assert desk.ids() == []


def test_equal_entries_of_different_producers_and_calls_are_all_kept(place: Site) -> None:
    desk = Desk(place)
    long = b"a-very-long-name-of-a-host-and-a-process-"
    same = [entry(7, delay_ms=1)]
    for producer, number in (
        (b"p", 11),
        (b"p1", 1),
        (long + b"1", 1),
        (b"x" + long + b"1", 1),
        (b"\x00a", 1),
        (b"\x00b", 1),
        (b"\x00b", 2),
    ):
        desk.backend.run(desk.publishing.append(producer, number, same))
    assert desk.audit().delayed == 7
    time.sleep(0.01)
    assert desk.backend.run(desk.steps.promote()).appended == 7
    assert numbers(desk.read()) == [7] * 7


def test_a_dedupe_token_names_one_entry(place: Site) -> None:
    desk = Desk(place)
    one, two, other = desk.append(entry(0, dedupe=b"t"), entry(1, dedupe=b"t"), entry(2, dedupe=b"u"))
    assert (one.is_new, two.is_new, other.is_new) == (True, False, True)
    assert two.id == one.id
    assert [made.id for made in desk.append(entry(3, dedupe=b"t"), producer=b"q")] == [one.id]
    assert numbers(desk.read()) == [0, 2]
    assert [made.is_new for made in desk.append(entry(4, dedupe=b"v", delay_ms=60_000))] == [True]
    assert [(made.id, made.is_new) for made in desk.append(entry(5, dedupe=b"v"))] == [(b"", False)]


def test_a_dedupe_token_is_forgotten_after_its_window(place: Site) -> None:
    desk = Desk(place)
    assert desk.append(entry(0, dedupe=b"t"), dedupe_ms=30)[0].is_new
    time.sleep(0.05)
    assert desk.append(entry(1, dedupe=b"t"), dedupe_ms=30)[0].is_new


@pytest.mark.parametrize("wrong", ["delayed", "dedupe", "producer", "stream", "no fields", "too many fields", "window"])
def test_a_batch_is_appended_whole_or_not_at_all(place: Site, wrong: str) -> None:
    desk = Desk(place)
    batch = [entry(0), entry(1, delay_ms=50), entry(2, dedupe=b"t"), entry(3)]
    key = {
        "delayed": desk.keys.delayed,
        "dedupe": desk.keys.dedupe(b"t"),
        "producer": desk.keys.producer(b"p"),
        "stream": desk.keys.stream,
    }.get(wrong)
    if key is not None:
        desk.execute("DEL", key, key=key)
        desk.execute("HSET", key, "a", "b", key=key)
    elif wrong == "no fields":
        batch.append(NewEntry([]))
    elif wrong == "too many fields":
        batch.append(NewEntry([(b"n", b"v")] * 4000))
    options = {"dedupe_ms": 0} if wrong == "window" else {}
    with pytest.raises(ServerReplied) as caught:
        desk.append(*batch, **options)
    assert caught.value.code == ("WRONGTYPE" if key is not None else "ERR")
    if wrong != "stream":
        assert desk.ids() == []
    if wrong != "delayed":
        assert desk.execute("ZCARD", desk.keys.delayed, key=desk.keys.delayed) == 0
    if wrong != "dedupe":
        assert desk.execute("EXISTS", desk.keys.dedupe(b"t"), key=desk.keys.dedupe(b"t")) == 0


def test_full_memory_appends_nothing_and_the_same_call_does_later(place: Site) -> None:
    desk = Desk(place)
    place.fill_memory()
    calls = [
        desk.publishing.append(b"p", 1, [entry(0)]),
        desk.publishing.append(b"q", 1, [entry(1), entry(2)]),
        desk.publishing.append(b"r", 1, [entry(3, delay_ms=1)]),
    ]
    for call in calls:
        with pytest.raises(ServerReplied) as caught:
            desk.backend.run(call)
        assert caught.value.code == "OOM"
    place.free_memory()
    assert (desk.ids(), desk.audit().delayed) == ([], 0)
    for call in calls:
        desk.backend.run(call)
    assert numbers(desk.read()) == [0, 1, 2]


def test_trimming_never_takes_what_a_group_still_needs(place: Site) -> None:
    desk, other = Desk(place, keep_done=True), Desk(place, group=b"h", keep_done=True)
    given = desk.deliver(10)
    desk.settle(b"c1", *(act(each) for n, each in enumerate(given) if n not in (1, 5)))
    other.settle(b"d", *map(act, other.read(b"d", 8)))  # has not read 8 and 9
    desk.append(entry(10), maxlen=3)
    left = [int(row[1][1]) for row in desk.range()]
    assert left == [1, 5, 8, 9, 10]
    assert numbers(other.read(b"d")) == [8, 9, 10]


def test_trimming_takes_the_oldest_and_no_more_than_it_must(place: Site) -> None:
    desk = Desk(place, keep_done=True)
    desk.settle(b"c1", *map(act, desk.deliver(10)))
    desk.append(entry(10), maxlen=6)
    assert [int(row[1][1]) for row in desk.range()] == [5, 6, 7, 8, 9, 10]
    desk.append(entry(11), maxlen=100)
    assert len(desk.ids()) == 7


def test_a_stream_without_groups_is_trimmed_to_its_length(place: Site) -> None:
    desk = Desk(place)
    desk.execute("XGROUP", "DESTROY", desk.keys.stream, "g")
    desk.publish(10)
    desk.append(entry(10), maxlen=4)
    assert [int(row[1][1]) for row in desk.range()] == [7, 8, 9, 10]


# Dead letters


def bury(desk: Desk, *fields: tuple[bytes, bytes]) -> bytes:
    """An entry published, rejected; the dead letter's id."""
    desk.append(NewEntry(list(fields)))
    (given,) = desk.read()
    assert desk.settle(b"c1", act(given, "reject", "reason", "x", "error", b"\x00")) == [1]
    return desk.ids(desk.keys.dead)[-1]


def test_a_redriven_dead_letter_is_the_entry_again(place: Site) -> None:
    desk = Desk(place)
    own = [(b"a", b"\x00\xff"), (b"_id", b"mine"), (b"_meta", b"2"), (b"_reason", b"r"), (b"a", b"again")]
    letter = bury(desk, *own)
    origin = dict(zip(*[iter(desk.range(desk.keys.dead)[0][1])] * 2, strict=True))[b"_original_id"]
    (made,) = desk.backend.run(desk.publishing.redrive([letter]))
    (given,) = desk.read()
    assert given.id == made
    assert list(given.fields) == [*own, (b"_original_id", origin), (b"_redriven", b"1")]
    assert desk.audit().dead == 0
    assert desk.settle(b"c1", act(given, "reject", "reason", "again")) == [1]
    (made,) = desk.backend.run(desk.publishing.redrive(desk.ids(desk.keys.dead), group=b"g"))
    (given,) = desk.read()
    assert list(given.fields) == [*own, (b"_original_id", origin), (b"_redriven", b"2"), (b"_redrive_group", b"g")]
    assert desk.audit().counters == {"dead:g": 2, "redriven:": 2}


def test_redriving_or_discarding_twice_does_it_once(place: Site) -> None:
    desk = Desk(place)
    letters = [bury(desk, (b"n", b"%d" % n)) for n in range(3)]
    call = desk.publishing.redrive(letters[:2])
    assert all(desk.backend.run(call))
    assert desk.backend.run(call) == [None, None]
    throw = desk.publishing.redrive(letters, discard=True)
    assert desk.backend.run(throw) == [None, None, b""]
    assert desk.backend.run(throw) == [None, None, None]
    assert desk.audit().counters == {"dead:g": 3, "redriven:": 2, "dead_discarded:": 1}
    assert numbers(desk.read()) == [0, 1]


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        ([b"a", b"1"], [b"a", b"1"]),
        ([b"a", b"1", b"_retry_count", b"3", b"_original_id", b"5-5"], [b"a", b"1"]),
        ([b"a", b"1", b"_meta", b"99"], [b"a", b"1", b"_meta", b"99"]),
        ([b"a", b"1", b"_meta", b"-1"], [b"a", b"1", b"_meta", b"-1"]),
        ([b"a", b"1", b"_meta", b"text"], [b"a", b"1", b"_meta", b"text"]),
    ],
)
def test_a_dead_letter_that_another_library_wrote_keeps_its_fields(
    place: Site, foreign: list[bytes], expected: list[bytes]
) -> None:
    desk = Desk(place)
    letter = desk.execute("XADD", desk.keys.dead, "*", *foreign, key=desk.keys.dead)
    desk.backend.run(desk.publishing.redrive([letter]))
    origin = b"5-5" if b"5-5" in foreign else letter
    assert desk.range()[0][1] == [*expected, b"_original_id", origin, b"_redriven", b"1"]


def test_full_memory_leaves_dead_letters_where_they_are(place: Site) -> None:
    desk = Desk(place)
    letters = [bury(desk, (b"n", b"%d" % n)) for n in range(2)]
    place.fill_memory()
    with pytest.raises(ServerReplied, match="OOM"):
        desk.backend.run(desk.publishing.redrive(letters))
    assert desk.backend.run(desk.publishing.redrive(letters[:1], discard=True)) == [b""]
    place.free_memory()
    assert desk.ids(desk.keys.dead) == letters[1:]
    assert desk.ids() == []


# The RFC's requeue


def requeue(desk: Desk, *ids: bytes, **options: object) -> list[int | str]:
    given = {"min_idle_ms": 0, "max_retries": 3, **options}
    return desk.backend.run(desk.steps.requeue(ids, **given)).codes  # type: ignore[arg-type]


def test_requeueing_copies_counts_and_deletes(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    origin = given.id
    for retry in range(1, 4):
        assert requeue(desk, given.id) == [1]
        assert requeue(desk, given.id) == [0]  # somebody else did it
        (given,) = desk.read()
        assert list(given.fields) == [(b"n", b"0"), (b"_retry_count", b"%d" % retry), (b"_original_id", origin)]
        assert desk.ids() == [given.id]
    assert requeue(desk, given.id) == [4]
    assert (desk.ids(), desk.pending()) == ([], [])
    ((_, record),) = desk.range(desk.keys.dead)
    about = dict(zip(record[::2], record[1::2], strict=True))
    assert (about[b"n"], about[b"_original_id"], about[b"_retry_count"], about[b"_reason"]) == (
        b"0",
        origin,
        b"3",
        b"retries",
    )
    assert desk.audit().counters == {"copied:g": 3, "dead:g": 1}


def test_what_lives_is_young_or_locked_is_not_requeued(place: Site) -> None:
    desk = Desk(place)
    one, two = desk.deliver(2)
    lock = desk.keys.lock(one.id)
    desk.execute("SET", lock, "c1", key=lock)
    assert requeue(desk, one.id, two.id, b"1-1", min_idle_ms=60_000) == [2, 3, 0]
    desk.execute("DEL", lock, key=lock)
    assert requeue(desk, one.id, one.id) == [1, 0]
    assert len(desk.ids()) == 2


def test_beyond_the_last_retry_it_can_be_dropped(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    assert requeue(desk, given.id, max_retries=0, drop=True) == [6]
    assert (desk.ids(), desk.ids(desk.keys.dead), desk.pending()) == ([], [], [])
    assert desk.audit().counters == {"discarded:g": 1}


def test_a_trimmed_entry_is_reported_by_requeue(place: Site) -> None:
    desk = Desk(place)
    one, two = desk.deliver(2)
    desk.execute("XDEL", desk.keys.stream, one.id, two.id)
    assert requeue(desk, one.id) == [5]
    assert requeue(desk, two.id, drop=True) == [5]
    assert desk.pending() == []
    assert desk.audit().counters["trimmed:g"] == 2


@pytest.mark.parametrize("break_it", ["memory", "dead"])
def test_requeue_loses_nothing_on_an_error(place: Site, break_it: str) -> None:
    desk = Desk(place)
    given = desk.deliver(2)
    undo: Callable[[], object] = place.free_memory
    if break_it == "memory":
        place.fill_memory()
    else:
        desk.execute("SET", desk.keys.dead, "text", key=desk.keys.dead)
        undo = lambda: desk.execute("DEL", desk.keys.dead, key=desk.keys.dead)  # noqa: E731
    codes = requeue(desk, *(each.id for each in given), max_retries=0 if break_it == "dead" else 3)
    assert all(str(code).split()[0] in ("OOM", "WRONGTYPE") for code in codes)
    undo()
    assert [row[0] for row in desk.pending()] == [each.id for each in given]
    assert desk.ids() == [each.id for each in given]


def test_requeue_leaves_the_original_to_other_groups(place: Site) -> None:
    desk, other = Desk(place), Desk(place, group=b"h")
    (given,) = desk.deliver(1)
    assert requeue(desk, given.id) == [1]
    assert given.id in desk.ids()
    theirs = other.read(b"d")
    assert len(theirs) == 2  # the copy is everybody's: what the RFC's way costs
    assert other.settle(b"d", act(theirs[0])) == [1]
    assert given.id not in desk.ids()


def test_a_producer_needs_no_group(place: Site) -> None:
    desk = Desk(place)
    keys = type(desk.keys)(b"fresh")
    publishing = Publishing(keys, desk.backend.capabilities)
    assert desk.backend.run(publishing.append(b"p", 1, [entry(0), entry(1)], maxlen=10))[1].is_new
    assert len(desk.ids(b"fresh")) == 2
