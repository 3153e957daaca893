"""Orders that were accepted twice are in the table once, whoever accepted them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.shop.orders import ACCEPTED
from examples.shop.worker import Accepted
from millstream import Broker, Stream
from tests.examples.shop.conftest import HAS_SPARK, rows
from tests.spark.conftest import spark  # noqa: F401  # the fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed")]
AT = "2026-03-02T09:30:00Z"
SPARKS = (
    "_id string, _delivery_count int, order bigint, customer string, country string, product string, "
    "quantity bigint, price bigint, at string, title string, category string, hour string"
)


@pytest.fixture
def url() -> Iterator[str]:
    with Broker() as broker, broker.serve_in_background() as server:
        yield f"redis://127.0.0.1:{server.port}"


def accepted_by_spark(spark: SparkSession, directory: Path, batch: int, orders: list[int]) -> None:  # noqa: F811
    found = [(f"{order}-0", 1, order, "c", "DE", "p", 1, 100, AT, "t", "g", "2026-03-02-09") for order in orders]
    frame = spark.createDataFrame(found, SPARKS)
    frame.write.partitionBy("hour").parquet(str(directory / "accepted" / f"batch=q-{batch}"))


def accepted_by_workers(url: str, orders: list[int]) -> None:
    with Stream[Accepted](ACCEPTED, url, fields=True) as stream:
        stream.publish_many(
            [Accepted(f"{order}-0", 1, order, "c", "DE", "p", 1, 100, AT, "t", "g") for order in orders]
        )


@pytest.mark.parametrize(
    ("batches", "workers", "twice"),
    [
        ([[1, 2], [3]], [4], 0),
        ([[1, 2], [3]], [3, 4], 1),
        ([[1, 2], [2, 3]], [4], 1),
        ([[1, 2], [2, 3], [2]], [2, 3, 4], 4),
        ([], [1, 2, 3, 4], 0),
        ([[1, 2, 3, 4]], [], 0),
    ],
)
def test_every_order_is_there_once(
    spark: SparkSession,  # noqa: F811
    url: str,
    tmp_path: Path,
    batches: list[list[int]],
    workers: list[int],
    twice: int,
) -> None:
    from examples.shop.pipeline import gather

    for number, orders in enumerate(batches):
        accepted_by_spark(spark, tmp_path, number, orders)
    if workers:
        accepted_by_workers(url, workers)
    assert gather(spark, tmp_path, url) == twice
    assert sorted(int(str(row["order"])) for row in rows(tmp_path)) == [1, 2, 3, 4]
    gather(spark, tmp_path, url)  # gone on with: nothing is added
    assert sorted(int(str(row["order"])) for row in rows(tmp_path)) == [1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path)) == ["accepted"]


def test_a_run_that_was_killed_while_it_replaced_the_table_has_it_again(tmp_path: Path) -> None:
    from examples.shop.pipeline import mend

    for name in ("once", "before"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    mend(tmp_path)
    assert os.listdir(tmp_path) == ["accepted"]
    assert (tmp_path / "accepted" / "file").read_text() == "once"
    (tmp_path / "once").mkdir()  # begun, and not whole
    mend(tmp_path)
    assert os.listdir(tmp_path) == ["accepted"]
    assert (tmp_path / "accepted" / "file").read_text() == "once"
