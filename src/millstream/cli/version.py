"""`millstream version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from millstream.cli import common, output
from millstream.version import REDIS_VERSION, VERSION


def facts() -> dict[str, str | None]:
    """Return the versions of this installation; None: not installed."""
    return {
        "millstream": VERSION,
        "redis_version": REDIS_VERSION.decode(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": _installed("uvloop"),
        "lupa": _installed("lupa"),
        "platform": platform.platform(),
    }


def version(as_json: common.AsJson = False) -> None:
    """Show the versions of Millstream, of the Redis that it follows, and of Python."""
    found = facts()
    if as_json:
        output.say_json(found)
        return
    output.say(f"millstream {found['millstream']} (speaks as Redis {found['redis_version']})")
    output.say(f"{found['python']} on {found['platform']}")
    output.say(f"uvloop {found['uvloop'] or 'not installed'}, lupa {found['lupa'] or 'not installed'}")


def _installed(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None
