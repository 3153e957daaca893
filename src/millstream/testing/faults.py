"""What can go wrong at a call, and how often in a random run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from millstream.client.calls import Call
from millstream.delivery.steps import script

STEPS = ("settle", "renew", "recover", "reread", "promote", "reap", "audit", "requeue", "publish", "redrive")


class Fault(Enum):
    """What becomes of one call of one worker."""

    KILL_BEFORE = auto()  # the worker dies before it sends the call
    KILL_AFTER = auto()  # the server runs the call, and the worker dies before it reads the reply
    CUT = auto()  # the connection breaks before the server sees the call
    DROP_REPLY = auto()  # the server runs the call, and the connection breaks before the reply
    FREEZE = auto()  # the worker stops for a while before the call, and then sends it


@dataclass(frozen=True, slots=True)
class Seen:
    """A call that is about to be made."""

    worker: str
    name: str  # the step ("settle", "renew", …) or the command ("XREADGROUP", "EVAL")
    number: int  # of all calls of this worker, from 1; its later lives count on
    at_ms: int
    is_resend: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How likely each fault is at a call, and how long freezes and deaths last (in leases)."""

    kill: float = 0.01  # before or after the call
    drop_reply: float = 0.02
    cut: float = 0.02
    freeze: float = 0.005
    jump: float = 0.0005  # of the server's clock, either way
    frozen_leases: float = 3.0  # at most
    dead_leases: float = 2.0  # at most, until a new life
    jump_s: float = 90.0  # at most


def name_of(call: Call[Any]) -> str:
    """Return the name that people use for a call: of a step, or the command."""
    if call.script is not None:
        return next((name for name in STEPS if script(name) is call.script), "script")
    return str(call.argv[0])
