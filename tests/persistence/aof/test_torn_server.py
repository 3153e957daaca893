"""A server process on a log whose end is torn: it starts, and what it shows is what a second start shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from millstream.persistence.aof.manifest import LogFile, Manifest
from tests.support.ours import Process
from tests.support.wire import pack

LIST = b"".join(pack([b"RPUSH", b"list", value]) for value in (b"a", b"b", b"c"))
TRANSACTION = pack([b"MULTI"]) + pack([b"RPUSH", b"list", b"d"]) + pack([b"EXEC"])
TEXT = pack([b"SET", b"resp", b"text\r\n" + LIST])


def put_log(directory: Path, data: bytes) -> None:
    """A directory whose log is this one increment."""
    logs = directory / "appendonlydir"
    logs.mkdir(parents=True)
    name = "appendonly.aof.1.incr.aof"
    (logs / name).write_bytes(data)
    (logs / "appendonly.aof.manifest").write_text(Manifest(incrs=(LogFile(name, 1),), incr_seq=1).to_text())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (LIST[:-2] + bytes(2), [b"a", b"b"]),
        (LIST[:-2] + bytes(500), [b"a", b"b"]),
        (LIST + TRANSACTION[:-2] + bytes(4096), [b"a", b"b", b"c"]),
        (LIST + TRANSACTION[:-1], [b"a", b"b", b"c"]),
        (LIST + TEXT[:-20], [b"a", b"b", b"c"]),
    ],
    ids=["line end", "line end and tail", "transaction", "transaction cut", "value with RESP text"],
)
def test_what_a_server_shows_after_a_torn_end_is_what_it_keeps(
    tmp_path: Path, data: bytes, expected: list[bytes]
) -> None:
    put_log(tmp_path / "data", data)
    port = None
    for _ in range(2):
        process = Process("--dir", "data", directory=tmp_path, port=port)
        try:
            process.await_start()
            port = process.port
            with redis.Redis(port=port) as client:
                assert client.lrange("list", 0, -1) == expected
                assert client.keys() == [b"list"]
                assert client.rpop("list") == expected[-1]
            expected = expected[:-1]
            assert process.end() == 0
            assert "Traceback" not in process.err
        finally:
            process.close()


def test_the_names_of_files_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    for setting in ("dbfilename", "appenddirname", "appendfilename"):
        for name in ("../x", "/x", "..", "."):
            process = Process(f"--{setting}", name, directory=tmp_path)
            try:
                assert process.process.wait(20) == 2
                assert f"{setting} can't be a path" in process.err
            finally:
                process.close()
            assert not (tmp_path.parent / "x").exists()
