"""The engine against real servers: replies byte for byte, log lines and events.

    MILLSTREAM_DIFFERENTIAL=500000   how many random commands are compared with Redis (20,000 otherwise)
    MILLSTREAM_SEED=1234             the first program's seed (a new one for each run otherwise, printed if it fails)

`make differential` is the long run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.differential import differences
from tests.differential.direct import DirectSide
from tests.differential.duel import Duel
from tests.differential.effects import AOF_OPTIONS, EffectsDuel
from tests.differential.run import campaign
from tests.support import servers

pytestmark = [pytest.mark.differential, pytest.mark.timeout(1800)]

COMMANDS = int(os.environ.get("MILLSTREAM_DIFFERENTIAL", "20000"))
SEED = int(os.environ.get("MILLSTREAM_SEED", random.randrange(2**40)))


@pytest.fixture(scope="module")
def logging_server() -> Iterator[servers.RealServer]:
    """A Redis that writes an append-only file and publishes events."""
    binary = servers.require(servers.redis_binary(), "Redis 8.10 (make oracle)")
    with servers.running(binary, *AOF_OPTIONS) as server:
        yield server


def test_random_programs_get_the_replies_of_redis(redis_server: servers.RealServer) -> None:
    result = campaign(redis_server, COMMANDS, SEED)
    assert not result.failures, "\n".join(result.failures.values())
    assert result.commands >= COMMANDS


def test_random_programs_log_and_publish_what_redis_does(logging_server: servers.RealServer) -> None:
    result = campaign(logging_server, 3000, SEED, duel=EffectsDuel(logging_server, differences.REDIS))
    assert not result.failures, "\n".join(result.failures.values())


def test_direct_calls_of_the_broker_get_the_replies_of_redis(redis_server: servers.RealServer) -> None:
    duel = Duel(redis_server, differences.REDIS, DirectSide)
    DirectSide.calls.clear()
    result = campaign(redis_server, 5000, SEED, duel=duel, orderly=True)
    assert not result.failures, "\n".join(result.failures.values())
    assert min(DirectSide.calls[name] for name in (b"XADD", b"XREADGROUP", b"XACK", b"XNACK")) > 10


def test_random_programs_get_the_replies_of_valkey_where_it_knows_the_commands(
    valkey_server: servers.RealServer,
) -> None:
    result = campaign(valkey_server, 5000, SEED, valkey=True)
    assert not result.failures, "\n".join(result.failures.values())


def test_each_deliberate_difference_says_why() -> None:
    for difference in (*differences.REDIS, *differences.VALKEY):
        assert difference.what
        assert len(difference.reason) > 10
