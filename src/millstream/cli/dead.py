"""`millstream dead ls|show|redrive|discard`: the dead letters of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from millstream.cli import common, inspect
from millstream.cli.exits import Exit, Failure
from millstream.delivery.deadletters import Filter, Letter, Plan, filter_of
from millstream.delivery.settlement import Reason as Reasons
from millstream.worker.stream import Stream

app = typer.Typer(help="Dead letters: what was given up, why, and sending it back.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The stream that they come from.")]
Reason = Annotated[str | None, typer.Option("--reason", help=f"One of {', '.join(Reasons)}.")]
Error = Annotated[str | None, typer.Option("--error", help="A part of the error.")]
OfGroup = Annotated[str | None, typer.Option("--group", help="Only what this group gave up.")]
Since = Annotated[str | None, typer.Option("--since", help="Not older than: 90s, 15m, 1h, 2d.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="This one; may be repeated.")]
Limit = Annotated[int | None, typer.Option("--limit", help="At most so many.", min=1)]


@dataclass(frozen=True, slots=True)
class _Row:
    """A dead letter as a line."""

    id: str
    died: str
    reason: str
    attempts: int
    group: str
    original_id: str
    error: str


@app.command("ls", short_help="List them.")
def list_letters(
    stream: Name,
    reason: Reason = None,
    error: Error = None,
    group: OfGroup = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1)] = 50,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    with _stream(stream, url) as opened:
        found = list(opened.dead.list(_filter(reason, error, group, since, None), limit=limit))
        if not found:
            _require(opened, stream)
    if as_json:
        common.show(found, (), as_json=True, empty="")
    else:
        common.show(
            [_row(letter) for letter in found], tuple(_Row.__dataclass_fields__), as_json=False, empty="no dead letters"
        )


@app.command("show", short_help="One of them, whole.")
def show_letter(
    stream: Name,
    letter_id: Annotated[str, typer.Argument(help="Its id.")],
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    inspect.require_id(letter_id, "a dead letter")
    with _stream(stream, url) as opened:
        letter = opened.dead.show(letter_id)
    if letter is None:
        raise Failure(f"stream {stream!r} has no dead letter {letter_id}")
    fields = {
        name.decode("utf-8", "backslashreplace"): value.decode("utf-8", "backslashreplace")
        for name, value in letter.fields
    }
    about = asdict(letter) | {"fields": fields}
    common.show_one(about, as_json=as_json)


@app.command("redrive", short_help="Send them back to their stream.")
def redrive_letters(
    stream: Name,
    reason: Reason = None,
    error: Error = None,
    group: OfGroup = None,
    since: Since = None,
    ids: Ids = None,
    rate: Annotated[float | None, typer.Option("--rate", help="At most so many a second.", min=0.01)] = None,
    limit: Limit = None,
    dry_run: common.DryRun = False,
    yes: common.Yes = False,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    with _stream(stream, url) as opened:
        chosen = _filter(reason, error, group, since, ids)
        plan = _planned(opened.dead.redrive(chosen, dry_run=True, limit=limit), opened, stream, dry_run)
        if not dry_run and plan.matched:
            common.confirm(f"Send {plan.matched} dead letters back to {stream!r}?", yes=yes)
            with _progress("redriving", plan.matched, as_json) as advance:
                plan = opened.dead.redrive(Filter(ids=frozenset(plan.ids)), rate=rate, progress=advance)
    _tell(plan, as_json)


@app.command("discard", short_help="Remove them for good.")
def discard_letters(
    stream: Name,
    reason: Reason = None,
    error: Error = None,
    group: OfGroup = None,
    since: Since = None,
    ids: Ids = None,
    limit: Limit = None,
    dry_run: common.DryRun = False,
    yes: common.Yes = False,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    with _stream(stream, url) as opened:
        chosen = _filter(reason, error, group, since, ids)
        plan = _planned(opened.dead.discard(chosen, dry_run=True, limit=limit), opened, stream, dry_run)
        if not dry_run and plan.matched:
            common.confirm(f"Remove {plan.matched} dead letters of {stream!r} for good?", yes=yes)
            with _progress("discarding", plan.matched, as_json) as advance:
                plan = opened.dead.discard(Filter(ids=frozenset(plan.ids)), progress=advance)
    _tell(plan, as_json)


def _stream(name: str, url: str | None) -> Stream[Any]:
    return Stream[Any](name, common.address(url))


def _filter(
    reason: str | None, error: str | None, group: str | None, since: str | None, ids: list[str] | None
) -> Filter:
    if reason is not None and reason not in list(Reasons):
        raise Failure(f"--reason: {reason!r} is none of {', '.join(Reasons)}", Exit.USAGE)
    for each in ids or ():
        inspect.require_id(each, "--id")
    given = {"reason": reason, "error": error, "group": group, "since": since, "ids": ids or None}
    return filter_of(None, {name: value for name, value in given.items() if value is not None})


def _row(letter: Letter) -> _Row:
    died = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.dead_at_ms / 1000))
    return _Row(letter.id, died, letter.reason, letter.attempts, letter.group, letter.original_id, letter.error[:80])


def _planned(plan: Plan, opened: Stream[Any], stream: str, dry_run: bool) -> Plan:
    """What would be done; of a stream that is there."""
    if not plan.matched:
        _require(opened, stream)
    return replace(plan, is_dry_run=dry_run)


def _require(opened: Stream[Any], stream: str) -> None:
    """Raise if there is neither such a stream nor a dead letter of it."""
    if not opened.dead.count():
        inspect.existing(opened.backend, stream)


def _tell(plan: Any, as_json: bool) -> None:
    told = {"matched": plan.matched, "done": plan.done, "gone": plan.gone, "dry_run": plan.is_dry_run}
    common.show_one(told, as_json=as_json)


@contextmanager
def _progress(what: str, total: int, as_json: bool) -> Iterator[Any]:
    if as_json or total < 1000:
        yield None
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
