"""Names, payloads, errors and arguments that are made to break things, through every command, on a real server.

Expected of each: no traceback, no control sequence from data, no broken line, and a documented exit code; on a terminal
and in a pipe.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import Stream
from millstream.cli.main import COMMANDS, load
from tests.support import servers

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e[/red][bold]x\r\nERROR forged\t\x7f"  # no NUL: an argument cannot hold one
NAMES = (
    "weird[/x]",
    "[/]",
    "[link=file:///etc/passwd]x[/link]",
    "esc" + EVIL,
    b"bytes\xff\xfe\x80".decode("utf-8", "surrogateescape"),
    "{br[ace",
    "sp ace '\"$(touch x)%s\\x1b",
    "*?[a-",
    "long" * 100,
)
CHILD = """
import json, sys
from millstream.cli.main import main

for number, words in enumerate(json.load(open(sys.argv[1]))):
    code = main(words)
    sys.stdout.flush(); sys.stderr.flush()
    print(f"@@{number}@@{int(code)}@@", flush=True)
"""


def leaves() -> set[str]:
    """All commands of the program, `dead ls` among them."""
    found = set()
    for name in COMMANDS:
        inner = getattr(load(name), "commands", None)
        found |= {name} if inner is None else {f"{name} {each}" for each in inner}
    return found


def cases(url: str, letters: dict[str, str], directory: Path) -> dict[str, list[tuple[list[str], set[int]]]]:
    """Command lines for every command, with the exit codes that are right for them."""
    rdb, away = str(directory / "all.rdb"), f"redis://127.0.0.1:{servers.free_port()}"
    found: dict[str, list[tuple[list[str], set[int]]]] = {
        "serve": [(["serve", "--port", EVIL], {2}), (["serve", "--" + EVIL, "1"], {2}), (["serve", NAMES[3]], {2})],
        "worker": [(["worker", name], {2}) for name in (EVIL, f"{EVIL}:x", "json:[/]", ":", "a:")],
        "pipeline run": [(["pipeline", "run", name], {2}) for name in (EVIL, f"{EVIL}:x", "json:[/]", "no[/].toml")],
        "pipeline init": [(["pipeline", "init", name], {2}) for name in (EVIL, "")],
        "streams": [(["streams"], {0}), (["streams", "--json"], {0}), (["streams", EVIL], {0})],
        "groups": [(["groups"], {0}), (["groups", "--json"], {0}), (["groups", EVIL], {2}), (["groups", ""], {2})],
        "holds": [(["holds"], {0}), (["holds", "--json"], {0}), (["holds", EVIL, "--release", EVIL], {2})],
        "doctor": [(["doctor"], {0, 1}), (["doctor", "--json"], {0, 1}), (["doctor", "--url", away], {1})],
        "top": [
            (["top", "--rounds", "2", "--every", "0.01"], {0}),
            (["top", "--rounds", "1", "--json"], {0}),
            (["top", "--sort", EVIL], {2}),
        ],
        "export": [
            (["export", rdb], {0}),
            (["export", rdb, "--yes", "--json"], {0}),
            (["export", "x", "--for", EVIL], {2}),
            (["export", "", "--yes"], {2}),
            (["export", "x", "--dir", EVIL], {2}),
        ],
        "import": [
            (["import", rdb, "--dry-run"], {1}),
            (["import", rdb, "--json"], {1}),
            (["import", EVIL], {2}),
            (["import", str(directory)], {2}),
        ],
        "migrate": [
            (["migrate", url, "memory://hostile", "--state", str(directory / "state")], {0}),
            (["migrate", url, url], {2}),
            (["migrate", EVIL, EVIL], {2}),
            (["migrate", url, away], {1}),
        ],
        "check": [(["check", rdb], {0}), (["check", rdb, "--json"], {0})],
        "bench": [
            (["bench", "--entries", "100", "--url", "memory://"], {0}),
            (["bench", "--entries", "100", "--url", EVIL], {2}),
        ],
        "version": [(["version"], {0}), (["version", EVIL], {2}), (["version", "--json"], {0})],
        "publish": [
            (["publish", NAMES[0], EVIL], {2}),
            (["publish", "", "1"], {2}),
            (["publish", "x", "NaN"], {2}),
            (["publish", "x", "[" * 100_000], {2}),
        ],
        "tail": [
            (["tail", "plain-key"], {2}),
            (["tail", ""], {2}),
            (["tail", NAMES[0], "-n", "9" * 30], {2}),
            (["tail", NAMES[0], "-n", "-1"], {2}),
            (["tail", NAMES[0], "--from", "9" * 25], {2}),
        ],
        "pending": [
            (["pending", "plain-key"], {2}),
            (["pending", NAMES[0], "--idle", "nan"], {2}),
            (["pending", NAMES[0], "--group", EVIL], {2}),
            (["pending", NAMES[0], "--consumer", NAMES[4]], {0}),
        ],
        "audit": [(["audit", "plain-key"], {2}), (["audit", EVIL], {2}), (["audit"], {2})],
        "dead ls": [
            (["dead", "ls", "plain-key"], {2}),
            (["dead", "ls", ""], {2}),
            (["dead", "ls", NAMES[0], "--reason", EVIL], {2}),
            (["dead", "ls", NAMES[0], "--since", EVIL], {2}),
        ],
        "dead show": [(["dead", "show", NAMES[0], EVIL], {2}), (["dead", "show", NAMES[0], "1-1"], {1})],
        "dead redrive": [
            (["dead", "redrive", NAMES[0], "--rate", "nan", "--yes"], {2}),
            (["dead", "redrive", NAMES[3]], {2}),
            (["dead", "redrive", NAMES[0], "--error", EVIL, "--dry-run"], {0}),
        ],
        "dead discard": [
            (["dead", "discard", NAMES[0], "--id", EVIL, "--yes"], {2}),
            (["dead", "discard", NAMES[3]], {2}),
        ],
    }
    for name in NAMES:
        found["tail"] += [(["tail", name], {0}), (["tail", name, "--json"], {0})]
        found["groups"].append((["groups", name], {0}))
        found["pending"] += [(["pending", name], {0}), (["pending", name, "--json"], {0})]
        found["dead ls"] += [(["dead", "ls", name], {0}), (["dead", "ls", name, "--json"], {0})]
        found["dead show"] += [
            (["dead", "show", name, letters[name]], {0}),
            (["dead", "show", name, letters[name], "--json"], {0}),
        ]
        found["audit"].append((["audit", name], {0, 1}))
        found["publish"] += [
            (["publish", name, json.dumps(EVIL)], {0}),
            (["publish", name, "--fields", f"{name}={name}"], {0, 2}),
        ]
    for name in NAMES[:3]:
        found["dead redrive"].append((["dead", "redrive", name, "--yes"], {0}))
        found["dead discard"].append((["dead", "discard", name, "--yes"], {0}))
    return found


@pytest.fixture
def url(valkey_server: servers.RealServer, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    monkeypatch.setenv("MILLSTREAM_URL", url)
    return url


@pytest.fixture
def letters(url: str) -> dict[str, str]:
    """Streams, groups, consumers, payloads and errors of that kind on the server; the id of a dead letter of each."""
    client = redis.Redis.from_url(url)
    client.flushall()
    client.set("plain-key", EVIL)
    found = {}
    for name in NAMES:
        with Stream[Any](name, url, group=name) as stream:
            stream.publish_many([EVIL + "\x00", {EVIL: EVIL}, 3])
            for message in stream.consume(ahead=3, wait=0.05):
                message.reject(EVIL)
            found[name] = next(stream.dead.list()).id
        key = name.encode("utf-8", "surrogateescape")
        client.xadd(key, {EVIL: EVIL, b"\xff": b"\xfe"})
        client.xreadgroup(key, key, {key: ">"}, count=1)
    return found


def run_in_pipe(words: list[str], cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout.decode()


def run_on_terminal(words: list[str], cwd: Path) -> str:
    """Run a program with a terminal as standard output and error, and nothing to read."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b"".join(read_all(ours))
        assert process.wait(60) == 0, text[-2000:]
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def read_all(file: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(file, 1 << 16)
        except OSError:  # EIO: the other side of the terminal is closed
            return
        if not data:
            return
        yield data


def test_every_command_is_tried() -> None:
    assert set(cases("", dict.fromkeys(NAMES, ""), Path())) == leaves()


@pytest.mark.parametrize("way", [run_in_pipe, run_on_terminal], ids=["pipe", "terminal"])
def test_no_command_is_broken_by_data(
    way: Any, url: str, letters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("TERM", "xterm-256color")
    tried = [case for each in cases(url, letters, tmp_path).values() for case in each]
    (tmp_path / "words.json").write_text(json.dumps([words for words, _ in tried]))
    text = way([sys.executable, "-c", CHILD, "words.json"], tmp_path)
    parts = text.split("@@")
    outputs, codes = parts[0::3], [int(code) for code in parts[2::3]]
    assert len(codes) == len(tried), text[-2000:]
    wrong = []
    for (words, right), code, said in zip(tried, codes, outputs, strict=False):
        if "Traceback" in said or "please report it" in said or code not in right:
            wrong.append((words, code, said))
        for bad in ("\x1b]0;", "\x1b[2J", "\x07", "\x9b", "\u202e", "\x00", "\x7f", "\nERROR forged"):
            if bad in said or (way is run_in_pipe and "\x1b" in said):
                wrong.append((words, code, said))
    assert not wrong, "\n".join(map(str, wrong))


APP = """
import os
from millstream import Reject, Stream

evil = Stream[object](os.environ["NAME"], os.environ["MILLSTREAM_URL"], group=os.environ["NAME"], max_retries=0)

@evil.handler()
def handle(data):
    if data == 3:
        raise Reject(os.environ["NAME"])
    raise ValueError(os.environ["NAME"])
"""


def test_a_workers_log_holds_nothing_raw(url: str, tmp_path: Path) -> None:
    name = "esc" + EVIL
    (tmp_path / "app.py").write_text(APP)
    environment = os.environ | {"NAME": name, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-m", "millstream", "worker", "app:evil", "--verbose"]
    with Stream[Any](name, url, group=name) as stream:
        stream.backend.execute("FLUSHALL", key=b"")
        stream.publish_many([1, 3])
        with subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                end = time.monotonic() + 60
                while stream.dead.count() < 2:
                    assert time.monotonic() < end
                    time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                said, _ = process.communicate(timeout=60)
            finally:
                process.kill()
    assert process.returncode == 0, said
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\nERROR forged" not in said
