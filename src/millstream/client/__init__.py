"""Reaching streams wherever they are: `connect(url)` gives the same words for every server and for none.

The names are imported when they are asked for: Spark's executors speak to servers through `spark.wire`, need no client
library, and would load it, and with it the whole broker, in every worker process.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client.aio import AsyncBackend, aconnect
    from millstream.client.backend import Backend, connect
    from millstream.client.calls import Call
    from millstream.client.capabilities import Capabilities

__all__ = ["AsyncBackend", "Backend", "Call", "Capabilities", "aconnect", "connect"]

_HOMES = {
    "AsyncBackend": "aio",
    "Backend": "backend",
    "Call": "calls",
    "Capabilities": "capabilities",
    "aconnect": "aio",
    "connect": "backend",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
