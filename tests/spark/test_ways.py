"""Which way rows are written, on real servers."""

from __future__ import annotations

import pytest
import redis

from millstream.spark.options import parse_write
from millstream.spark.watching import WatchWriter
from millstream.spark.ways import make_writer
from millstream.spark.writing import FenceWriter, Identity, IdmpWriter, PlainWriter
from tests.support.servers import RealServer

ONE = Identity("q", 0, 0)


def chosen(port: int, idempotence: str, *, has_ids: bool = False, user: str = "") -> type[PlainWriter]:
    options = parse_write({"url": f"redis://{user}127.0.0.1:{port}", "stream": "s", "idempotence": idempotence})
    return type(make_writer(options, "s", ONE, has_ids=has_ids))


@pytest.mark.parametrize("idempotence", ["auto", "fence"])
def test_transactions_where_the_server_counts_and_makes_the_ids(valkey_server: RealServer, idempotence: str) -> None:
    assert chosen(valkey_server.port, idempotence) is WatchWriter
    assert chosen(valkey_server.port, idempotence, has_ids=True) is FenceWriter


def test_what_is_named_is_taken(valkey_server: RealServer) -> None:
    assert chosen(valkey_server.port, "none") is PlainWriter
    assert chosen(valkey_server.port, "idmp") is IdmpWriter


def test_a_script_on_our_own_server(our_port: int) -> None:
    assert chosen(our_port, "auto") is FenceWriter


@pytest.mark.parametrize("denied", ["-watch", "-multi", "-xinfo", "-eval", "-info"])
def test_a_script_where_a_transaction_may_not_be_had(valkey_server: RealServer, denied: str) -> None:
    client = redis.Redis(port=valkey_server.port)
    client.execute_command("ACL", "SETUSER", "some", "reset", "on", ">pw", "~*", "&*", "+@all", denied)
    assert chosen(valkey_server.port, "auto", user="some:pw@") is FenceWriter
