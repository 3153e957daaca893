"""Builds the modules that all speed depends on with mypyc when MILLSTREAM_COMPILE=1 is set; else all is plain Python.

The compiled modules are the same typed source. Nothing needs them to run. `python hatch_build.py DIRECTORY` puts a
compiled package into a directory, without a wheel: for measurements.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # no wheel is built
    BuildHookInterface = object  # type: ignore[assignment,misc]

# Not compiled are classes that somebody refers to weakly (Session, Hub), and what inherits from Python's own types:
# those of a connection have a protocol's and a transport's methods without being one.
MODULES = {
    "engine": ("faults",),
    "engine/text": ("args",),
    "engine/streams": ("ids", "entries", "pending", "groups", "stream", "entry_replies"),
    "engine/commands/streams": ("append", "claim", "group", "read", "settle"),
    "persistence/aof": ("writer", "hot"),
    "server/batching": ("uniform", "hot_commands", "cross_connection"),
    "server/net": ("connection", "epoll"),
    "server/protocol": ("resp",),
    "server/core": ("stats",),
}


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds compiled modules to a wheel that asks for them."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy>=1.15", "setuptools>=75"] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_wanted() or self.target_name != "wheel":
            return
        place = Path(tempfile.mkdtemp(prefix="millstream-compile-"))
        self._place = place
        compile_into(place, Path(self.root) / "src" / "millstream")
        # an editable install runs from the source tree: the modules must lie there (git ignores them)
        target = Path(self.root) / "src"
        for built in [*place.glob("*.so"), *place.glob("millstream/**/*.so")]:
            relative = built.relative_to(place)
            if version == "editable":
                shutil.copy2(built, target / relative)
            else:
                build_data["force_include"][str(built)] = str(relative)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        place = getattr(self, "_place", None)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def compile_into(place: Path, source: Path) -> None:
    """Copy the package to a directory and compile the copy's hot modules there."""
    shutil.copytree(source, place / "millstream", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    sources = [f"millstream/{package}/{name}.py" for package, names in MODULES.items() for name in names]
    subprocess.run([sys.executable, "-m", "mypyc", "--ignore-missing-imports", *sources], cwd=place, check=True)


def _is_wanted() -> bool:
    return os.environ.get("MILLSTREAM_COMPILE") == "1"


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]), Path(__file__).parent / "src" / "millstream")
