"""A simulated worker's connection: passes calls on to the server, and injects the faults.

    run(call) ── the baton goes round ── which fault? ──▶ the broker in this process ──▶ reply, lost reply or death

A blocking read does not block: its fiber waits in the simulation's time, and asks again when something has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from millstream.client.backend import FIRST_PAUSE_S, RESENDS, Backend
from millstream.client.calls import Call, Word, command
from millstream.client.capabilities import Capabilities
from millstream.errors import ServerReplied, Unavailable
from millstream.testing.faults import Fault, name_of
from millstream.testing.fibers import Killed, Owner

if TYPE_CHECKING:
    from millstream.testing.fibers import Fibers

T = TypeVar("T")
POLL_S = 0.05  # between two asks, where it is not known when a pending entry falls due
REAL_POLL_S = 0.005
MOST_LOOKED_AT = 200


class Fate(Protocol):
    """What the simulation knows and decides about calls."""

    fibers: Fibers
    backend: Backend
    capabilities: Capabilities
    versions: Counter[bytes]  # grows whenever a call was done, by stream
    epoch: int  # grows whenever all connections break
    is_down: bool

    def see(self, worker: str, name: str, is_resend: bool) -> Fault | None: ...
    def freeze_for_a_while(self, owner: Owner) -> None: ...
    def changed(self, key: bytes) -> None: ...
    def died(self, owner: Owner) -> None: ...


@dataclass(eq=False)
class Blocked:
    """A read that the server holds back; it can be answered while its reader is frozen."""

    owner: Owner | None
    key: bytes
    ask: Callable[[], Any]
    reply: Any = None

    def try_now(self) -> bool:
        self.reply = self.reply or self.ask()
        return bool(self.reply)


class SimBackend:
    """What a consumer needs of a backend, in the hands of the simulation."""

    def __init__(self, fate: Fate, owner: Owner | None, name: str, waiting: list[Blocked]) -> None:
        self._fate = fate
        self._owner = owner
        self._name = name
        self._waiting = waiting

    @property
    def capabilities(self) -> Capabilities:
        return self._fate.capabilities

    @property
    def is_cluster(self) -> bool:
        return self._fate.backend.is_cluster

    def run(self, call: Call[T]) -> T:
        """Run a call as `Backend.run` does: send it again after a lost reply if the call can bear that."""
        for attempt in range(RESENDS):
            try:
                return self._once(call, attempt > 0)
            except Unavailable:
                if not call.can_resend or attempt == RESENDS - 1:
                    raise
            self._pause(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def execute(self, *words: Word, key: bytes | str | None = None) -> Any:
        """Run any command."""
        chosen = key if key is not None else words[1]
        return self.run(command(*words, key=chosen if isinstance(chosen, bytes) else str(chosen).encode()))

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _once(self, call: Call[T], is_resend: bool) -> T:
        fate = self._fate
        self._pause(0)  # other fibers may run before the call
        fault = fate.see(self._name, name_of(call), is_resend)
        if fault is Fault.FREEZE and self._owner is not None:
            fate.freeze_for_a_while(self._owner)
            self._pause(0)
        if fault is Fault.KILL_BEFORE:
            self._die()
        if fault is Fault.CUT or fate.is_down:
            raise Unavailable(f"{self._name}: the connection broke before the server had the call")
        # Where replies are lost, a step must bear to be sent twice; commands without a script have another way inside.
        reply = self._done(call if call.script is not None else replace(call, inside=None))
        if fault is Fault.KILL_AFTER:
            self._die()
        if fault is Fault.DROP_REPLY:
            raise Unavailable(f"{self._name}: the connection broke before the reply came")
        return reply

    def _done(self, call: Call[T]) -> T:
        if call.block_ms is not None and self._fate.fibers.current is not None:
            return self._blocking(call)
        try:
            return self._fate.backend.run(call)
        finally:
            for key in keys_of(call):
                self._fate.changed(key)

    def _blocking(self, call: Call[T]) -> T:
        fate, fibers = self._fate, self._fate.fibers
        quick: Call[T] = replace(call, argv=without_waiting(call.argv), block_ms=None, inside=None)
        read = Blocked(self._owner, call.key, lambda: fate.backend.run(quick))
        end, epoch = fibers.clock.now_ms() + (call.block_ms or 0), fate.epoch
        self._waiting.append(read)
        try:
            while not read.try_now() and fibers.clock.now_ms() < end:
                version = fate.versions[call.key]
                wait_s = min((end - fibers.clock.now_ms()) / 1000, self._until_due_s(call))
                fibers.park(wait_s, lambda before=version: fate.versions[call.key] != before or bool(read.reply))  # type: ignore[misc]
                if fate.epoch != epoch:
                    raise Unavailable(f"{self._name}: the connection broke while the read waited")
        finally:
            self._waiting.remove(read)
        if read.reply:
            fate.changed(call.key)
        result: T = read.reply or call.parse(None)
        return result

    def _until_due_s(self, call: Call[Any]) -> float:
        """Return the seconds until a waiting CLAIM read must be asked again, if nothing happens before."""
        if not self._fate.fibers.clock.is_virtual:
            return REAL_POLL_S
        if "CLAIM" not in call.argv:
            return 3600.0
        min_idle = int(call.argv[call.argv.index("CLAIM") + 1])
        try:
            rows = self._fate.backend.execute("XPENDING", call.key, call.argv[2], "-", "+", MOST_LOOKED_AT)
        except ServerReplied:  # the group is gone
            return POLL_S
        if len(rows) == MOST_LOOKED_AT:
            return POLL_S
        return max(1, min((min_idle - int(row[2]) for row in rows), default=3_600_000)) / 1000

    def _pause(self, seconds: float) -> None:
        if self._fate.fibers.current is not None:
            self._fate.fibers.park(seconds)

    def _die(self) -> None:
        if self._owner is None:
            raise AssertionError("a producer cannot be killed here: it is the test itself")
        self._fate.died(self._owner)
        raise Killed(self._name)


def without_waiting(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the command that answers at once."""
    if argv[0] == "BLPOP":
        return ("LPOP", argv[1])
    at = argv.index("BLOCK")
    return argv[:at] + argv[at + 2 :]


def keys_of(call: Call[Any]) -> set[bytes]:
    """Return all keys that a call may change: a step may append to other streams too."""
    if call.script is None:
        return {call.key}
    return {key for key in call.argv[3 : 3 + int(call.argv[2])] if isinstance(key, bytes)}
