"""How much unread output a client may have: `client-output-buffer-limit`, by the class of the client.

normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60
       │ │ └ seconds above the soft limit until the client is closed
       │ └── soft limit in bytes, 0 for none
       └──── hard limit in bytes, 0 for none: at this much the client is closed at once
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from millstream.engine.text.args import as_integer

DEFAULT_OUTPUT_LIMITS: Final = b"normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"

_CLASSES: Final = {b"normal": "normal", b"slave": "slave", b"replica": "slave", b"pubsub": "pubsub"}
_UNITS: Final = {b"": 1, b"b": 1, b"k": 1000, b"kb": 1024, b"m": 1000**2, b"mb": 1024**2, b"g": 1000**3, b"gb": 1024**3}
_MEMORY: Final = re.compile(rb"([0-9]+)([a-zA-Z]*)")


class OutputLimit(NamedTuple):
    """What one class of clients may leave unread."""

    hard: int  # bytes; 0: no limit
    soft: int  # bytes; 0: no limit
    soft_s: int  # how long the soft limit may be exceeded


@lru_cache(maxsize=8)
def read_output_limits(text: bytes) -> dict[str, OutputLimit]:
    """Limits by class; of several for a class the last counts. ValueError says in Redis's words what is wrong."""
    words = text.split()
    if not words or len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    limits: dict[str, OutputLimit] = {}
    for at in range(0, len(words), 4):
        name = _CLASSES.get(words[at].lower())
        if name is None:
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        hard, soft, soft_s = _bytes(words[at + 1]), _bytes(words[at + 2]), as_integer(words[at + 3])
        if hard is None or soft is None or soft_s is None or soft_s < 0:
            raise ValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.")
        limits[name] = OutputLimit(hard, soft, soft_s)
    return limits


def print_output_limits(limits: dict[str, OutputLimit]) -> bytes:
    """Format the limits as CONFIG GET does."""
    return b" ".join(
        b"%b %d %d %d" % (name.encode(), *limits[name]) for name in ("normal", "slave", "pubsub") if name in limits
    )


def _bytes(word: bytes) -> int | None:
    found = _MEMORY.fullmatch(word)
    unit = _UNITS.get(found[2].lower()) if found else None
    return int(found[1]) * unit if found and unit else None
