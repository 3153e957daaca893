"""Child processes that never outlive the demo: they end when their standard input does, even if we are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

ENDS_S = 15.0


def on_leash() -> None:
    """For the child: end at once when the parent is gone."""

    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock, held by this thread, would not let the interpreter end
            pass
        os._exit(3)

    threading.Thread(target=watch, name="leash", daemon=True).start()


class Child:
    """A process of this package, in a session of its own: Ctrl-C is for the parent, which ends it properly."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = module.rpartition(".")[2]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait(ENDS_S)

    def end(self) -> None:
        """Let it finish what it has in hand."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                self.kill()
