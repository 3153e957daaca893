"""Queries on a real cluster of three shards: by range, in a group, settled, written, looked at in tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.client import connect
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps
from millstream.spark.ids import parse_id
from millstream.spark.options import Read, parse_read
from millstream.spark.range.reader import Span, read_span
from millstream.spark.wire.metadata import StreamMetadata
from millstream.spark.wire.socket import open_for
from millstream.worker.audit import Audit, audit_of
from tests.support.cluster import Cluster, slot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 120
GROUP = "billing"
SET = "jobs-{0..5}"
NAMES = [f"jobs-{number}" for number in range(6)]
EACH = 40


@pytest.fixture
def cluster(valkey_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with six streams in it, on all of its shards."""
    assert {valkey_cluster.shard_of(slot_of(name)) for name in NAMES} == {0, 1, 2}
    with valkey_cluster.client() as client:
        for name in NAMES:
            pipe = client.pipeline()
            for n in range(EACH):
                pipe.xadd(name, {"n": n, "v": f"{name} {n}"})
            pipe.execute()
    try:
        yield valkey_cluster
    finally:
        valkey_cluster.reset()


def options(cluster: Cluster, **more: object) -> dict[str, str]:
    return {"url": cluster.url, "stream": SET, **{name: str(value) for name, value in more.items()}}


def run(writer: Any, checkpoint: Path) -> Any:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return query


def calls(cluster: Cluster, command: str) -> list[int]:
    """How often each primary was asked to do this."""
    told = [cluster.primary(shard).client.info("commandstats") for shard in range(3)]
    return [stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for stats in told]


def refused(cluster: Cluster) -> int:
    """How many commands came to a node that did not have the key."""
    told = [cluster.primary(shard).client.info("errorstats") for shard in range(3)]
    return sum(stats.get("errorstat_MOVED", {"count": 0})["count"] for stats in told)


def test_partitions_are_read_from_the_shard_that_has_them(spark: SparkSession, cluster: Cluster) -> None:
    for shard in range(3):
        cluster.primary(shard).client.config_resetstat()
    frame = spark.read.format("millstream").options(**options(cluster)).load()
    assert {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()} == dict.fromkeys(NAMES, EACH)
    assert refused(cluster) == 0
    assert min(calls(cluster, "xrange")) > 0


def test_a_query_by_range_reads_all_shards_and_writes_to_all(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    reader = spark.readStream.format("millstream").options(**options(cluster, maxOffsetsPerTrigger=100))
    frame = reader.schema("stream string, n string, v string").load()
    writer = frame.selectExpr("concat('copy-', stream) stream", "n", "v").writeStream.format("millstream")
    query = run(writer.option("url", cluster.url), tmp_path / "c")
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [100, 100, 40]
    with cluster.client() as client:
        for name in NAMES:
            copied = [fields[b"v"].decode() for _, fields in client.xrange(f"copy-{name}")]
            assert sorted(copied) == sorted(f"{name} {n}" for n in range(EACH))


def audit(cluster: Cluster, stream: str) -> Audit:
    with connect(cluster.url) as backend:
        return audit_of(backend.run(Steps(Keys(stream.encode()), GROUP.encode(), backend.capabilities).audit()), GROUP)


def table(spark: SparkSession, cluster: Cluster, name: str) -> list[Any]:
    return spark.read.format("millstream").options(**options(cluster, table=name)).load().collect()


def test_a_group_of_all_shards_is_settled_row_by_row(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    from pyspark.sql.functions import expr

    from millstream.spark import settle

    seen: list[tuple[str, int]] = []
    waiting: list[Counter[str]] = []
    reader = spark.readStream.format("millstream").options(**options(cluster, group=GROUP, maxOffsetsPerTrigger=100))
    frame = reader.schema("stream string, id string, n int, consumer string, delivery_count int").load()

    def work(batch: DataFrame, _: int) -> None:
        rows = batch.persist()
        seen.extend((row.stream, row.n) for row in rows.collect())
        waiting.append(Counter(row.stream for row in table(spark, cluster, "pending")))
        decided = rows.withColumn("outcome", expr("if(n = 7, 'dead', 'ack')")).withColumn("reason", expr("'no price'"))
        settle(decided, url=cluster.url, group=GROUP).save()

    run(frame.writeStream.foreachBatch(work), tmp_path / "c")
    assert Counter(seen) == Counter((name, n) for name in NAMES for n in range(EACH))
    assert sum(waiting, Counter()) == dict.fromkeys(NAMES, EACH)
    for name in NAMES:
        now = audit(cluster, name)
        assert (now.done, now.dead, now.pending, now.undelivered, now.balanced) == (EACH - 1, 1, 0, 0, True), name
    letters = [(row.stream, row.reason, row.error, row.group) for row in table(spark, cluster, "dead_letters")]
    assert sorted(letters) == [(name, "rejected", "no price", GROUP) for name in NAMES]
    assert {row.stream for row in table(spark, cluster, "groups") if row.group == GROUP} == set(NAMES)
    assert {row.stream for row in table(spark, cluster, "streams")} == set(NAMES)


def filled(cluster: Cluster, name: str) -> list[str]:
    """The ids of entries that are now in a stream."""
    with cluster.client() as client:
        return [client.xadd(name, {"n": n}).decode() for n in range(3_000)]


def read(given: Read, span: Span, disturb: Callable[[], object]) -> list[str]:
    """The ids of a span's entries; after the first thousand something happens."""
    found: list[str] = []
    for entries in read_span(given.connection, span, 1_000, fail_on_loss=True):
        if not found:
            disturb()
        found += [entry_id.decode() for entry_id in entries.ids().to_pylist()]
    return found


def test_a_span_goes_on_where_a_replica_has_taken_over(cluster: Cluster) -> None:
    """Neither the node that the planner named nor the first node of the URL is there any more."""
    name = cluster.key_on(0, "taken")
    ids = filled(cluster, name)
    nodes = ",".join(f"127.0.0.1:{node.port}" for node in [cluster.primary(0), cluster.primary(1)])
    given = parse_read({"url": f"redis+cluster://{nodes}", "stream": name, "fetchSize": "1000"})
    server = StreamMetadata(given.connection)
    span = server.placed(Span(name, 0, parse_id(ids[-1])))
    cluster.wait_for_replica()
    assert read(given, span, lambda: cluster.kill_primary(0)) == ids
    with open_for(given.connection, name) as wire:  # as settlements and the sink do
        assert wire.ask("XLEN", name) == 3_000
    state = server.state(name)  # and so does the planner
    assert state is not None
    assert state.length == 3_000
    server.close()


def test_streams_of_a_pattern_are_found_while_a_node_is_gone_for_a_moment(cluster: Cluster) -> None:
    given = parse_read({"url": cluster.url, "streamPattern": "jobs-*"})
    server = StreamMetadata(given.connection)
    assert server.find(given.choice) == NAMES
    cluster.failover()
    assert server.find(given.choice) == NAMES
    server.close()


def test_a_stream_moves_while_it_is_read(cluster: Cluster) -> None:
    name = cluster.key_on(1, "moving")
    ids = filled(cluster, name)
    given = parse_read({"url": cluster.url, "stream": name})
    server = StreamMetadata(given.connection)
    span = server.placed(Span(name, 0, parse_id(ids[-1])))
    server.close()
    assert read(given, span, lambda: cluster.move_slot(slot_of(name), 2)) == ids
