"""`millstream`: the table of commands, and how their failures reach people: a line on standard error and an exit code.

A command's module is imported when the command runs or its own help is shown, so that `--help`, `--version` and
completion start fast.
"""

from __future__ import annotations

import importlib
import os
import traceback
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from millstream.cli import output
from millstream.cli.exits import Exit, Failure
from millstream.errors import ConfigError, MillstreamError, Unavailable
from millstream.printable import use_safe_streams
from millstream.version import REDIS_VERSION, VERSION

UNREACHABLE: Final = (
    "is it running? `millstream serve` starts one on this machine; --url or MILLSTREAM_URL names another"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, and its line in the help."""

    target: str  # module:function, or module:app for a group of commands
    short: str
    settings: dict[str, Any] = field(default_factory=dict)


COMMANDS: Final = {
    "serve": Entry(
        "millstream.cli.broker.serve:serve",
        "Run the broker: a server for every Redis client.",
        {"ignore_unknown_options": True, "allow_interspersed_args": False},
    ),
    "worker": Entry("millstream.cli.worker:worker", "Run the handlers of a program's streams."),
    "pipeline": Entry("millstream.cli.pipeline.command:app", "Run a Spark pipeline, or create one."),
    "publish": Entry("millstream.cli.data.publishing:publish", "Append entries to a stream."),
    "tail": Entry("millstream.cli.inspect:tail", "Show the last entries of a stream; --follow waits for more."),
    "streams": Entry("millstream.cli.inspect:streams", "List the streams on a server."),
    "groups": Entry("millstream.cli.inspect:groups", "List the consumer groups of one stream or of all streams."),
    "pending": Entry("millstream.cli.inspect:pending", "List the pending entries of a group."),
    "dead": Entry("millstream.cli.dead:app", "List, show, redrive or discard dead letters."),
    "holds": Entry("millstream.cli.holds:holds", "List what Spark queries keep in streams, and release it."),
    "audit": Entry("millstream.cli.inspect:audit", "Account for every published entry of a stream."),
    "doctor": Entry("millstream.cli.doctor:doctor", "Find problems and print the command that helps."),
    "top": Entry("millstream.cli.top:top", "Watch streams and groups live."),
    "migrate": Entry("millstream.cli.data.migrate:migrate", "Copy all keys of a server to another server."),
    "export": Entry("millstream.cli.data.exporting:export", "Write the keys of a server to an RDB file."),
    "import": Entry("millstream.cli.data.importing:import_file", "Load the keys of an RDB file into a server."),
    "check": Entry("millstream.cli.main:check", "Check the files of the broker for damage."),
    "bench": Entry("millstream.cli.bench:bench", "Benchmark a server with a worker's operations."),
    "version": Entry("millstream.cli.version:version", "Show the versions of this installation."),
}
_PLAIN: Final[dict[str, Any]] = {
    "add_completion": False,
    # Tracebacks of typer show the values of variables, and a password may be one of them.
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class LazyCommands(TyperGroup):
    """The commands of the table; each is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short) for name, entry in COMMANDS.items()])


def load(name: str) -> Any:
    """Import a command, or a group of commands."""
    entry = COMMANDS[name]
    module, _, attribute = entry.target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        only = typer.Typer(**_PLAIN)
        only.command(name, short_help=entry.short, context_settings=entry.settings)(found)
        found = only
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(name="millstream", cls=LazyCommands, no_args_is_help=True, **(_PLAIN | {"add_completion": True}))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        output.say(f"millstream {VERSION} (speaks as Redis {REDIS_VERSION.decode()})")
        raise typer.Exit


@app.callback()
def options(
    is_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Reliable work on streams: workers, a broker for every Redis client, and Spark.

    The server is that of --url, else of MILLSTREAM_URL, else redis://127.0.0.1:6379.
    """


def check(
    file: Annotated[str, typer.Argument(help="A log directory, a manifest, a log file or a snapshot.")],
    fix: Annotated[bool, typer.Option("--fix", help="Cut the file after its last complete command.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an append-only log (its directory, its manifest or one of its files) or a snapshot for damage.

    A directory that a broker uses is only read. --fix asks first, keeps a copy of the file, and refuses while a broker
    uses the directory. A file that is neither a log nor a snapshot, or that a newer version has written, is left alone.

    Exit codes: 0 the file is complete or was repaired, 1 it cannot be checked or is in use, 2 wrong use or no such
    file, 3 it is damaged.
    """
    from millstream.cli.broker import check as checking

    if not os.path.exists(file):
        raise Failure(f"there is no file {file!r}", Exit.USAGE)
    checking.check(file, fix=fix, yes=yes, as_json=as_json)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line. Returns its exit code."""
    use_safe_streams()
    try:
        return _run(arguments)
    except output.Unwritable as error:
        # Let Python flush nothing more at its end, which would complain a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.is_reader_gone:  # `millstream tail … | head`: the reader has seen enough
            return Exit.OK
        return _fail(f"standard output cannot be written: {error}", Exit.FAILED)


def _run(arguments: list[str] | None) -> int:
    """Run a command line and turn each way it can end into an exit code."""
    try:
        code = app(args=arguments, prog_name="millstream", standalone_mode=False)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Failure as failure:
        return _fail(str(failure), failure.code)
    except ConfigError as error:
        return _fail(str(error), Exit.USAGE)
    except Unavailable as error:
        return _fail(f"{error}\n{UNREACHABLE}", Exit.FAILED)
    except MillstreamError as error:
        return _fail(str(error), Exit.FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except output.Unwritable:
        raise
    except Exception as error:
        return _wrong_use(error) if hasattr(error, "format_message") else _unexpected(error)
    return code if isinstance(code, int) else Exit.OK


def _fail(text: str, code: Exit) -> int:
    output.warn(text)
    return code


def _wrong_use(error: Any) -> int:
    """Print what typer refused, with the usage of the command."""
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        output.say(context.get_help())
        return Exit.USAGE
    usage = "" if context is None else f"{context.get_usage()}\nTry `{context.command_path} --help`."
    output.warn("\n".join(filter(None, [error.format_message(), usage])))
    return Exit.USAGE


def _unexpected(error: Exception) -> int:
    """Print an error that no command expected; the traceback only if it is asked for."""
    if os.environ.get("MILLSTREAM_DEBUG"):
        output.warn("".join(traceback.format_exception(error)))
    output.warn(f"unexpected {type(error).__name__}: {error}")
    output.warn("please report it; MILLSTREAM_DEBUG=1 prints the traceback")
    return Exit.FAILED
