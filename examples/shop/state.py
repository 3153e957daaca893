"""What a run leaves behind for the next one: a directory that is ours, and how far the run has come."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.errors import ConfigError

FILE = "demo.json"


@dataclass(slots=True, kw_only=True)
class State:
    """How far a run has come."""

    size: int
    seed: int
    is_killed: bool = False  # a worker was killed
    redelivered: int = 0  # what that worker had in hand
    is_fixed: bool = False  # the product table is complete
    is_finished: bool = False
    seconds: float = 0.0  # that earlier parts of it took

    def write(self, directory: Path) -> None:
        draft = directory / f"{FILE}.new"
        draft.write_text(json.dumps(asdict(self)))
        os.replace(draft, directory / FILE)


def opened(directory: Path, size: int, seed: int) -> tuple[State, bool]:
    """The state of a run that was stopped, to go on with; or that of a new one in an empty directory."""
    file = directory / FILE
    if file.exists():
        found = State(**json.loads(file.read_text()))
        if (found.size, found.seed, found.is_finished) == (size, seed, False):
            return found, True
        shutil.rmtree(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty and not from here: name another directory with --dir")
    directory.mkdir(parents=True, exist_ok=True)
    state = State(size=size, seed=seed)
    state.write(directory)
    return state, False
