"""`millstream version`, and `--version`."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

import millstream
from millstream.version import REDIS_VERSION


def facts() -> dict[str, str | None]:
    """What this installation consists of; None: not installed."""
    return {
        "millstream": millstream.__version__,
        "redis_version": REDIS_VERSION.decode(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": _installed("uvloop"),
        "lupa": _installed("lupa"),
        "platform": platform.platform(),
    }


def version(*, as_json: bool) -> None:
    """Print the facts."""
    found = facts()
    if as_json:
        print(json.dumps(found))
        return
    print(f"millstream {found['millstream']} (speaks as Redis {found['redis_version']})")
    print(f"{found['python']} on {found['platform']}")
    print(f"uvloop {found['uvloop'] or 'not installed'}, lupa {found['lupa'] or 'not installed'}")


def asked(is_asked: bool) -> None:
    """`millstream --version`: the first line, and the end."""
    if is_asked:
        found = facts()
        print(f"millstream {found['millstream']} (speaks as Redis {found['redis_version']})")
        raise typer.Exit


def _installed(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None
