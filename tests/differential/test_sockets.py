"""Random programs over sockets, pipelined: our server and Redis 8.10 answer byte for byte the same."""

from __future__ import annotations

import os
import random

import pytest

from tests.differential import differences
from tests.differential.run import campaign
from tests.differential.sockets import SocketDuel, SocketSide
from tests.support.servers import RealServer

pytestmark = [pytest.mark.differential, pytest.mark.timeout(1800)]

COMMANDS = int(os.environ.get("MILLSTREAM_DIFFERENTIAL", "20000")) // 4
SEED = int(os.environ.get("MILLSTREAM_SEED", random.randrange(2**40)))


def test_random_programs_over_sockets_get_the_replies_of_redis(redis_server: RealServer) -> None:
    duel = SocketDuel(redis_server, differences.REDIS, SocketSide)
    result = campaign(redis_server, COMMANDS, SEED, duel=duel)
    assert not result.failures, "\n".join(result.failures.values())
    assert result.commands >= COMMANDS
