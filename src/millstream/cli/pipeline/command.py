"""`millstream pipeline run` and `init`, and the audit of many streams as a Spark job."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import common, output
from millstream.cli.exits import Exit, Failure
from millstream.cli.loading import load_object
from millstream.cli.worker import set_up_log
from millstream.delivery.deadletters import seconds_of
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.spark.pipeline.definition import Pipeline

app = typer.Typer(
    help="Run a Spark pipeline, or create one.",
    short_help="Run a Spark pipeline, or create one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("run")
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME | FILE.toml", help="The pipeline.")],
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")] = False,
    master: Annotated[
        str | None, typer.Option("--master", help="Spark master. Default: of spark-submit, else local.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="Back-fill from a time: 2h ago, or ms.")] = None,
    end: Annotated[str, typer.Option("--to", help="Back-fill up to a time: 1h ago, ms, or now.")] = "now",
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Run a pipeline. MODULE:NAME names one in a module that Python finds from this directory; a .toml file is one.

    \b
      millstream pipeline run app:pipe                     until Ctrl-C or SIGTERM
      millstream pipeline run orders.toml --once           what is there now, then end
      millstream pipeline run app:pipe --from 2h --to now  history again, beside the live rows, each row once

    --url, else MILLSTREAM_URL, replaces the URL that the program gave.

    Exit codes: 0 done or stopped on request, 1 the query failed, 2 wrong use.
    """
    set_up_log(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    require_spark()
    history = span(start, end, once=once)
    pipeline = load(target)
    address = url or os.environ.get("MILLSTREAM_URL")
    from pyspark.errors import PySparkException

    try:
        if history is None:
            from millstream.cli.pipeline import progress

            ran = progress.run(pipeline, once=once, url=address, master=master)
            output.show_one(asdict(ran), as_json=as_json)
        else:
            done = pipeline.backfill(*history, url=address, master=master)
            output.show_one(asdict(done), as_json=as_json)
    except PySparkException as error:
        raise Failure(reason_of(str(error))) from error


def require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError('this needs Spark: pip install "millstream[spark]" brings it, and a Java if there is none')


def span(start: str | None, end: str, *, once: bool) -> tuple[str | int, str | int] | None:
    """Return the times of a back-fill, None for a live run. Wrong times are refused before Spark starts."""
    if start is None:
        if end != "now":
            raise Failure("--to: is for a back-fill; give --from too", Exit.USAGE)
        return None
    if once:
        raise Failure("--from and --once: a back-fill ends by itself, leave --once out", Exit.USAGE)
    return moment(start, "--from"), moment(end, "--to")


def moment(text: str, option: str) -> str | int:
    """Read a time: milliseconds since 1970, `now`, or a duration ago."""
    if text.isdecimal():
        return int(text)
    if text != "now":
        try:
            seconds_of(text)
        except ConfigError as error:
            raise Failure(f"{option}: {error}; or milliseconds since 1970, or now", Exit.USAGE) from error
    return text


def reason_of(text: str) -> str:
    """Return the first lines of an error of Spark, without plans and stack traces."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:4]) or "the query failed"


def load(target: str) -> Pipeline:
    """Return the pipeline that a target names; a ConfigError says what is wrong with the target."""
    from millstream.spark.pipeline.definition import Pipeline

    here = os.getcwd()
    if target.endswith(".toml"):
        _let_import_from(str(Path(target).absolute().parent))
        return Pipeline.from_toml(target)
    _let_import_from(here)
    found: Pipeline = load_object(target, Pipeline, "Pipeline")
    return found


def _let_import_from(directory: str) -> None:
    """Let this process, and those that Spark starts for steps, import from a directory."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    paths = [directory, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


# Creating one


@app.command("init")
def init(name: Annotated[str, typer.Argument(metavar="NAME", help="Directory to create.")]) -> None:
    """Create a directory with a small pipeline and its test."""
    directory = Path(name)
    if not directory.name.replace("-", "").replace("_", "").isalnum():
        raise Failure(f"{name!r} is not a usable name: use letters, digits, - and _", Exit.USAGE)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise Failure(f"{name!r} exists and is not an empty directory: choose another name", Exit.USAGE)
        directory.mkdir(parents=True, exist_ok=True)
        for template in sorted((Path(__file__).parent / "scaffold").iterdir()):
            text = template.read_text().replace("PIPELINE_NAME", directory.name)
            (directory / template.name.removesuffix(".txt")).write_text(text)
    except OSError as error:
        raise Failure(f"{name!r} cannot be created: {error.strerror}") from error
    output.say("\n  ".join([f"created {name}; next:", *next_steps(name)]))


def next_steps(name: str) -> list[str]:
    """Return commands that work on this machine: with what is installed, and with the server that is configured."""
    steps = [f"cd {shlex.quote(name)}"]
    if importlib.util.find_spec("pyspark") is None:
        steps.append(f'{shlex.quote(sys.executable)} -m pip install "millstream[spark]"')
    steps.append(f"{shlex.quote(sys.executable)} test_pipeline.py    # the steps, without a server; pytest runs it too")
    if not os.environ.get("MILLSTREAM_URL"):
        steps.append(f"millstream serve &    # on {common.DEFAULT_URL}, or set MILLSTREAM_URL")
    steps.append("""millstream publish orders '{"order": 1, "country": "DE", "quantity": 3, "price": 400.0}'""")
    return [*steps, "millstream pipeline run pipeline:pipe --once"]


# Auditing many


def audit(pattern: str, *, url: str | None, group: str | None, master: str | None, as_json: bool) -> None:
    """Audit every group of every matching stream in a Spark job; exit code 1 if one does not balance."""
    require_spark()
    from millstream.delivery import inspect
    from millstream.spark import session

    with common.opened(url) as backend:
        names = inspect.stream_names(backend, pattern)
        pairs = [
            (name, state.name)
            for name in names
            for state in inspect.group_states(backend, name)
            if group is None or state.name == group
        ]
    spark = session("audit") if master is None else session("audit", master=master)
    try:
        rows = audited(spark, common.address(url), pairs)
    finally:
        spark.stop()
    columns = ("stream", "group", "published", "done", "pending", "undelivered", "delayed", "dead", "balanced")
    output.show(rows, columns, as_json=as_json, empty=f"no stream that matches {pattern!r} has a group")
    wrong = [f"{row.stream}/{row.group}" for row in rows if row.balanced is False]
    if wrong:
        raise Failure(f"the account does not balance: {', '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """The account of one group of a stream."""

    stream: str
    group: str
    published: int | None
    done: int
    pending: int
    undelivered: int
    delayed: int
    dead: int
    discarded: int
    trimmed: int
    redriven: int
    balanced: bool | None


def audited(spark: Any, url: str, pairs: list[tuple[str, str]]) -> list[StreamAccount]:
    """Read the accounts of groups on the executors."""
    if not pairs:
        return []
    context = spark.sparkContext
    shares = context.parallelize(pairs, min(len(pairs), 4 * context.defaultParallelism))
    found: list[StreamAccount] = shares.mapPartitions(lambda share: _accounts(url, share)).collect()
    return sorted(found, key=lambda row: (row.stream, row.group))


def _accounts(url: str, pairs: Iterable[tuple[str, str]]) -> Iterator[StreamAccount]:
    from millstream.worker.stream import Stream

    for name, group in pairs:
        with Stream[Any](name, url, group=group) as stream:
            found = stream.audit()
            yield StreamAccount(
                name,
                group,
                found.published,
                found.done,
                found.pending,
                found.undelivered,
                found.delayed,
                found.dead,
                found.discarded,
                found.trimmed,
                found.redriven,
                found.balanced,
            )
