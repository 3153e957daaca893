"""How a command ends, for scripts: the exit codes, and the errors that people are shown as one line."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; click, which reads the command line, ends with 2 on wrong use, too."""

    OK = 0
    FAILED = 1  # it was tried and did not work
    USAGE = 2  # wrong options, a setting that cannot be used: nothing was tried
    DAMAGED = 3  # a file is damaged


class Failure(Exception):
    """A command cannot go on: what people are told, and the exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code
