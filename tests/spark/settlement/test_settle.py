"""Settlements as rows: what they mean, how they are carried out, and what happens when they cannot be. No JVM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release
from millstream.errors import ConfigError, MalformedPayload, MillstreamError, NotSettled
from millstream.spark.group.options import Settling, Terms, parse_settling
from millstream.spark.settlement.rows import (
    Acks,
    Other,
    acks_of,
    check_columns,
    check_outcomes,
    others_of,
    rising,
    settlement_of,
)
from millstream.spark.settlement.sender import Settler, Tally
from tests.support.desk import LATER, NOBODY, Desk
from tests.support.places import Site, visit
from tests.support.proxy import FaultProxy

KINDS = {"delivery_count": pa.int32(), "delay": pa.float64()}
TERMS = Terms(group="g")


@pytest.fixture(params=["valkey", "redis"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with contextlib.contextmanager(visit)(request.param, request, tmp_path) as site:
        yield Desk(site)


@pytest.fixture
def valkey(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with contextlib.contextmanager(visit)("valkey", request, tmp_path) as site:
        yield Desk(site)


def rows(*given: dict[str, Any]) -> pa.RecordBatch:
    """Rows with all columns that any of them has."""
    names = list(dict.fromkeys(name for row in given for name in row))
    columns = [pa.array([row.get(name) for row in given], KINDS.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def row(delivery: Delivery, outcome: str | None, consumer: str = "spark-t-1", **more: Any) -> dict[str, Any]:
    return {
        "stream": "orders",
        "id": delivery.id.decode(),
        "outcome": outcome,
        "consumer": consumer,
        "delivery_count": delivery.number,
        **more,
    }


def settling(site: Site, **options: str) -> Settling:
    return parse_settling({"url": site.url, "group": "g", "retryTimeout": "3s", **options})


def settle(desk: Desk, *given: dict[str, Any], refused_s: float = 0.3, **options: str) -> Tally:
    settler = Settler(settling(desk.site, **options), refused_s)
    settler.add(rows(*given))
    return settler.finish()


def letters(desk: Desk) -> list[dict[bytes, bytes]]:
    return [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in desk.range(desk.keys.dead)]


def test_every_outcome_does_its_own(desk: Desk) -> None:
    a, b, c, d, e = desk.deliver(5, b"spark-t-1")
    tally = settle(
        desk,
        row(a, "ack"),
        row(b, "retry", delay=60.0),
        row(c, "release"),
        row(d, "dead", reason="no price"),
        row(e, None, delay=60.0),
    )
    assert tally == Tally({"ack": 1, "retry": 2, "release": 1, "dead": 1})
    assert desk.pending() == [(b.id, LATER, 1), (c.id, NOBODY, 0), (e.id, LATER, 1)]
    (letter,) = letters(desk)
    assert (letter[b"_reason"], letter[b"_error"], letter[b"_consumer"]) == (b"rejected", b"no price", b"spark-t-1")
    assert (letter[b"_attempts"], letter[b"_retry_count"], letter[b"_first_at"]) == (b"1", b"0", d.id.split(b"-")[0])
    assert a.id in desk.ids()  # entries stay until their batch is over


def test_carried_out_again_they_do_nothing(desk: Desk) -> None:
    given = desk.deliver(4, b"spark-t-1")
    outcomes = ("ack", "retry", "release", "dead")
    all_of_them = [row(each, outcome, delay=60.0) for each, outcome in zip(given, outcomes, strict=True)]
    assert settle(desk, *all_of_them).settled == {"ack": 1, "retry": 1, "release": 1, "dead": 1}
    before = desk.everything()
    assert settle(desk, *all_of_them) == Tally({}, 4, 0)
    assert desk.everything() == before


def test_what_somebody_else_has_is_left_alone(desk: Desk) -> None:
    a, b = desk.deliver(2, b"spark-t-1")
    desk.execute("XCLAIM", b"orders", b"g", b"w", 0, a.id, b.id)
    assert settle(desk, row(a, "ack"), row(b, "dead")) == Tally({}, 0, 2)
    assert [owner for _, owner, _ in desk.pending()] == ["w", "w"]
    assert letters(desk) == []


def test_without_a_consumer_any_of_the_querys_prefix_will_do(desk: Desk) -> None:
    a, b = desk.deliver(2, b"spark-t-1")
    (c,) = desk.deliver(1, b"w")
    bare = [
        {"stream": "orders", "id": each.id.decode(), "outcome": outcome}
        for each, outcome in ((a, "ack"), (b, "retry"), (c, "ack"))
    ]
    assert settle(desk, *bare, backoff="60s") == Tally({"ack": 1, "retry": 1}, 0, 1)
    assert desk.pending() == [(b.id, LATER, 1), (c.id, "w", 1)]
    assert settle(desk, {"stream": "orders", "id": c.id.decode(), "outcome": "ack"}, consumer="w") == Tally({}, 0, 1)


@pytest.mark.parametrize("is_told", [True, False])
def test_the_last_retry_is_a_dead_letter(desk: Desk, is_told: bool) -> None:
    (given,) = desk.deliver(1, b"spark-t-1")
    desk.execute("XCLAIM", b"orders", b"g", b"spark-t-1", 0, given.id, "RETRYCOUNT", 3)
    one = row(given, "retry", error="ValueError: no")
    one["delivery_count"] = 3 if is_told else None
    assert settle(desk, one, maxRetries="2") == Tally({"dead": 1})
    (letter,) = letters(desk)
    assert (letter[b"_reason"], letter[b"_error"]) == (b"retries", b"ValueError: no")
    assert (letter[b"_attempts"], letter[b"_retry_count"]) == (b"3", b"2")


def test_thousands_of_rows_of_several_streams_and_owners_are_settled(valkey: Desk) -> None:
    other = Desk(valkey.site, b"refunds")
    given = []
    for _ in range(3):
        given += [row(each, "ack", "spark-t-1") for each in valkey.deliver(900, b"spark-t-1")]
        given += [row(each, "ack", "spark-t-2") for each in valkey.deliver(50, b"spark-t-2")]
        given += [{**row(each, "ack"), "stream": "refunds"} for each in other.deliver(300, b"spark-t-1")]
    given.sort(key=lambda each: each["id"][::-1])  # as after a shuffle
    assert settle(valkey, *given, *given[:100]) == Tally({"ack": 3750})
    assert valkey.pending() == []
    assert other.pending() == []


def test_what_the_server_refuses_stays_pending_and_is_told(desk: Desk) -> None:
    a, b = desk.deliver(2, b"spark-t-1")
    desk.execute("SET", desk.keys.dead, "no stream", key=desk.keys.dead)
    with pytest.raises(NotSettled, match="could not be settled and stays pending: WRONGTYPE"):
        settle(desk, row(a, "dead"), row(b, "ack"))
    assert [entry_id for entry_id, _, _ in desk.pending()] == [a.id]
    desk.execute("DEL", desk.keys.dead, key=desk.keys.dead)
    assert settle(desk, row(a, "dead"), row(b, "ack")) == Tally({"dead": 1}, 1, 0)


def test_a_server_that_comes_back_gets_them_all(valkey: Desk) -> None:
    given = valkey.deliver(900, b"spark-t-1")
    with FaultProxy("127.0.0.1", int(valkey.site.url.rpartition(":")[2])) as proxy:
        proxy.drop_reply(command="EVALSHA")
        settler = Settler(parse_settling({"url": proxy.url, "group": "g", "retryTimeout": "10s"}))
        outcomes = ["dead" if at % 100 == 0 else "ack" for at in range(len(given))]
        settler.add(rows(*(row(each, outcome) for each, outcome in zip(given, outcomes, strict=True))))
        tally = settler.finish()
    assert sum(tally.settled.values()) + tally.before == 900
    assert valkey.pending() == []
    assert len(letters(valkey)) == 9


def test_an_unknown_outcome_is_named_before_anything_is_settled(valkey: Desk) -> None:
    a, b = valkey.deliver(2, b"spark-t-1")
    settler = Settler(settling(valkey.site))
    settler.add(rows(row(a, "ack")))
    with pytest.raises(MalformedPayload, match="'acked' is not an outcome: use ack, retry, release, dead"):
        settler.add(rows(row(b, "acked")))
    assert len(valkey.pending()) == 2


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Other(b"1-0", None, 1, "ack"), Ack()),
        (Other(b"1-0", None, 1, "release"), Release()),
        (Other(b"1-0", None, 1, "retry", delay_s=7.0), Later(7.0)),
        (Other(b"1-0", None, 4, "retry", delay_s=7.0, error="e", traceback="t"), DeadLetter(Reason.RETRIES, "e", "t")),
        (Other(b"1-0", None, 1, "dead"), DeadLetter(Reason.REJECTED)),
        (Other(b"1-0", None, 1, "dead", "expired", "too late"), DeadLetter(Reason.EXPIRED, "too late")),
        (Other(b"1-0", None, 1, "dead", "no price", "n is null"), DeadLetter(Reason.REJECTED, "no price: n is null")),
    ],
)
def test_a_row_becomes_a_workers_settlement(other: Other, expected: object) -> None:
    assert settlement_of(other, other.number or 1, TERMS) == expected


def test_a_retry_without_a_delay_waits_for_the_backoff() -> None:
    found = settlement_of(Other(b"1-0", None, 2, "retry"), 2, TERMS)
    assert isinstance(found, Later)
    assert 1.0 <= found.delay_s <= 2.0


def test_acks_are_sorted_by_owner_number_and_id() -> None:
    table = pa.Table.from_batches(
        [
            rows(
                {"id": "10-0", "outcome": "ack", "consumer": "a", "delivery_count": 1},
                {"id": "9-0", "outcome": "ack", "consumer": "a", "delivery_count": 1},
                {"id": "9-11", "outcome": "ack", "consumer": "a", "delivery_count": 2},
                {"id": "9-2", "outcome": "ack", "consumer": "a", "delivery_count": 2},
                {"id": "9-2", "outcome": "ack", "consumer": "a", "delivery_count": 2},
                {"id": "1-0", "outcome": "ack", "consumer": None, "delivery_count": 1},
                {"id": "2-0", "outcome": "retry", "consumer": "a", "delivery_count": 1},
                {"id": "3-0", "outcome": None, "consumer": "a", "delivery_count": 1},
            )
        ]
    )
    found = sorted(acks_of(table), key=lambda each: each.ids)
    assert found == [Acks(None, 1, [b"1-0"]), Acks("a", 1, [b"9-0", b"10-0"]), Acks("a", 2, [b"9-2", b"9-11"])]
    assert [(each.id, each.outcome) for each in others_of(table)] == [(b"2-0", "retry"), (b"3-0", "retry")]


def test_ids_have_64_bits_in_each_half() -> None:
    most = f"{2**64 - 1}-{2**64 - 1}"
    assert rising(pa.array([most, "1-0"])) == [b"1-0", most.encode()]


@pytest.mark.parametrize("wrong", ["1", "x-0", "1-0-0", "", None])
def test_what_is_no_id_is_named(wrong: str | None) -> None:
    with pytest.raises(MalformedPayload, match=f"{wrong!r} is not an entry id"):
        rising(pa.array([wrong, "1-0"], pa.string()))
    with pytest.raises(MalformedPayload, match=f"{wrong!r} is not an entry id"):
        others_of(pa.Table.from_batches([rows({"id": wrong, "outcome": "dead"})]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": pa.string(), "stream": pa.string()}, "need a column 'outcome'"),
        ({"id": pa.string(), "outcome": pa.string()}, "need a column 'stream'"),
        ({"id": pa.int64(), "outcome": pa.string(), "stream": pa.string()}, "'id' of settlements must be a string"),
        ({"id": pa.string(), "outcome": pa.string(), "stream": pa.string(), "delay": pa.string()}, "must be a number"),
    ],
)
def test_columns_that_cannot_be_settled_from_are_refused(fields: dict[str, pa.DataType], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_columns(pa.schema(list(fields.items())), has_stream=False)


def test_outcomes_are_checked_by_their_values() -> None:
    check_outcomes(rows({"id": "1-0", "outcome": None}, {"id": "2-0", "outcome": "ack"}))
    with pytest.raises(MillstreamError, match="'ACK'"):
        check_outcomes(rows({"id": "1-0", "outcome": "ACK"}))
