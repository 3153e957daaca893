"""`streams`, `groups`, `pending`, `tail`, `audit`: commands that read. None of them changes anything."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli import common, output
from millstream.cli.exits import Exit, Failure
from millstream.delivery import inspect
from millstream.errors import ServerReplied
from millstream.printable import printable

if TYPE_CHECKING:
    from millstream.client import Backend
    from millstream.worker.audit import Audit
    from millstream.worker.stream import Stream

NAMED: Final = 10  # names in a message
Pattern = Annotated[str, typer.Argument(help="Glob pattern of stream names.")]


def streams(pattern: Pattern = "*", url: common.Url = None, as_json: common.AsJson = False) -> None:
    """List the streams on a server: length, entries ever added, groups, dead letters, delayed entries, last id."""
    with common.opened(url) as backend:
        names = inspect.stream_names(backend, pattern)
        found = [state for name in names if (state := inspect.stream_state(backend, name)) is not None]
    columns = ("name", "length", "added", "groups", "dead", "delayed", "last_id")
    output.show(found, columns, as_json=as_json, empty=f"no stream matches {pattern!r}")


def groups(
    stream: Annotated[str | None, typer.Argument(help="Name of the stream. Default: all streams.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """List the consumer groups of one stream or of all streams, with consumers, pending entries and lag.

    Released entries are pending without a consumer; waiting entries are pending until their retry is due.
    """
    with common.opened(url) as backend:
        names = inspect.stream_names(backend) if stream is None else [existing(backend, stream)]
        found = [group for name in names for group in inspect.group_states(backend, name)]
    columns = ("stream", "name", "consumers", "pending", "released", "waiting", "lag", "last_id")
    output.show(found, columns, as_json=as_json, empty="no groups")


def pending(
    stream: common.StreamName,
    group: common.Group = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many.", min=1, max=common.MOST)] = 50,
    idle: Annotated[
        float, typer.Option("--idle", help="Only entries idle for this many seconds.", min=0, callback=common.finite)
    ] = 0.0,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only entries of this consumer.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """List the pending entries of a group: id, consumer, idle time in ms, number of deliveries."""
    with common.opened(url) as backend:
        name = chosen_group(backend, stream, group)
        rows = inspect.pending_states(
            backend, stream, name, limit=limit + 1, min_idle_ms=round(idle * 1000), consumer=consumer
        )
        found = list(rows)
    columns = ("id", "consumer", "idle_ms", "deliveries")
    empty = f"group {name!r} of stream {stream!r} has no pending entries"
    output.show(found[:limit], columns, as_json=as_json, empty=empty)
    if len(found) > limit:
        output.warn(f"there are more: these are the oldest {limit}; --limit {10 * limit} shows more")


def tail(
    stream: common.StreamName,
    count: Annotated[int, typer.Option("--count", "-n", help="Number of entries.", min=1, max=common.MOST)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new entries until Ctrl-C.")] = False,
    from_id: Annotated[str | None, typer.Option("--from", help="Start with this id instead of the last.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Show the last entries of a stream, one a line; with --json one JSON object a line."""
    if from_id is not None:
        require_id(from_id, "--from")
    key = common.key_of(stream)
    with common.opened(url) as backend:
        if not follow or backend.execute("EXISTS", key):
            existing(backend, stream)
        if from_id is None:
            rows = list(reversed(backend.execute("XREVRANGE", key, "+", "-", "COUNT", count)))
        else:
            rows = backend.execute("XRANGE", key, from_id, "+", "COUNT", count)
        for row in rows:
            _say_entry(row, as_json)
        if follow:
            for row in _following(backend, key, _position(backend, key, rows)):
                _say_entry(row, as_json)


def _position(backend: Backend, key: bytes, rows: list[Any]) -> bytes:
    """Return the id after which new entries come."""
    if rows:
        last: bytes = rows[-1][0]
    elif backend.execute("EXISTS", key):
        last = backend.execute("XINFO", "STREAM", key, key=key)[7]
    else:
        last = b"0-0"
    return last


def _following(backend: Backend, key: bytes, after: bytes) -> Iterator[Any]:
    from millstream.client.calls import Call

    while True:
        call: Call[Any] = Call(
            ("XREAD", "COUNT", 100, "BLOCK", 1000, "STREAMS", key, after), key, lambda reply: reply, block_ms=1000
        )
        for row in (backend.run(call) or [[key, []]])[0][1]:
            after = row[0]
            yield row


def _say_entry(row: Any, as_json: bool) -> None:
    """Print one entry; a payload in the field `data` keeps its own form."""
    from millstream.delivery.delivery import pairs

    entry_id = row[0].decode()
    if as_json:
        fields = {name.decode("utf-8", "backslashreplace"): value for name, value in pairs(row[1])}
        output.say_json({"id": entry_id, "fields": fields})
        return
    try:
        said = time.strftime("%H:%M:%S", time.localtime(int(entry_id.split("-")[0]) / 1000))
    except (OverflowError, ValueError, OSError):  # an id that is not a time
        said = "--:--:--"
    shown = output.GAP.join(f"{printable(name)}={printable(value)}" for name, value in pairs(row[1]))
    output.say(f"{said}{output.GAP}{entry_id}{output.GAP}{shown}")


def audit(
    stream: Annotated[
        str | None, typer.Argument(help="Name of the stream; with --spark a glob pattern. Default with --spark: *.")
    ] = None,
    group: common.Group = None,
    spark: Annotated[bool, typer.Option("--spark", help="Audit all groups of many streams in a Spark job.")] = False,
    master: Annotated[str | None, typer.Option("--master", help="Spark master, with --spark.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Account for every published entry of a stream as one group sees it.

    Exit codes: 0 the account balances, 1 entries are missing or counted twice, 2 wrong use.
    """
    if spark:
        from millstream.cli.pipeline import command

        command.audit(stream or "*", url=url, group=group, master=master, as_json=as_json)
    elif stream is None:
        raise Failure("which stream? Name one, or use --spark to audit all of them", Exit.USAGE)
    else:
        _audit_one(stream, group, url, as_json)


def _audit_one(stream: str, group: str | None, url: str | None, as_json: bool) -> None:
    from millstream.worker.stream import Stream

    with common.opened(url) as backend:
        name = chosen_group(backend, stream, group)
    with Stream[Any](stream, common.address(url), group=name) as opened, naming_misused_keys(opened):
        found = opened.audit()
    about = {"stream": stream, "group": name, **asdict(found), "balanced": found.balanced}
    output.show_one(about, as_json=as_json)
    if found.balanced is False:
        raise Failure(unbalanced(found))


def unbalanced(found: Audit) -> str:
    """Return the message for an account that does not balance."""
    assert found.published is not None
    difference = found.published - found.accounted
    return (
        f"the account does not balance: {found.published} published, {found.accounted} accounted for "
        f"({abs(difference)} {'missing' if difference > 0 else 'too many'}); clients that call XACK themselves "
        "and workers of other libraries settle without counting"
    )


# What several commands check


def require_id(text: str, what: str) -> None:
    """Raise unless a text is an entry id as Redis accepts it."""
    parts = text.split("-") if re.fullmatch(r"[0-9]{1,20}(-[0-9]{1,20})?", text) else []
    if not parts or any(int(part) >= 1 << 64 for part in parts):
        raise Failure(f"{what}: {text!r} is not an entry id; an id looks like 1767225600000-0", Exit.USAGE)


@contextmanager
def naming_misused_keys(stream: Stream[Any]) -> Iterator[None]:
    """Turn the server's WRONGTYPE, which names no key, into an error that names the key."""
    try:
        yield
    except ServerReplied as error:
        misused = inspect.misused_keys(stream.backend, stream.name) if error.code == "WRONGTYPE" else []
        if not misused:
            raise
        raise Failure("\n".join(misused)) from error


def existing(backend: Backend, stream: str) -> str:
    """Return the name if the server has such a stream; raise with the names that it has otherwise."""
    kind = backend.execute("TYPE", common.key_of(stream))
    if kind == b"stream":
        return stream
    if kind != b"none":
        raise Failure(f"{stream!r} is not a stream: the server holds a {kind.decode()} there", Exit.USAGE)
    names = inspect.stream_names(backend)
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    raise Failure(f"there is no stream {stream!r}; the server has {listed or 'no streams'}", Exit.USAGE)


def chosen_group(backend: Backend, stream: str, group: str | None) -> str:
    """Return the group that was named, else the only one of the stream, else `workers`."""
    names = [state.name for state in inspect.group_states(backend, existing(backend, stream))]
    listed = ", ".join(names)
    if group is None and len(names) == 1:
        return names[0]
    if not names:
        raise Failure(f"stream {stream!r} has no groups", Exit.USAGE)
    if group is None and "workers" not in names:
        raise Failure(f"stream {stream!r} has {len(names)} groups: choose one with --group: {listed}", Exit.USAGE)
    if group is not None and group not in names:
        raise Failure(f"stream {stream!r} has no group {group!r}; it has {listed}", Exit.USAGE)
    return group or "workers"
