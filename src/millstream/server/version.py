"""What we say we are."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

REDIS_VERSION: Final = b"8.10.0"  # what clients switch their features by


@cache
def millstream_version() -> str:
    """The version of this package, as installed, or as the tree says that it runs from."""
    try:
        return version("millstream")
    except PackageNotFoundError:
        return _version_of_tree()


def _version_of_tree() -> str:
    project = Path(__file__).parents[3] / "pyproject.toml"
    try:
        with project.open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "0.0.0"
