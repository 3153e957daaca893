"""Single keys of a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Keyboard:
    """Reads keys from standard input while it is open; reads nothing if that is not a terminal."""

    def __enter__(self) -> Keyboard:
        self._file = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] | None = None
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys for at most this long. Returns those that were pressed; an arrow is one key."""
        if self._file is None:
            time.sleep(seconds)
            return []
        if not select.select([self._file], [], [], seconds)[0]:
            return []
        data = os.read(self._file, 1024)
        if not data:  # the terminal has gone
            self._file = None
        return _KEY.findall(data.decode("utf-8", "ignore"))
