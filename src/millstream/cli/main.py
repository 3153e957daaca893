"""`millstream`: the commands, and how their failures reach people: one line on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from millstream.cli import bench as benches
from millstream.cli import common, inspect
from millstream.cli import dead as dead_letters
from millstream.cli import doctor as doctors
from millstream.cli import pipeline as pipelines
from millstream.cli import top as tops
from millstream.cli import version as versions
from millstream.cli import worker as working
from millstream.cli.broker import check as checking
from millstream.cli.broker import serve as serving
from millstream.cli.data import exporting, importing, publishing
from millstream.cli.data import migrate as migrating
from millstream.cli.exits import Exit, Failure
from millstream.errors import ConfigError, MillstreamError, Unavailable

app = typer.Typer(
    name="millstream",
    help="Reliable work on streams: a broker that any Redis client can use.",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show the values of variables, and a password may be one of them.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

UNREACHABLE = "is it running? `millstream serve` starts one here; --url or MILLSTREAM_URL names another place"


@app.callback()
def options(
    is_version: Annotated[
        bool, typer.Option("--version", help="Say what this is.", callback=versions.asked, is_eager=True)
    ] = False,
) -> None:
    """What stands before the command's name."""


_RAW = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=_RAW, help=serving.HELP, short_help="Serve streams to any Redis client.")
def serve(
    settings: Annotated[list[str] | None, typer.Argument(metavar="[CONFIG-FILE] [--NAME VALUE ...]")] = None,
) -> None:
    serving.serve(settings or [])


@app.command(help=working.HELP, short_help="Run the handlers of a program's streams.")
def worker(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:NAME...", help="Streams of a program.")],
    url: Annotated[str | None, typer.Option("--url", help="Where the streams are.")] = None,
    metrics: Annotated[int | None, typer.Option("--metrics", help="A port for Prometheus, on loopback.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log everything.")] = False,
) -> None:
    working.run_workers(targets, url=url, metrics_port=metrics, verbose=verbose)


@app.command(help=checking.HELP, short_help="Look for damage in a file that the server wrote.")
def check(
    file: Annotated[str, typer.Argument(help="An append-only file, its manifest, or a snapshot.")],
    fix: Annotated[bool, typer.Option("--fix", help="Cut the file behind its last whole command.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    checking.check(file, fix=fix, as_json=as_json)


@app.command(help=migrating.HELP, short_help="Copy all keys of a server to another one.")
def migrate(
    source: Annotated[str, typer.Argument(help="The address to copy from.")],
    target: Annotated[str, typer.Argument(help="The address to copy to.")],
    match: Annotated[str | None, typer.Option("--match", help="Only keys like this pattern.")] = None,
    db: Annotated[int | None, typer.Option("--db", help="The database, at both ends.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that are on the target.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied.")] = False,
    by_entries: Annotated[bool, typer.Option("--by-entries", help="Copy no stream as a whole.")] = False,
    state: Annotated[str | None, typer.Option("--state", help="Where to note what is done.")] = None,
    yes: common.Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    wishes = migrating.Wishes(
        match=match,
        db=db,
        replace=replace,
        dry_run=dry_run,
        by_entries=by_entries,
        state=state,
        yes=yes,
        as_json=as_json,
    )
    migrating.migrate(source, target, wishes)


@app.command(help=exporting.HELP, short_help="Write a server's keys into an RDB file.")
def export(
    file: Annotated[str, typer.Argument(help="The file to write.")],
    url: common.Url = None,
    directory: Annotated[str | None, typer.Option("--dir", help="The directory of a stopped broker.")] = None,
    form: Annotated[str, typer.Option("--for", help=f"Who loads it: {', '.join(exporting.FORMS)}.")] = "redis-8.10",
    yes: common.Yes = False,
    as_json: common.AsJson = False,
) -> None:
    exporting.export(file, url=url, directory=directory, form=form, yes=yes, as_json=as_json)


@app.command("import", help=importing.HELP, short_help="Put the keys of an RDB file into a server.")
def import_file(
    file: Annotated[str, typer.Argument(help="The file to read.")],
    url: common.Url = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that are there.")] = False,
    dry_run: common.DryRun = False,
    yes: common.Yes = False,
    as_json: common.AsJson = False,
) -> None:
    importing.import_file(file, url=url, replace=replace, dry_run=dry_run, yes=yes, as_json=as_json)


app.add_typer(dead_letters.app, name="dead")
app.add_typer(pipelines.app, name="pipeline")


@app.command(help=publishing.HELP, short_help="Append entries to a stream.")
def publish(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    values: Annotated[list[str] | None, typer.Argument(metavar="[JSON... | NAME=VALUE... | -]")] = None,
    as_fields: Annotated[bool, typer.Option("--fields", help="NAME=VALUE pairs are one entry's fields.")] = False,
    file: Annotated[str | None, typer.Option("--file", help="One JSON value a line.")] = None,
    delay: Annotated[float, typer.Option("--delay", help="Seconds until it is there.")] = 0.0,
    dedupe: Annotated[str | None, typer.Option("--dedupe", help="Only once with this token.")] = None,
    ttl: Annotated[float | None, typer.Option("--ttl", help="A dead letter if not handled in so many seconds.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    publishing.publish(
        stream,
        values or [],
        url=url,
        as_fields=as_fields,
        delay=delay,
        dedupe=dedupe,
        ttl=ttl,
        file=file,
        as_json=as_json,
    )


@app.command(help="The last entries of a stream, and with --follow what comes.")
def tail(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    count: Annotated[int, typer.Option("--count", "-n", help="How many.", min=1)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    from_id: Annotated[str | None, typer.Option("--from", help="Begin with this id instead.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    inspect.tail(stream, url=url, count=count, follow=follow, as_json=as_json, from_id=from_id)


@app.command(help="The streams of a place.")
def streams(
    pattern: Annotated[str, typer.Argument(help="Only names like this.")] = "*",
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    inspect.streams(pattern, url=url, as_json=as_json)


@app.command(help="The groups of a stream, or of all streams.")
def groups(
    stream: Annotated[str | None, typer.Argument(help="The stream.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    inspect.groups(stream, url=url, as_json=as_json)


@app.command(help="The pending entries of a group: who has them, since when, for the how many-th time.")
def pending(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    group: common.Group = "workers",
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1)] = 50,
    idle: Annotated[float, typer.Option("--idle", help="Only those idle for so many seconds.", min=0)] = 0.0,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only this one's.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    inspect.pending(stream, group, url=url, limit=limit, idle_s=idle, consumer=consumer, as_json=as_json)


@app.command(help="Where everything is that was published, and whether it adds up (exit code 1 if not).")
def audit(
    stream: Annotated[str | None, typer.Argument(help="The stream; with --spark a pattern (*).")] = None,
    group: Annotated[str | None, typer.Option("--group", help="The group (workers; with --spark all).")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Many streams and groups at once, as a Spark job.")] = False,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    if spark:
        pipelines.audit(stream or "*", url=url, group=group, master=master, as_json=as_json)
    elif stream is None:
        raise Failure("which stream? Name it, or say --spark to look at all of them", Exit.USAGE)
    else:
        inspect.audit(stream, group or "workers", url=url, as_json=as_json)


@app.command(help="What is wrong, and what to type next. Changes nothing; exit code 1 if there is a problem.")
def doctor(
    pattern: Annotated[str, typer.Argument(help="Only streams like this.")] = "*",
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    doctors.doctor(pattern, url=url, as_json=as_json)


@app.command(help="A live view of streams and groups, until Ctrl-C.")
def top(
    pattern: Annotated[str, typer.Argument(help="Only streams like this.")] = "*",
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.", min=0.01)] = 1.0,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Look so often, then end.", min=1)] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    tops.top(pattern, url=url, every_s=every, rounds=rounds, as_json=as_json)


@app.command(help=benches.HELP, short_help="How fast a place is, by what workers do.")
def bench(
    entries: Annotated[int, typer.Option("--entries", help="How many entries each part has.", min=100)] = 20_000,
    size: Annotated[int, typer.Option("--size", help="Bytes of a payload.", min=1)] = 100,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    benches.bench(entries, size, url=url, as_json=as_json)


@app.command(help="Say what this is: versions of Millstream, of the Redis it follows, of Python.")
def version(as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False) -> None:
    versions.version(as_json=as_json)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; the exit code."""
    try:
        app(args=arguments, prog_name="millstream")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Failure as failure:
        return _tell(str(failure), failure.code)
    except ConfigError as error:
        return _tell(str(error), Exit.USAGE)
    except Unavailable as error:
        return _tell(f"{error}\n{UNREACHABLE}", Exit.FAILED)
    except MillstreamError as error:
        return _tell(str(error), Exit.FAILED)
    except KeyboardInterrupt:
        return 130  # as shells say it
    except BrokenPipeError:  # `millstream tail … | head`: who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its end
    return Exit.OK


def _tell(text: str, code: Exit) -> int:
    for line in text.splitlines():
        print(f"millstream: {line}", file=sys.stderr)
    return code
