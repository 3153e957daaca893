"""A peer in a process of its own, with the collector as a user has it. What this process holds costs it nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Elsewhere:
    """Makes an object in another process and runs its `round` there."""

    def __init__(self, make: Callable[..., Any], *args: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()  # it is ready

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def round(self) -> Any:
        """Run a round there. Returns what it returns; raises EOFError if the process has ended."""
        self._pipe.send(None)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)


def _serve(pipe: Connection, make: Callable[..., Any], args: tuple[object, ...]) -> None:
    peer = make(*args)
    pipe.send(None)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(peer.round())
