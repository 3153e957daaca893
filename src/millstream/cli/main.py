"""`millstream`: the commands, and how their failures reach people: one line on standard error, and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millstream.cli import check as checking
from millstream.cli import exporting, importing
from millstream.cli import migrate as migrating
from millstream.cli import serve as serving
from millstream.cli import version as versions
from millstream.cli import worker as working
from millstream.cli.exits import Exit, Failure
from millstream.errors import ConfigError, MillstreamError

app = typer.Typer(
    name="millstream",
    help="Reliable work on streams: a broker that any Redis client can use.",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show the values of variables, and a password may be one of them.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

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
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    wishes = migrating.Wishes(
        match=match, db=db, replace=replace, dry_run=dry_run, by_entries=by_entries, state=state, as_json=as_json
    )
    migrating.migrate(source, target, wishes)


@app.command(help=exporting.HELP, short_help="Write a server's keys into an RDB file.")
def export(
    file: Annotated[str, typer.Argument(help="The file to write.")],
    url: Annotated[str | None, typer.Option("--url", help=f"A server ({exporting.DEFAULT_URL}).")] = None,
    directory: Annotated[str | None, typer.Option("--dir", help="The directory of a stopped broker.")] = None,
    form: Annotated[str, typer.Option("--for", help=f"Who loads it: {', '.join(exporting.FORMS)}.")] = "redis-8.10",
) -> None:
    exporting.export(file, url=url, directory=directory, form=form)


@app.command("import", help=importing.HELP, short_help="Put the keys of an RDB file into a server.")
def import_file(
    file: Annotated[str, typer.Argument(help="The file to read.")],
    url: Annotated[str | None, typer.Option("--url", help=f"The server ({exporting.DEFAULT_URL}).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    importing.import_file(file, url=url, replace=replace, as_json=as_json)


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
    except MillstreamError as error:
        return _tell(str(error), Exit.FAILED)
    except KeyboardInterrupt:
        return 130  # as shells say it
    return Exit.OK


def _tell(text: str, code: Exit) -> int:
    for line in text.splitlines():
        print(f"millstream: {line}", file=sys.stderr)
    return code
