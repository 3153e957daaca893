"""The name under which a worker reads: who it is, and which of its lives this is.

    redis-consumer-<POD_NAME or POD_IP>-<incarnation>     in a cluster that names its pods
    <host>-<pid>-<boot id>-<incarnation>                  everywhere else
    <name of your choice>-<incarnation>                   if the settings give one

Without the last part a process that was restarted under its old name would look like the owner of entries that
nobody is working on any more.
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
    """A part of a name that no other life of a worker has."""
    return secrets.token_hex(4)


def boot_id() -> str:
    """Short for when this machine was started, so that a pid used again after that is another; empty if unknown."""
    try:
        return BOOT_ID.read_text().replace("-", "")[:8]
    except OSError:
        return ""


def consumer_name(given: str | None = None, environ: Mapping[str, str] = os.environ, life: str | None = None) -> str:
    """The consumer's name for one life of a worker."""
    return f"{given or _pod(environ) or _process()}-{life or incarnation()}"


def _pod(environ: Mapping[str, str]) -> str | None:
    name = environ.get("POD_NAME") or environ.get("POD_IP")
    return f"{POD_PREFIX}{name}" if name else None


def _process() -> str:
    parts = (socket.gethostname(), str(os.getpid()), boot_id())
    return "-".join(part for part in parts if part)
