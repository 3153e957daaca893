"""Brokers in this process, by name: everybody who connects to `memory://jobs` meets the same streams.

A broker is opened by the first that asks for it and closed by the last that lets go of it. `memory://` without a name
is one place too: a producer and a worker of one program must meet. It ends with its last user, unless a broker was
put there by `share_broker`, which tests do to give it a clock of their own.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from millstream.broker import Broker, Fsync
from millstream.broker.direct import DirectClient
from millstream.client.urls import ServerUrl
from millstream.errors import ConfigError


@dataclass(slots=True)
class SharedBroker:
    """A broker and how many use it."""

    name: str
    broker: Broker
    users: int = 0

    def direct_client(self, make_error: Callable[[str], Exception]) -> DirectClient:
        """Return a client that runs commands without redis-py; `make_error` makes exceptions of error replies."""
        return DirectClient(self.broker, make_error)

    def close(self) -> None:
        """Let go of it; the last one closes it."""
        with _lock:
            self.users -= 1
            if self.users > 0 or _held.get(self.name) is not self:
                return
            del _held[self.name]
            self.broker.close()  # before anybody else may open the same directory


_lock = threading.Lock()
_held: dict[str, SharedBroker] = {}


@atexit.register
def close_all() -> None:
    """Close what a program left open at its end: what it has written is on the disk then."""
    with _lock:
        left = list(_held.values())
        _held.clear()
    for held in left:
        held.broker.close()


def hold_broker(place: ServerUrl) -> SharedBroker:
    """Return the broker at a URL, opened if no one has it yet; the caller closes what it gets."""
    name = f"{place.scheme}:{place.path if place.scheme == 'memory' else Path(place.path).resolve()}"
    with _lock:
        held = _held.get(name)
        if held is None:
            held = _held[name] = SharedBroker(name, _open(place))
        held.users += 1
        return held


def share_broker(name: str, broker: Broker) -> SharedBroker:
    """Put a broker of one's own at `memory://name`, to be closed by its maker."""
    with _lock:
        if f"memory:{name}" in _held:
            raise ConfigError(f"memory://{name} is in use")
        held = _held[f"memory:{name}"] = SharedBroker(f"memory:{name}", broker, users=1)
        return held


def _open(place: ServerUrl) -> Broker:
    if place.scheme == "memory":
        return Broker()
    policy = place.options.get("appendfsync", "everysec")
    if policy not in ("always", "everysec", "no"):
        raise ConfigError(f"appendfsync={policy!r}: always, everysec or no")
    return Broker(path=place.path, appendfsync=cast(Fsync, policy))
