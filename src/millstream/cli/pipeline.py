"""`millstream pipeline run · init`, and the audit of many streams as a Spark job."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import common
from millstream.cli.exits import Exit, Failure
from millstream.delivery.deadletters import seconds_of
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.spark.pipeline.definition import Pipeline

app = typer.Typer(help="Pipelines in Spark: run one, or begin one.", no_args_is_help=True)

HELP_RUN = """Run a pipeline: MODULE:NAME names one in a Python module that is found from here; a .toml file is one.

\b
  millstream pipeline run app:pipe                     until Ctrl-C or SIGTERM
  millstream pipeline run orders.toml --once           what is there now, then end
  millstream pipeline run app:pipe --from 2h --to now  history again, written beside what is there, each row once

--url, or else MILLSTREAM_URL, replaces the address that the program gave. --master: where Spark runs (here: local[*]).

Exit codes: 0 done or stopped on request, 1 the query failed, 2 wrong use.
"""


@app.command("run", help=HELP_RUN, short_help="Run a pipeline.")
def run_command(
    target: Annotated[str, typer.Argument(metavar="MODULE:NAME | FILE.toml")],
    once: Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")] = False,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Back-fill: since so long ago (2h), or ms.")] = None,
    end: Annotated[str, typer.Option("--to", help="Back-fill: up to so long ago, ms, or now.")] = "now",
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    run(target, once=once, url=url, master=master, start=start, end=end, as_json=as_json)


@app.command("init", help="Make a small pipeline with its test in a new directory.")
def init_command(name: Annotated[str, typer.Argument(help="The directory to make.")]) -> None:
    init(Path(name))


def run(
    target: str, *, once: bool, url: str | None, master: str | None, start: str | None, end: str, as_json: bool
) -> None:
    """Run a pipeline, or with `start` back-fill."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    require_spark()
    history = span(start, end, once=once)
    pipeline = load(target)
    address = url or os.environ.get("MILLSTREAM_URL")
    from pyspark.errors import PySparkException

    try:
        if history is None:
            pipeline.run(once=once, url=address, master=master)
        else:
            done = pipeline.backfill(*history, url=address, master=master)
            common.show_one(asdict(done), as_json=as_json)
    except PySparkException as error:
        raise Failure(reason_of(str(error))) from error


def require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError('this needs Spark: pip install "millstream[spark]" brings it, and a Java if there is none')


def span(start: str | None, end: str, *, once: bool) -> tuple[str | int, str | int] | None:
    """The history to fill in; None: run on. Whatever cannot be meant is told before Spark starts."""
    if start is None:
        if end != "now":
            raise Failure("--to: is for a back-fill, say --from too", Exit.USAGE)
        return None
    if once:
        raise Failure("--from and --once: a back-fill ends by itself, leave --once out", Exit.USAGE)
    return moment(start, "--from"), moment(end, "--to")


def moment(text: str, option: str) -> str | int:
    """Milliseconds, `now`, or so long ago."""
    if text.isdecimal():
        return int(text)
    if text != "now":
        try:
            seconds_of(text)
        except ConfigError as error:
            raise Failure(f"{option}: {error}; or milliseconds since 1970, or now", Exit.USAGE) from error
    return text


def reason_of(text: str) -> str:
    """The first lines of Spark's words, without the plans and traces behind them."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:4]) or "the query failed"


def load(target: str) -> Pipeline:
    """The pipeline that a command line names; a clear error for everything that can be wrong with it."""
    from millstream.spark.pipeline.definition import Pipeline

    here = os.getcwd()
    if target.endswith(".toml"):
        _let_import_from(str(Path(target).absolute().parent))
        return Pipeline.from_toml(target)
    module_name, mark, name = target.partition(":")
    if not mark or not module_name or not name:
        raise ConfigError(f"{target!r} does not name a pipeline: MODULE:NAME, such as app:pipe, or a .toml file")
    _let_import_from(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # found, but something that it imports is not
        raise ConfigError(f"there is no module {module_name!r} to import from {here}") from error
    found = getattr(module, name, None)
    if not isinstance(found, Pipeline):
        there = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
        raise ConfigError(f"{module_name!r} has no Pipeline named {name!r}; it has {', '.join(there) or 'none'}")
    return found


def _let_import_from(directory: str) -> None:
    """Let this process import from a directory, and those that Spark starts for steps."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    paths = [directory, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


# Beginning one


def init(directory: Path) -> None:
    """Write a small project."""
    if directory.exists() and any(directory.iterdir()):
        raise Failure(f"{directory} exists and is not empty: name another one", Exit.USAGE)
    if not directory.name.replace("-", "").replace("_", "").isalnum():
        raise Failure(f"{directory.name!r} is no good name: use letters, digits, - and _", Exit.USAGE)
    directory.mkdir(parents=True, exist_ok=True)
    templates = Path(__file__).parent / "scaffold"
    for template in sorted(templates.iterdir()):
        text = template.read_text().replace("PIPELINE_NAME", directory.name)
        (directory / template.name.removesuffix(".txt")).write_text(text)
    steps = (f"cd {directory}", "python -m pytest", "millstream pipeline run pipeline:pipe --once")
    print("\n  ".join([f"made {directory}; next:", *steps]))


# Auditing many


def audit(pattern: str, *, url: str | None, group: str | None, master: str | None, as_json: bool) -> None:
    """Every group of every stream that matches, as a Spark job; exit code 1 if one does not add up."""
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
    common.show(rows, columns, as_json=as_json, empty=f"no groups of streams like {pattern!r}")
    wrong = [f"{row.stream}/{row.group}" for row in rows if row.balanced is False]
    if wrong:
        raise Failure(f"it does not add up: {', '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """Where everything is that was published, as one group sees it."""

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
    """The accounts of groups of streams, read by the executors."""
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
