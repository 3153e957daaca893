"""`millstream dead ls|show|redrive|discard`: the dead letters of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from millstream.cli import common, inspect, output
from millstream.cli.exits import Exit, Failure
from millstream.delivery.deadletters import Filter, Letter, Plan, filter_of
from millstream.delivery.settlement import Reason as Reasons
from millstream.printable import printable
from millstream.worker.stream import Stream

app = typer.Typer(
    help="List, show, redrive or discard dead letters: entries that were given up, with the reason.",
    short_help="List, show, redrive or discard dead letters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="Stream that the dead letters come from.")]
Reason = Annotated[str | None, typer.Option("--reason", help=f"Only this reason: {', '.join(Reasons)}.")]
Error = Annotated[str | None, typer.Option("--error", help="Only errors that contain this text.")]
OfGroup = Annotated[str | None, typer.Option("--group", help="Only dead letters of this group.")]
Since = Annotated[str | None, typer.Option("--since", help="Only the last 90s, 15m, 1h or 2d.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this dead letter; may be repeated.")]
Limit = Annotated[int | None, typer.Option("--limit", help="At most this many.", min=1, max=common.MOST)]
COLUMNS = ("id", "died", "reason", "attempts", "group", "original_id", "error")


@dataclass(frozen=True, slots=True)
class _Row:
    """A dead letter as a line of a table."""

    id: str
    died: str
    reason: str
    attempts: int
    group: str
    original_id: str
    error: str


@app.command("ls")
def list_letters(
    stream: Name,
    reason: Reason = None,
    error: Error = None,
    group: OfGroup = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many.", min=1, max=common.MOST)] = 50,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """List dead letters, oldest first. With --json also fields and tracebacks."""
    with _stream(stream, url) as opened:
        found = list(opened.dead.list(_filter(reason, error, group, since, None), limit=limit + 1))
        total = opened.dead.count()
        if not found:
            _require(opened, stream)
    rows = [_facts(letter) for letter in found] if as_json else [_row(letter) for letter in found]
    output.show(rows[:limit], COLUMNS, as_json=as_json, empty=f"stream {stream!r} has no such dead letters")
    if len(found) > limit:
        output.warn(f"there are more: {limit} of the {total} dead letters of {stream!r} are shown; --limit {total}")


@app.command("show")
def show_letter(
    stream: Name,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter, as `dead ls` shows it.")],
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Show one dead letter in full: reason, error, traceback, origin and fields."""
    inspect.require_id(letter_id, "ID")
    with _stream(stream, url) as opened:
        letter = opened.dead.show(letter_id)
    if letter is None:
        raise Failure(f"stream {stream!r} has no dead letter {letter_id}")
    facts = _facts(letter)
    if as_json:
        output.show_one(facts, as_json=True)
        return
    fields = facts.pop("fields")
    output.show_one(facts, as_json=False)
    for name, value in fields.items():
        output.show_one({f"field {printable(name)}": printable(value)}, as_json=False)


@app.command("redrive")
def redrive_letters(
    stream: Name,
    reason: Reason = None,
    error: Error = None,
    group: OfGroup = None,
    since: Since = None,
    ids: Ids = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="At most this many a second.", min=0.01, callback=common.finite)
    ] = None,
    limit: Limit = None,
    dry_run: common.DryRun = False,
    yes: common.Yes = False,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Send dead letters back to their stream and to the group that gave them up. An interrupted run can be repeated."""
    with _stream(stream, url) as opened:
        chosen = _filter(reason, error, group, since, ids)
        plan = _planned(opened.dead.redrive(chosen, dry_run=True, limit=limit), opened, stream, dry_run)
        if not dry_run and plan.matched:
            common.confirm(f"Send {_letters(plan)} back to {stream!r}?", yes=yes)
            with _progress("redriving", plan.matched, as_json) as advance:
                plan = opened.dead.redrive(Filter(ids=frozenset(plan.ids)), rate=rate, progress=advance)
    _tell(plan, as_json)


@app.command("discard")
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
    """Remove dead letters for good."""
    with _stream(stream, url) as opened:
        chosen = _filter(reason, error, group, since, ids)
        plan = _planned(opened.dead.discard(chosen, dry_run=True, limit=limit), opened, stream, dry_run)
        if not dry_run and plan.matched:
            common.confirm(f"Remove {_letters(plan)} of {stream!r} for good?", yes=yes)
            with _progress("discarding", plan.matched, as_json) as advance:
                plan = opened.dead.discard(Filter(ids=frozenset(plan.ids)), progress=advance)
    _tell(plan, as_json)


@contextmanager
def _stream(name: str, url: str | None) -> Iterator[Stream[Any]]:
    common.key_of(name)
    with Stream[Any](name, common.address(url)) as opened, inspect.naming_misused_keys(opened):
        yield opened


def _letters(plan: Plan) -> str:
    return output.plural(plan.matched, "dead letter")


def _filter(
    reason: str | None, error: str | None, group: str | None, since: str | None, ids: list[str] | None
) -> Filter:
    if reason is not None and reason not in list(Reasons):
        raise Failure(f"--reason: {reason!r} is not one of {', '.join(Reasons)}", Exit.USAGE)
    for each in ids or ():
        inspect.require_id(each, "--id")
    given = {"reason": reason, "error": error, "group": group, "since": since, "ids": ids or None}
    return filter_of(None, {name: value for name, value in given.items() if value is not None})


def _row(letter: Letter) -> _Row:
    try:
        died = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.dead_at_ms / 1000))
    except (OverflowError, ValueError, OSError):  # other libraries write what they like
        died = str(letter.dead_at_ms)
    return _Row(letter.id, died, letter.reason, letter.attempts, letter.group, letter.original_id, letter.error)


def _facts(letter: Letter) -> dict[str, Any]:
    """Return a dead letter as JSON has it: the same object in `dead ls` and `dead show`."""
    fields = {
        name.decode("utf-8", "backslashreplace"): value.decode("utf-8", "backslashreplace")
        for name, value in letter.fields
    }
    return asdict(letter) | {"fields": fields}


def _planned(plan: Plan, opened: Stream[Any], stream: str, dry_run: bool) -> Plan:
    """Return what would be done; raise if there is no such stream."""
    if not plan.matched:
        _require(opened, stream)
    return replace(plan, is_dry_run=dry_run)


def _require(opened: Stream[Any], stream: str) -> None:
    """Raise if there is neither such a stream nor a dead letter of it."""
    if not opened.dead.count():
        inspect.existing(opened.backend, stream)


def _tell(plan: Plan, as_json: bool) -> None:
    done = {"matched": plan.matched, "done": plan.done, "gone": plan.gone, "dry_run": plan.is_dry_run}
    output.show_one(done, as_json=as_json)


@contextmanager
def _progress(what: str, total: int, as_json: bool) -> Iterator[Any]:
    if as_json or total < 1000:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
