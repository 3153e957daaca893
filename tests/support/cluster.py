"""A real Valkey cluster on the loopback interface: three shards, and one replica of the first.

    shard 0   0 …  5461   node 0, node 3 (either may be the primary: failovers swap them)
    shard 1   5462 … 10922   node 1
    shard 2   10923 … 16383   node 2

It is put together with CLUSTER commands alone. Each node keeps its directory, so one that was killed comes back
as the member it was. A test may kill, fail over and move slots as it likes: `reset` undoes all of it.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import redis
from redis.crc import key_slot

from tests.support import servers

SLOTS: Final = ((0, 5461), (5462, 10922), (10923, 16383))
REPLICA: Final = len(SLOTS)  # the index of the node that starts as the replica
TIMEOUT_S: Final = 60
NODE_TIMEOUT_MS: Final = 60_000  # a busy machine must not make a living node look dead
FAILOVER_TIMEOUT_MS: Final = 1000  # after a kill, so that the replica takes over soon
STEP_S: Final = 0.02
KEYS_A_MOVE: Final = 500


@dataclass
class Node:
    """One server of the cluster: how to start it, how to ask it."""

    binary: Path
    directory: Path
    port: int = field(default_factory=servers.free_port)
    bus: int = field(default_factory=servers.free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.client = redis.Redis(port=self.port, protocol=2, decode_responses=True, socket_timeout=60)

    def start(self) -> None:
        """Start the server; it goes on with what its directory says."""
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.directory,
            "save": "",
            "appendonly": "no",
            "cluster-enabled": "yes",
            "cluster-port": self.bus,
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            "enable-debug-command": "yes",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self.client.close()
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(TIMEOUT_S)
            self.process = None

    def ask(self, *argv: object) -> object:
        """One CLUSTER command; its reply."""
        return self.client.execute_command("CLUSTER " + str(argv[0]), *argv[1:])

    def answers(self) -> bool:
        return self._quietly(lambda: bool(self.client.ping()))

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def id(self) -> str:
        return str(self.ask("MYID"))

    def is_primary(self) -> bool:
        return self._quietly(lambda: bool(self.client.info("replication")["role"] == "master"))

    def is_in_step(self) -> bool:
        """Whether a replica has all that its primary wrote before; a primary always has."""
        told = self.client.info("replication")
        return told["role"] == "master" or (told["master_link_status"] == "up" and not told["master_sync_in_progress"])

    def sees(self, members: int) -> bool:
        """Whether this node calls the cluster whole: every slot served, every member known."""

        def whole() -> bool:
            told = self.ask("INFO")
            assert isinstance(told, dict)
            served = told["cluster_state"] == "ok" and told["cluster_slots_ok"] == "16384"
            return served and int(told["cluster_known_nodes"]) == members and self.is_in_step()

        return self._quietly(whole)

    @staticmethod
    def _quietly(asked: Callable[[], bool]) -> bool:
        try:
            return asked()
        except redis.RedisError:  # it starts, loads or has gone
            return False


class Cluster:
    """The cluster and what tests do to it; `index` is the number of a shard."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._moved: dict[int, int] = {}  # slot to the shard it came from

    @property
    def ports(self) -> list[int]:
        """The ports of nodes 0 to 2, which start as primaries, and of the replica."""
        return [node.port for node in self.nodes]

    @property
    def url(self) -> str:
        """Where a client can start: some node that is alive."""
        return f"redis+cluster://127.0.0.1:{self._alive()[0].port}"

    def client(self, **options: object) -> redis.RedisCluster:
        """A new cluster client; the caller closes it."""
        return redis.RedisCluster(host="127.0.0.1", port=self._alive()[0].port, **options)

    def primary(self, index: int) -> Node:
        """The node that serves a shard now."""
        (node,) = self._primaries(index)
        return node

    def key_on(self, index: int, prefix: str = "stream") -> str:
        """A name without a hash tag whose slot belongs to this shard at the start."""
        first, last = SLOTS[index]
        names = (f"{prefix}-{number}" for number in itertools.count())
        return next(name for name in names if first <= slot_of(name) <= last)

    def kill_primary(self, index: int) -> Node:
        """SIGKILL the primary of a shard; shard 0 has a replica that takes over, see `wait_for_primary`."""
        node = self.primary(index)
        self._set_node_timeout(FAILOVER_TIMEOUT_MS)
        node.kill()
        return node

    def wait_for_primary(self, index: int = 0) -> Node:
        """Wait until a shard is served again and all live nodes say so; the primary."""
        wait(lambda: len(self._primaries(index)) == 1, "one primary")
        wait(self._is_whole, "agreement on the new primary")
        self._set_node_timeout(NODE_TIMEOUT_MS)
        return self.primary(index)

    def wait_until_whole(self) -> None:
        """Wait until every node says that the cluster is up and that all slots are served."""
        wait(self._is_whole, "the cluster to be whole")

    def failover(self) -> Node:
        """Let primary and replica of shard 0 change places without losing anything; the new primary."""
        self.wait_for_replica()
        replica = next(node for node in self._members(0) if not node.is_primary())
        replica.ask("FAILOVER")
        wait(replica.is_primary, "the failover")  # for a moment the old primary believes that it still is
        return self.wait_for_primary(0)

    def wait_for_replica(self) -> None:
        """Wait until the replica of shard 0 has all that its primary has: what a kill may then not lose."""

        def is_equal() -> bool:
            told = [node.client.info("replication")["master_repl_offset"] for node in self._members(0)]
            return len(set(told)) == 1 and all(node.is_in_step() for node in self._members(0))

        wait(is_equal, "the replica")

    def move_slot(self, slot: int, to: int) -> None:
        """Give a slot with its keys to another shard, in the steps that a live resharding takes."""
        source, target = self.primary(self.shard_of(slot)), self.primary(to)
        if source is target:
            return
        self._moved.setdefault(slot, self.shard_of(slot))
        target.ask("SETSLOT", slot, "IMPORTING", source.id())
        source.ask("SETSLOT", slot, "MIGRATING", target.id())
        while keys := source.ask("GETKEYSINSLOT", slot, KEYS_A_MOVE):
            assert isinstance(keys, list)
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        others = [node for node in self._alive() if node not in (source, target) and node.is_primary()]
        for node in (target, source, *others):  # the new owner first: no moment without one
            node.ask("SETSLOT", slot, "NODE", target.id())
        wait(lambda: all(self._owner_port(node, slot) == target.port for node in self._alive()), "the moved slot")

    def shard_of(self, slot: int) -> int:
        """The shard that serves a slot now."""
        port = self._owner_port(self._alive()[0], slot)
        return next(index for index in range(len(SLOTS)) if port in [node.port for node in self._members(index)])

    def revive(self) -> None:
        """Start what was killed; wait until the cluster is whole."""
        for node in self.nodes:
            if node.has_ended():
                node.start()
        self.wait_until_whole()
        self._set_node_timeout(NODE_TIMEOUT_MS)

    def reset(self) -> None:
        """The cluster as it was at the start, with nothing in it (which node of shard 0 leads may differ)."""
        self.revive()
        for index in range(len(SLOTS)):
            self.primary(index).client.flushall()
        for slot, home in list(self._moved.items()):
            self.move_slot(slot, home)
        self._moved.clear()

    def _set_node_timeout(self, timeout_ms: int) -> None:
        for node in self._alive():
            node.client.config_set("cluster-node-timeout", timeout_ms)

    def _members(self, index: int) -> list[Node]:
        return [self.nodes[0], self.nodes[REPLICA]] if index == 0 else [self.nodes[index]]

    def _primaries(self, index: int) -> list[Node]:
        """The live nodes that call themselves a shard's primary."""
        return [node for node in self._members(index) if not node.has_ended() and node.is_primary()]

    def _is_whole(self) -> bool:
        """Whether all live nodes see all slots served, and every shard has one primary."""
        is_seen = all(node.sees(len(self.nodes)) for node in self._alive())
        return is_seen and all(len(self._primaries(index)) == 1 for index in range(len(SLOTS)))

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes if not node.has_ended()]

    @staticmethod
    def _owner_port(node: Node, slot: int) -> int:
        ranges = node.client.execute_command("CLUSTER", "SLOTS")  # two words: redis-py leaves the reply as it came
        return next(int(primary[1]) for first, last, primary, *_ in ranges if first <= slot <= last)

    def _join(self) -> None:
        """Make one cluster of nodes that know nothing of each other."""
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            node.ask("SET-CONFIG-EPOCH", number + 1)  # else they would quarrel about it first
        for node, (low, high) in zip(self.nodes, SLOTS, strict=False):
            node.ask("ADDSLOTSRANGE", low, high)
        for one, other in itertools.combinations(self.nodes, 2):  # all pairs: gossip would take seconds
            one.ask("MEET", "127.0.0.1", other.port, other.bus)
        replica = self.nodes[REPLICA]
        wait(lambda: first.id() in str(replica.client.execute_command("CLUSTER NODES")), "the nodes to meet")
        replica.ask("REPLICATE", first.id())

    @classmethod
    @contextlib.contextmanager
    def running(cls, binary: Path) -> Iterator[Self]:
        """Start the nodes, join them, hand the cluster out, end the nodes."""
        with tempfile.TemporaryDirectory(prefix="millstream-cluster-") as place:
            for attempt in range(servers.ATTEMPTS):
                nodes = [Node(binary, _made(Path(place) / f"{attempt}-{number}")) for number in range(REPLICA + 1)]
                try:
                    if _start(nodes):
                        cluster = cls(nodes)
                        cluster._join()
                        cluster.wait_until_whole()
                        yield cluster
                        return
                finally:
                    for node in nodes:
                        node.kill()
            logs = [(node.directory / "log").read_text(errors="replace")[-500:] for node in nodes]
            raise RuntimeError(f"{binary} does not start: {logs}")


def slot_of(key: str) -> int:
    """The slot of a key."""
    return int(key_slot(key.encode()))


def wait(until: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Ask until it is so; a timeout names what did not come.

    The limit is a number of steps, so that a machine that stops everything for minutes uses up one of them.
    """
    for _ in range(round(timeout_s / STEP_S)):
        if until():
            return
        time.sleep(STEP_S)
    raise TimeoutError(f"waited {timeout_s} s for {what}")


def _start(nodes: list[Node]) -> bool:
    """Start all; False if one ended, as it does when somebody took its port."""
    for node in nodes:
        node.start()
    wait(lambda: all(node.answers() or node.has_ended() for node in nodes), "the nodes to start")
    return not any(node.has_ended() for node in nodes)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
