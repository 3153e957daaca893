"""What somebody types who does not know us yet: wrong words are named, nothing is overwritten unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

import millstream
from millstream import Stream
from millstream.cli.main import main
from tests.support import servers


@pytest.fixture
def client(valkey_server: servers.RealServer, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """An empty Valkey that MILLSTREAM_URL names; there is nobody to ask."""
    monkeypatch.setenv("MILLSTREAM_URL", f"redis://127.0.0.1:{valkey_server.port}")
    monkeypatch.setattr(os, "isatty", lambda _: False)
    client = redis.Redis(port=valkey_server.port)
    client.flushall()
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    return client


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"millstream {millstream.__version__} (speaks as Redis 8.10.0)\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tail", "nope"), "there is no stream 'nope'; the server has orders"),
        (("tail", "orders", "-n", "0"), "--count"),
        (("tail", "orders", "--from", "monday"), "--from: 'monday' is not an entry id"),
        (("pending", "orders", "--limit", "0"), "--limit"),
        (("pending", "orders", "--idle", "-1"), "--idle"),
        (("top", "--every", "0"), "--every"),
        (("publish", "orders", "--fields"), "--fields: give at least one NAME=VALUE"),
        (("publish", "orders", "{}", "--delay", "-1"), "delay: must be 0 seconds or more"),
        (("dead", "ls", "nope"), "there is no stream 'nope'"),
        (("dead", "redrive", "nope", "--yes"), "there is no stream 'nope'"),
        (("dead", "ls", "orders", "--reason", "late"), "'late' is not one of retries, rejected"),
        (("dead", "show", "orders", "first"), "'first' is not an entry id"),
        (("dead", "discard", "orders", "--id", "first"), "--id: 'first' is not an entry id"),
        (("bench", "--entries", "0"), "--entries"),
        (("streams", "--url", "http://localhost"), "is not the URL of a server"),
        (("audit",), "which stream?"),
    ],
)
def test_what_cannot_be_meant_is_named(
    client: redis.Redis, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    client.xadd("orders", {"data": "1"})
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err


def test_a_server_that_is_away_is_named_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "streams", "--url", f"redis://127.0.0.1:{servers.free_port()}")
    assert code == 1
    assert "millstream serve" in err
    assert "MILLSTREAM_URL" in err


def test_nothing_to_redrive_is_no_dry_run(client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    client.xadd("orders", {"data": "1"})
    assert json.loads(run(capsys, "dead", "redrive", "orders", "--json")[1]) == {
        "matched": 0,
        "done": 0,
        "gone": 0,
        "dry_run": False,
    }


def test_files_and_keys_are_overwritten_only_when_asked(
    client: redis.Redis, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "all.rdb")
    client.xadd("orders", {"n": 1})
    told = json.loads(run(capsys, "export", file, "--json")[1])  # from where MILLSTREAM_URL says
    assert (told["keys"], told["entries"], told["ok"]) == (1, 1, True)
    size = os.path.getsize(file)
    code, _, err = run(capsys, "export", file)
    assert (code, "overwrite" in err, os.path.getsize(file)) == (2, True, size)
    assert run(capsys, "export", file, "--yes")[0] == 0
    client.xadd("orders", {"n": 2})
    assert "would be replaced" in run(capsys, "import", file, "--replace", "--dry-run")[1]
    code, _, err = run(capsys, "import", file, "--replace")
    assert (code, "Overwrite 1 key on" in err, client.xlen("orders")) == (2, True, 2)
    assert run(capsys, "import", file, "--replace", "--yes")[0] == 0
    assert client.xlen("orders") == 1


def test_a_move_asks_before_it_overwrites(
    client: redis.Redis, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where it notes what is done
    source, target = f"memory://{tmp_path.name}", os.environ["MILLSTREAM_URL"]
    client.set("k", "there")
    assert run(capsys, "migrate", target, source, "--json")[0] == 0
    client.set("k", "newer")
    code, _, err = run(capsys, "migrate", source, target, "--replace")
    assert (code, "Overwrite 1 key on the target (k)" in err, client.get("k")) == (2, True, b"newer")
    assert run(capsys, "migrate", source, target, "--replace", "--yes")[0] == 0
    assert client.get("k") == b"there"


def test_the_bench_measures_and_leaves_nothing_behind(client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench", "--entries", "200", "--json")
    assert code == 0, err
    lines = json.loads(out)["lines"]
    assert [line["count"] for line in lines] == [500, 10, 200, 210]
    assert all(line["per_second"] > 0 and line["p99_ms"] >= line["median_ms"] for line in lines)
    assert client.keys("*") == []


def test_the_doctor_sees_what_endangers_streams(client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    url = os.environ["MILLSTREAM_URL"]
    with Stream[Any]("orders", url, group="billing") as orders:
        orders.publish_many([{"n": n} for n in range(3)])
        for message in orders.consume(wait=0.1):
            message.ack()
        client.xgroup_create("orders", "by-hand", "0")
        orders.publish({"n": 4})
        ((_, rows),) = client.xreadgroup("billing", "somebody", {"orders": ">"})
        client.xack("orders", "billing", rows[0][0])
    client.config_set("maxmemory-policy", "allkeys-lru")  # without a limit: it would evict the stream at once
    code, out, _ = run(capsys, "doctor")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    _, full, _ = run(capsys, "doctor")
    client.config_set("maxmemory", 0)
    assert code == 1
    assert "maxmemory-policy allkeys-lru may evict whole streams" in out
    assert "% of maxmemory is used" in full
    assert "appendonly is off" in out
    assert "millstream audit orders --group billing" in out
    assert "group by-hand of orders" in out


def test_top_shows_a_stream_without_a_group(client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    client.xadd("orders", {"n": 1})
    _, out, _ = run(capsys, "top", "--rounds", "1")
    assert out.splitlines()[-1].split("\t")[1:3] == ["orders", "-"]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("how", ["import", "command"])
def test_ctrl_c_while_the_program_is_starting_prints_no_traceback(tmp_path: Path, how: str) -> None:
    interrupts = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(interrupts)  # found before the real one
    words = ["-m", "millstream"] if how == "command" else ["-c", "from millstream.__main__ import main; exit(main())"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    ended = subprocess.run(
        [sys.executable, *words, "version"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
