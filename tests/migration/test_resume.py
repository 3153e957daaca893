"""A move that is killed in the middle goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from millstream.errors import ConfigError
from millstream.migration import Endpoint, Move, Options
from millstream.migration.resume import Notes
from tests.migration.support import client_of, url_of
from tests.support.servers import RealServer

LONG = 40_000


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "millstream", "migrate", *arguments, "--json"], stdout=subprocess.PIPE
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if condition():
            return
        time.sleep(0.005)
    pytest.fail("the move has ended, or has not begun")


def fill(client: redis.Redis) -> None:
    """A long stream with a group that has read some, and other keys."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(LONG):
            pipe.xadd("long", {"n": number}, id=f"{number + 1}-0")
        for number in range(150):
            pipe.set(f"key:{number}", number)
        pipe.execute()
    client.xgroup_create("long", "g", "0")
    client.xreadgroup("g", "c", {"long": ">"}, count=3000)


def test_a_killed_move_goes_on(redis_server: RealServer, valkey_server: RealServer, tmp_path: Path) -> None:
    source, target = url_of(redis_server), url_of(valkey_server)
    reader, state = client_of(target), tmp_path / "state.json"
    fill(client_of(source))
    arguments = (source, target, "--by-entries", "--state", str(state))
    process = start(*arguments)
    try:
        wait_until(lambda: reader.xlen("long") > 2000, process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    there = reader.xlen("long")
    assert 2000 < there < LONG
    assert json.loads(state.read_text())["current"]["key"] == "long"
    second = start(*arguments)
    out, _ = second.communicate(timeout=60)
    facts = json.loads(out)
    assert second.returncode == 0
    assert (facts["ok"], facts["keys"], facts["problems"]) == (True, 151, [])
    assert facts["resumed_at"] == f"long after {there}-0"
    assert reader.xlen("long") == LONG
    assert reader.xpending("long", "g")["pending"] == 3000
    assert not state.exists()


def test_a_key_that_was_begun_is_begun_again(tmp_path: Path) -> None:
    source, target = Endpoint.connect("memory://begun-source"), Endpoint.connect("memory://begun-target")
    source.ask(b"s", "XADD", "s", "5-0", "f", "v")
    target.ask(b"s", "XADD", "s", "9-0", "half", "done")
    notes = Notes(tmp_path / "state", {})
    notes.begin([b"s"])
    again = Notes(tmp_path / "state", {})
    assert again.is_resumed
    assert Move(source, target, Options(by_entries=True), notes=again).run().problems == []
    assert target.ask(b"s", "XRANGE", "s", "-", "+") == [[b"5-0", [b"f", b"v"]]]


def test_the_current_stream_and_odd_names_survive_the_file(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "state", {"source": "a"})
    notes.begin([b"\xff\x00", b"done"])
    notes.finish(b"done", "whole")
    notes.begin_stream(b"\xff\x00")
    notes.at(b"7-1")
    notes.save()
    again = Notes(tmp_path / "state", {"source": "a"})
    assert (again.current, again.current_id) == (b"\xff\x00", b"7-1")
    assert (again.begun, again.done) == ({b"\xff\x00"}, {b"done": "whole"})


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', "7"])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)
    with pytest.raises(ConfigError, match="is not the state of a move"):
        Notes(tmp_path / "state", {})


def test_the_state_of_another_move_is_refused(tmp_path: Path) -> None:
    Notes(tmp_path / "state", {"source": "a"}).save()
    with pytest.raises(ConfigError, match="is about another move"):
        Notes(tmp_path / "state", {"source": "b"})
