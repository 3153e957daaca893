"""Versions: of this package, and of the Redis server whose behaviour it follows."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0.dev0"  # the only place; pyproject.toml reads it from here
REDIS_VERSION: Final = b"8.10.0"  # clients choose their features by it
