"""The consumer name of a worker: its identity and its incarnation.

    redis-consumer-<POD_NAME or POD_IP>-<incarnation>     in a cluster that names its pods
    <host>-<pid>-<boot id>-<incarnation>                  everywhere else
    <name of your choice>-<incarnation>                   if the settings give one

Without the incarnation a process that restarts under its old name would look like the owner of entries that its
predecessor has left behind.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

POD_PREFIX: Final = "redis-consumer-"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def incarnation() -> str:
    """Return a part of a name that no other incarnation of a worker has."""
    return secrets.token_hex(4)


def boot_id() -> str:
    """Return a short text for the boot of this machine, which tells reused pids apart; empty if unknown."""
    try:
        return BOOT_ID.read_text().replace("-", "")[:8]
    except OSError:
        return ""


def consumer_name(given: str | None = None, environ: Mapping[str, str] = os.environ, life: str | None = None) -> str:
    """Return the consumer name for one incarnation of a worker."""
    return f"{given or _pod(environ) or _process()}-{life or incarnation()}"


def _pod(environ: Mapping[str, str]) -> str | None:
    name = environ.get("POD_NAME") or environ.get("POD_IP")
    return f"{POD_PREFIX}{name}" if name else None


def _process() -> str:
    parts = (socket.gethostname(), str(os.getpid()), boot_id())
    return "-".join(part for part in parts if part)
