"""Batches that are written again in another order, cut anywhere: each row lands once, or the writer says why not.

Without Spark, with the real script on a real Valkey and on our own server.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import count

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.spark.options import Write, parse_write
from millstream.spark.sink.fence import FenceWriter, check_written
from millstream.spark.sink.packing import Packed, layout_of, pack
from millstream.spark.sink.writer import Identity, IdmpWriter
from tests.spark.conftest import Place

_numbers = count()


def packed(values: Sequence[int]) -> Packed:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int64())})
    return pack(batch, layout_of(batch.schema, True), keep_nulls=False)


def options(place: Place, stream: str, chunk: int = 7) -> Write:
    return parse_write({"url": place.url, "stream": stream, "chunkSize": str(chunk)})


def written(client: redis.Redis, stream: str) -> Counter[int]:
    return Counter(int(fields[b"n"]) for _, fields in client.xrange(stream))  # type: ignore[union-attr, misc]


def attempt(place: Place, stream: str, rows: Sequence[int], identity: Identity, chunk: int = 7) -> None:
    """Write all rows, in parts."""
    writer = FenceWriter(options(place, stream, chunk), stream, identity)
    for start in range(0, len(rows), 11):
        writer.write(packed(rows[start : start + 11]))
    writer.finish()
    writer.close()


rows_of_a_partition = st.lists(st.integers(0, 12), min_size=1, max_size=80)
runs = st.lists(st.tuples(st.randoms(use_true_random=False), st.integers(0, 80), st.integers(1, 30)), max_size=4)


@given(rows=rows_of_a_partition, cut_runs=runs, last=st.randoms(use_true_random=False))
def test_rows_in_any_order_cut_anywhere_land_once(
    place_of_all: Place, rows: list[int], cut_runs: list[tuple[random.Random, int, int]], last: random.Random
) -> None:
    """Equal rows are rows of their own."""
    stream, identity = f"replayed-{next(_numbers)}", Identity("q", 3, 0)
    for luck, cut, chunk in cut_runs:
        writer = FenceWriter(options(place_of_all, stream, chunk), stream, identity)
        writer.write(packed(luck.sample(rows, len(rows))[:cut]))
        writer.close()  # as if it had been killed: nobody knows what has landed
    attempt(place_of_all, stream, last.sample(rows, len(rows)), identity)
    assert written(place_of_all.client, stream) == Counter(rows)
    check_written(options(place_of_all, stream).connection, stream, "q", 3, {0: len(rows)}, forget=True)
    assert place_of_all.client.keys(f"*{stream}*") == [stream.encode()]


@given(rows=rows_of_a_partition, luck=st.randoms(use_true_random=False), chunk=st.integers(1, 10))
def test_attempts_at_the_same_time_in_other_orders_write_each_row_once(
    place_of_all: Place, rows: list[int], luck: random.Random, chunk: int
) -> None:
    """Chunks of equal length land in any order, as those of an executor that is believed lost and is still alive."""
    stream, identity = f"replayed-{next(_numbers)}", Identity("q", 3, 0)
    writers = [FenceWriter(options(place_of_all, stream, chunk), stream, identity) for _ in range(2)]
    left = [luck.sample(rows, len(rows)) for _ in writers]
    while any(left):
        turn = luck.choice([number for number, each in enumerate(left) if each])
        size = luck.randint(1, 20)
        writers[turn].write(packed(left[turn][:size]))
        del left[turn][:size]
    for writer in writers:
        writer.finish()
        writer.close()
    assert written(place_of_all.client, stream) == Counter(rows)


@pytest.fixture(scope="module", params=["valkey", "ours"])
def place_of_all(request: pytest.FixtureRequest) -> Place:
    """A server for all examples of a test: each uses a stream of its own."""
    port = request.getfixturevalue(f"{'valkey' if request.param == 'valkey' else 'our'}_port")
    return Place(request.param, port, redis.Redis(port=port), "replayed")


def test_a_replay_with_other_rows_fails_and_says_why(each_place: Place) -> None:
    stream = each_place.stream
    attempt(each_place, stream, list(range(30)), Identity("q", 3, 0))
    with pytest.raises(ConfigError, match=r"1 rows that an earlier attempt .* are not in partition 0"):
        attempt(each_place, stream, [*range(29), 77], Identity("q", 3, 0))


def test_rows_that_moved_to_another_partition_are_noticed(each_place: Place) -> None:
    """The whole batch is run again: what was in partition 0 is in partition 1 now, and would be there twice."""
    stream = each_place.stream
    attempt(each_place, stream, [1, 2, 3], Identity("q", 3, 0))
    attempt(each_place, stream, [1, 2, 3, 4], Identity("q", 3, 1))
    connection = options(each_place, stream).connection
    with pytest.raises(ConfigError, match=r"3 rows that an earlier attempt .* are not in any of its partitions"):
        check_written(connection, stream, "q", 3, {1: 4}, forget=False)
    check_written(connection, stream, "q", 3, {0: 3, 1: 4}, forget=False)
    check_written(connection, stream, "q", 2, {}, forget=False)  # of another batch


def test_the_digests_of_a_batch_make_room_for_those_of_the_next(each_place: Place) -> None:
    """What is kept beside the stream is 8 bytes a row of the last batch."""
    stream = each_place.stream
    for batch in range(3):
        attempt(each_place, stream, list(range(100)), Identity("q", batch, 0))
    assert written(each_place.client, stream) == Counter(list(range(100)) * 3)
    [digests] = each_place.client.keys(f"*{stream}*fence:q:0")
    assert each_place.client.strlen(digests) == 800
    assert each_place.client.ttl(digests) > 6 * 86400


def test_rows_that_a_server_remembers_may_come_in_another_order(our_port: int) -> None:
    client = redis.Redis(port=our_port)
    rows = [*range(40), 7, 7]
    for number in range(3):
        writer = IdmpWriter(parse_write({"url": f"redis://127.0.0.1:{our_port}"}), "idmp", Identity("q", 4, 0))
        writer.write(packed(random.Random(number).sample(rows, len(rows))))
        writer.finish()
        writer.close()
    assert written(client, "idmp") == Counter(rows)
