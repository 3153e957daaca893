"""Builds the engine's inner modules with mypyc when MILLSTREAM_COMPILE=1 is set; else the wheel is plain Python.

The compiled modules are the same typed source. Nothing needs them to run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = ("args", "ids", "entries", "pending", "groups", "stream", "entry_replies", "faults")
COMMANDS = ("append", "claim", "group", "read", "settle")


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
        shutil.copytree(Path(self.root) / "src" / "millstream", place / "millstream")
        package = Path("millstream") / "engine"
        sources = [package / f"{name}.py" for name in ENGINE]
        sources += [package / "commands" / f"{name}.py" for name in COMMANDS]
        compiler = [sys.executable, "-m", "mypyc", "--ignore-missing-imports"]
        subprocess.run([*compiler, *map(str, sources)], cwd=place, check=True)
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


def _is_wanted() -> bool:
    return os.environ.get("MILLSTREAM_COMPILE") == "1"
