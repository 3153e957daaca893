"""What we say we are."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

REDIS_VERSION: Final = b"8.10.0"  # what clients switch their features by


def millstream_version() -> str:
    """The version of this package, as installed."""
    try:
        return version("millstream")
    except PackageNotFoundError:
        return "0.0.0"
