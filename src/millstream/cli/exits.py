"""How a command ends: the exit codes, and the error that is shown as one line."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILED = 1  # it was tried and failed
    USAGE = 2  # wrong options, a missing file, a setting that cannot be used: nothing was tried
    DAMAGED = 3  # a file is damaged
    INTERRUPTED = 130  # Ctrl-C, as shells count it


class Failure(Exception):
    """A command cannot go on: the message for the user, and the exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code
