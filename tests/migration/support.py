"""A source to move: a stream with all that a stream can have, and one key of each plain type."""

from __future__ import annotations

from typing import Any

import redis

from millstream.migration import Endpoint
from millstream.migration.place import pairs
from tests.support.servers import RealServer


def url_of(server: RealServer) -> str:
    return f"redis://127.0.0.1:{server.port}"


def client_of(url: str) -> redis.Redis:
    """A client of an emptied server."""
    client = redis.Redis.from_url(url)
    client.flushall()
    return client


def fill(client: Any, *, is_new: bool = True) -> None:
    """Make the keys; a server that is not new has no XNACK and no idempotent production."""
    for number in range(1, 9):
        client.execute_command("XADD", "orders", f"{number}-0", "n", number, "n", "x" * number)
    client.xgroup_create("orders", "billing", "0")
    client.xgroup_create("orders", "late", "$")
    client.xgroup_createconsumer("orders", "billing", "idle")
    client.xreadgroup("billing", "anna", {"orders": ">"}, count=3)
    client.xreadgroup("billing", "bert", {"orders": ">"}, count=4)
    client.execute_command("XCLAIM", "orders", "billing", "anna", 0, "1-0", "TIME", 1700000000000, "RETRYCOUNT", 7)
    if is_new:
        client.execute_command("XNACK", "orders", "billing", "FAIL", "IDS", 2, "6-0", "4-0")
        client.execute_command("XNACK", "orders", "billing", "FATAL", "IDS", 1, "5-0")
        client.execute_command("XADD", "orders", "IDMP", "shop", "r1", "*", "n", "last")
        client.execute_command("XCFGSET", "orders", "IDMP-MAXSIZE", 50)
        client.execute_command("XADD", "orders", "IDMP", "shop", "r2", "*", "n", "last")
    client.xgroup_create("empty", "g", "0", mkstream=True)
    client.set("text", b"\x00\xff", px=1_000_000)
    client.hset("hash", mapping={"a": "1", "b": "2"})
    client.rpush("list", *range(700))
    client.sadd("set", *range(700))
    client.zadd("zset", {str(number): number / 4 for number in range(700)})


def state_of(url: str, key: str = "orders") -> dict[str, Any]:
    """What XINFO STREAM FULL says, without what depends on memory layouts and on when a consumer was seen."""
    place = Endpoint.connect(url)
    found = pairs(place.ask(key.encode(), "XINFO", "STREAM", key, "FULL", "COUNT", 0))
    found = {name: value for name, value in found.items() if not name.startswith("radix")}
    found["groups"] = [pairs(group) for group in found["groups"]]
    for group in found["groups"]:
        consumers = [pairs(consumer) for consumer in group["consumers"]]
        group["consumers"] = {consumer["name"]: consumer["pending"] for consumer in consumers}
    place.close()
    return found


def take_times(state: dict[str, Any]) -> list[int]:
    """Take the times of deliveries out of what `state_of` found. A move by entries knows them to a moment only."""
    times = []
    for group in state["groups"]:
        rows = [*group["pending"], *(row for rows in group["consumers"].values() for row in rows)]
        for row in rows:
            times.append(row[-2])
            row[-2] = None
    return times


def claim_order(url: str, group: str = "billing") -> list[bytes]:
    """The ids in the order in which a CLAIM read hands them out; takes them."""
    client = redis.Redis.from_url(url, protocol=2)
    client.response_callbacks.clear()
    words = ("XREADGROUP", "GROUP", group, "taker", "CLAIM", 0, "STREAMS", "orders", ">")
    reply: Any = client.execute_command(*words)
    return [entry[0] for entry in reply[0][1]]
