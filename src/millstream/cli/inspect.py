"""`streams`, `groups`, `pending`, `tail`, `audit`: what is there. None of them changes anything."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from millstream.cli import common
from millstream.cli.exits import Exit, Failure
from millstream.client import Backend
from millstream.client.calls import Call
from millstream.delivery import inspect
from millstream.delivery.delivery import pairs
from millstream.worker.audit import Audit
from millstream.worker.stream import Stream


def streams(pattern: str, *, url: str | None, as_json: bool) -> None:
    """All streams that match."""
    with common.opened(url) as backend:
        names = inspect.stream_names(backend, pattern)
        found = [state for name in names if (state := inspect.stream_state(backend, name)) is not None]
    common.show(
        found,
        ("name", "length", "added", "groups", "dead", "delayed", "last_id"),
        as_json=as_json,
        empty=f"no streams like {pattern!r}",
    )


def groups(stream: str | None, *, url: str | None, as_json: bool) -> None:
    """The groups of one stream, or of all."""
    with common.opened(url) as backend:
        names = [existing(backend, stream)] if stream else inspect.stream_names(backend)
        found = [group for name in names for group in inspect.group_states(backend, name)]
    columns = ("stream", "name", "consumers", "pending", "released", "waiting", "lag", "last_id")
    common.show(found, columns, as_json=as_json, empty="no groups")


def pending(
    stream: str, group: str, *, url: str | None, limit: int, idle_s: float, consumer: str | None, as_json: bool
) -> None:
    """Pending entries of a group."""
    with common.opened(url) as backend:
        require_group(backend, stream, group)
        found = list(
            inspect.pending_states(
                backend, stream, group, limit=limit, min_idle_ms=round(idle_s * 1000), consumer=consumer
            )
        )
    common.show(found, ("id", "consumer", "idle_ms", "deliveries"), as_json=as_json, empty="nothing is pending")


def tail(stream: str, *, url: str | None, count: int, follow: bool, as_json: bool, from_id: str | None) -> None:
    """The last entries, and with `follow` what comes."""
    if from_id is not None:
        require_id(from_id, "--from")
    with common.opened(url) as backend:
        key = stream.encode()
        if not follow:
            existing(backend, stream)
        if from_id is None:
            rows = list(reversed(backend.execute("XREVRANGE", key, "+", "-", "COUNT", count)))
        else:
            rows = backend.execute("XRANGE", key, from_id, "+", "COUNT", count)
        for row in rows:
            _print_entry(row, as_json)
        if follow:
            after = (
                rows[-1][0]
                if rows
                else backend.execute("XINFO", "STREAM", key, key=key)[7]
                if _is_there(backend, key)
                else b"0-0"
            )
            for row in _following(backend, key, after):
                _print_entry(row, as_json)


def _is_there(backend: Backend, key: bytes) -> bool:
    return bool(backend.execute("EXISTS", key))


def _following(backend: Backend, key: bytes, after: bytes) -> Iterator[Any]:
    for _ in itertools.count():
        call: Call[Any] = Call(
            ("XREAD", "COUNT", 100, "BLOCK", 1000, "STREAMS", key, after), key, lambda reply: reply, block_ms=1000
        )
        for row in (backend.run(call) or [[key, []]])[0][1]:
            after = row[0]
            yield row


def _print_entry(row: Any, as_json: bool) -> None:
    fields = {_shown(name): _shown(value) for name, value in pairs(row[1])}
    if as_json:
        print(json.dumps({"id": row[0].decode(), "fields": fields}), flush=True)
    else:
        said = time.strftime("%H:%M:%S", time.localtime(int(row[0].split(b"-")[0]) / 1000))
        shown = "  ".join(f"{name}={value}" for name, value in fields.items())
        print(f"{said}  {row[0].decode()}  {shown}", flush=True)


def _shown(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def audit(stream: str, group: str, *, url: str | None, as_json: bool) -> None:
    """Where everything is that was published; exit code 1 if it does not add up."""
    with Stream[Any](stream, common.address(url), group=group) as opened:
        require_group(opened.backend, stream, group)
        found = opened.audit()
    common.show_one(asdict(found) | {"balanced": found.balanced}, as_json=as_json)
    if found.balanced is False:
        raise Failure(unbalanced(found))


def unbalanced(found: Audit) -> str:
    assert found.published is not None
    difference = found.published - found.accounted
    return (
        f"it does not add up: {found.published} published, {found.accounted} accounted for "
        f"({abs(difference)} {'missing' if difference > 0 else 'too many'}); workers of other libraries settle "
        "without counting, and so does XACK by hand"
    )


def require_id(text: str, what: str) -> None:
    """Raise unless it is the id of an entry, as a person writes it."""
    if not re.fullmatch(r"\d+(-\d+)?", text):
        raise Failure(f"{what}: {text!r} is no id of an entry; it looks like 1767225600000-0", Exit.USAGE)


def existing(backend: Backend, stream: str) -> str:
    """The name, if there is such a stream."""
    if inspect.stream_state(backend, stream) is None:
        names = inspect.stream_names(backend)
        raise Failure(f"there is no stream {stream!r}; there are {', '.join(names[:10]) or 'none'}", Exit.USAGE)
    return stream


def require_group(backend: Backend, stream: str, group: str) -> None:
    """Raise unless the stream has the group."""
    names = [state.name for state in inspect.group_states(backend, existing(backend, stream))]
    if group not in names:
        raise Failure(f"stream {stream!r} has no group {group!r}; it has {', '.join(names) or 'none'}", Exit.USAGE)
