"""Rows of settlements: what their columns mean, and what becomes of each delivery. Pure.

    stream  id  outcome  [reason  error  traceback  delay  consumer  delivery_count]

`outcome` is ack, retry, release or dead; null means retry, so that a row that nobody decided about is not lost. With
`consumer` and `delivery_count`, as the source gives them, a settlement counts only if the entry is still in the hands
that it was in; without them any consumer of the query's prefix will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.delivery.policy import Failure, decide
from millstream.delivery.settlement import Reason, Settlement
from millstream.errors import ConfigError, MalformedPayload
from millstream.spark.group.options import Terms

ACK, RETRY, RELEASE, DEAD = "ack", "retry", "release", "dead"
OUTCOMES = (ACK, RETRY, RELEASE, DEAD)
NEEDED = ("id", "outcome")
TEXTS = ("stream", "id", "outcome", "reason", "error", "traceback", "consumer")
KNOWN = (*TEXTS, "delay", "delivery_count")
_REASONS = frozenset(str(reason) for reason in Reason)


@dataclass(frozen=True, slots=True)
class Acks:
    """Deliveries of one consumer and number that are done; ids rise, each is there once."""

    consumer: str | None
    number: int | None
    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class Other:
    """A delivery that ends in another way."""

    id: bytes
    consumer: str | None
    number: int | None
    outcome: str
    reason: str = ""
    error: str = ""
    traceback: str = ""
    delay_s: float | None = None


def check_columns(schema: pa.Schema, has_stream: bool) -> None:
    """Raise a ConfigError unless rows like these say what to settle, and how."""
    for name in (*NEEDED, *(() if has_stream else ("stream",))):
        if name not in schema.names:
            raise ConfigError(
                f"settlements need a column {name!r}: select stream, id and an outcome (ack, retry, release or dead), "
                "and better also consumer and delivery_count, as the source gives them"
            )
    for name in TEXTS:
        if name in schema.names and not _is_text(schema.field(name).type):
            raise ConfigError(f"column {name!r} of settlements must be a string, but is {schema.field(name).type}")
    for name, check in (("delay", _is_number), ("delivery_count", pa.types.is_integer)):
        if name in schema.names and not check(schema.field(name).type):
            raise ConfigError(f"column {name!r} of settlements must be a number, but is {schema.field(name).type}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def check_outcomes(rows: pa.RecordBatch) -> None:
    """Raise, naming the value, if a row has an outcome that there is not."""
    for value in pc.unique(rows.column("outcome")).to_pylist():
        if value is not None and value not in OUTCOMES:
            raise MalformedPayload(
                "outcome", f"{value!r} is not an outcome: use {', '.join(OUTCOMES)}, or null, which means retry"
            )


def by_stream(rows: pa.Table, default: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each stream."""
    if "stream" not in rows.column_names:
        assert default is not None
        yield default, rows
        return
    column = rows.column("stream")
    for name in pc.unique(column).to_pylist():
        if name is None and default is None:
            raise MalformedPayload("stream", "a row has none: fill the column, or set option 'stream'")
        chosen = rows.filter(pc.is_null(column) if name is None else pc.equal(column, name))
        yield name if name is not None else str(default), chosen


def acks_of(rows: pa.Table) -> list[Acks]:
    """Yield the done rows in pages of one owner and number each."""
    done = rows.filter(pc.equal(rows.column("outcome"), ACK)).combine_chunks()
    if not done.num_rows:
        return []
    consumers, numbers = _codes(done, "consumer"), _codes(done, "delivery_count")
    codes = consumers[0] * (len(numbers[1]) or 1) + numbers[0]
    ids = _flat(done.column("id"))
    found = []
    for code in np.unique(codes):
        part = ids.filter(pa.array(codes == code)) if len(np.unique(codes)) > 1 else ids
        owner, number = divmod(int(code), len(numbers[1]) or 1)
        found.append(Acks(consumers[1][owner], numbers[1][number], rising(part)))
    return found


def _codes(rows: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Return a column as codes, and their values. Null and a missing column are None."""
    if name not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64), [None]
    encoded = _flat(rows.column(name)).dictionary_encode("encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def rising(ids: pa.Array) -> list[bytes]:
    """Return the distinct ids in the order of the stream."""
    ms, sequence = _halves(ids)
    is_rising = bool(((ms[1:] > ms[:-1]) | ((ms[1:] == ms[:-1]) & (sequence[1:] > sequence[:-1]))).all())
    if not is_rising:
        order = np.lexsort((sequence, ms))
        ms, sequence = ms[order], sequence[order]
        is_new = np.append(True, (ms[1:] != ms[:-1]) | (sequence[1:] != sequence[:-1]))
        ids = ids.take(pa.array(order[is_new]))
    found: list[bytes] = ids.cast(pa.binary()).to_pylist()
    return found


def _halves(ids: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    try:
        flat = pc.split_pattern(ids, "-").flatten()
        if len(flat) != 2 * len(ids) or ids.null_count:
            raise ValueError("an id has two halves")
        numbers = flat.cast(pa.uint64()).to_numpy()
    except (pa.ArrowInvalid, ValueError):
        wrong = next((each for each in ids.to_pylist() if not _is_id(each)), None)
        raise MalformedPayload("id", f"{wrong!r} is not an entry id: pass on the source's column `id`") from None
    return numbers[0::2], numbers[1::2]


def _is_id(text: str | None) -> bool:
    ms, _, sequence = (text or "").partition("-")
    return ms.isdecimal() and sequence.isdecimal()


def others_of(rows: pa.Table) -> list[Other]:
    """Yield the rows that are not simply done. An entry that is named twice counts once."""
    chosen = rows.filter(pc.fill_null(pc.not_equal(rows.column("outcome"), ACK), True))
    found: dict[str, Other] = {}
    for row in chosen.select([name for name in KNOWN if name in chosen.column_names]).to_pylist():
        if not _is_id(row["id"]):
            raise MalformedPayload("id", f"{row['id']!r} is not an entry id: pass on the source's column `id`")
        delay = row.get("delay")
        found.setdefault(
            row["id"],
            Other(
                row["id"].encode(),
                row.get("consumer"),
                row.get("delivery_count"),
                row["outcome"] or RETRY,
                row.get("reason") or "",
                row.get("error") or "",
                row.get("traceback") or "",
                None if delay is None else max(0.0, float(delay)),
            ),
        )
    return list(found.values())


def settlement_of(row: Other, number: int, terms: Terms) -> Settlement:
    """Return how a delivery ends; `number` says which delivery it is."""
    return decide(terms.policy, number, failure_of(row))


def failure_of(row: Other) -> Failure | None:
    """Return what a row asks for; None: it is done.

    The `reason` of a dead one may be one of those that workers give; any other text is what a handler says when it
    rejects.
    """
    match row.outcome:
        case "ack":
            return None
        case "release":
            return Failure("release")
        case "dead" if row.reason in _REASONS:
            return Failure("reject", row.error, row.traceback, reason=Reason(row.reason))
        case "dead":
            told = ": ".join(part for part in (row.reason, row.error) if part)
            return Failure("reject", told, row.traceback)
    error = row.error or row.reason or "the query asked for another try, and this was the last"
    return Failure("retry", error, row.traceback, row.delay_s)
