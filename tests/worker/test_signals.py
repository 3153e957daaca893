"""SIGTERM and Ctrl-C end workers; a second one ends them at once; a program that handles signals itself keeps them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.worker.runtime.stop_signals import StopSignals

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE_S = 15  # half of the default shutdown_grace; a busy machine takes seconds to end a process


@contextmanager
def child(kind: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has said "begun"."""
    command = [sys.executable, "-m", "tests.worker.signal_child", kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["run", "arun"])
def test_a_second_signal_ends_at_once(kind: str, number: signal.Signals) -> None:
    with child(kind) as process:
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):  # the handler has its grace
            process.wait(1)
        began = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < AT_ONCE_S
        assert output == "ended\n", errors
        assert process.returncode == 0


@pytest.mark.parametrize("kind", ["consume", "aconsume"])
def test_sigterm_ends_consume_after_the_message_in_hand(kind: str) -> None:
    with child(kind) as process:
        process.terminate()
        output, errors = process.communicate(timeout=60)
        assert output == "handled\nended done=1 undelivered=1\n", errors
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_uvicorn_ends_with_one_signal_and_the_worker_with_it(number: signal.Signals) -> None:
    pytest.importorskip("uvicorn")
    with child("web") as process:
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert output == "worker ended\n", errors


def test_signals_that_the_program_handles_are_left_alone() -> None:
    seen: list[int] = []

    def handler(number: int, _: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with StopSignals(lambda _: None, None):
            assert signal.getsignal(signal.SIGTERM) == handler
        with StopSignals(lambda _: None, False):
            assert signal.getsignal(signal.SIGTERM) == handler
        with StopSignals(lambda _: None, True):
            assert signal.getsignal(signal.SIGTERM) != handler
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_of_asyncio_is_left_to_another_main_task() -> None:
    async def taken() -> bool:
        before = signal.getsignal(signal.SIGINT)
        with StopSignals(lambda _: None, None):
            return signal.getsignal(signal.SIGINT) != before

    async def main() -> tuple[bool, bool]:
        return await taken(), await asyncio.create_task(taken())

    assert asyncio.run(main()) == (True, False)


def test_two_workers_of_ours_both_hear_a_signal() -> None:
    heard: list[str] = []
    one = StopSignals(lambda _: heard.append("one"), True, (signal.SIGUSR1,))
    other = StopSignals(lambda _: heard.append("other"), None, (signal.SIGUSR1,))
    before = signal.getsignal(signal.SIGUSR1)
    with one, other:
        signal.raise_signal(signal.SIGUSR1)
        until = time.monotonic() + 10
        while len(heard) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert sorted(heard) == ["one", "other"]
    assert signal.getsignal(signal.SIGUSR1) == before
