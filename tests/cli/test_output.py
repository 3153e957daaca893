"""What commands print on a terminal and in a pipe: full records, ids that are never cut, and documented endings."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import Stream
from millstream.cli.output import plural, table
from millstream.cli.top import COLUMNS, DOWN, END, PAGE_DOWN, TopLine, View, colour
from tests.cli.test_hostile import read_all
from tests.support import servers

WAIT_S = 60
LONG = "orders-of-the-eu-west-1-warehouse"
LOOKS = (["streams"], ["groups"], ["pending", "a" * 70, "--limit", "2"], ["top", "--rounds", "1"])


@pytest.fixture
def client(valkey_server: servers.RealServer, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    monkeypatch.setenv("MILLSTREAM_URL", f"redis://127.0.0.1:{valkey_server.port}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    client = redis.Redis(port=valkey_server.port, decode_responses=True)
    client.flushall()
    return client


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "millstream", *words]


def piped(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=WAIT_S)


def on_terminal(*words: str, columns: int = 80) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns)}
    with subprocess.Popen(
        command(*words), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        text = b"".join(read_all(ours)).decode()
        assert process.wait(WAIT_S) == 0, text
    os.close(ours)
    return text.replace("\r\n", "\n")


def bury(count: int, error: str) -> list[str]:
    with Stream[Any](LONG, os.environ["MILLSTREAM_URL"], group="billing-and-tax") as stream:
        stream.publish_many(range(count))
        for message in stream.consume(ahead=count, wait=0.1):
            message.reject(error)
        return [letter.id for letter in stream.dead.list()]


def test_dead_letters_are_one_record_a_line_in_a_pipe_and_whole_ids_on_a_terminal(client: redis.Redis) -> None:
    error = "cannot charge: " + "because " * 40
    ids = bury(5, error.strip())
    done = piped("dead", "ls", LONG, "--limit", "3")
    records = [line.split("\t") for line in done.stdout.splitlines()]
    assert [record[0] for record in records] == ids[:3]
    assert {(len(record), record[-1]) for record in records} == {(7, error.strip())}, "values are full"
    assert "there are more: 3 of the 5 dead letters" in done.stderr
    shown = on_terminal("dead", "ls", LONG)
    lines = shown.splitlines()
    assert len(lines) == 6
    assert all(entry_id in line for entry_id, line in zip(ids, lines[1:], strict=True))
    assert "…" in lines[1]
    assert "there are more" not in shown


@pytest.mark.parametrize(
    "words", [["streams"], ["groups"], ["pending", "a" * 70, "--limit", "2"], ["top", "--rounds", "1"]]
)
def test_names_and_ids_are_never_cut(client: redis.Redis, words: list[str]) -> None:
    name, group, consumer = "a" * 70, "g" * 60, "c" * 60
    ids = [str(client.xadd(name, {"n": n})) for n in range(3)]
    client.xgroup_create(name, group, "0")
    client.xreadgroup(group, consumer, {name: ">"})
    expected = {
        "streams": [name, ids[-1]],
        "groups": [name, group, ids[-1]],
        "pending": [*ids[:2], consumer],
        "top": [name, group],
    }
    for text in (piped(*words).stdout, on_terminal(*words)):
        assert all(any(each in line for line in text.splitlines()) for each in expected[words[0]])
    if words[0] == "pending":
        assert "there are more" in piped(*words).stderr


def test_a_pipe_gets_no_title_and_nothing_when_there_is_nothing(client: redis.Redis) -> None:
    assert (piped("streams").stdout, piped("streams").returncode) == ("", 0)
    client.xadd("orders", {"n": 1})
    assert piped("streams").stdout.split("\t")[:3] == ["orders", "1", "1"]
    assert piped("groups", "orders").stderr == "millstream: no groups\n"


def test_a_reader_that_has_enough_ends_a_command_quietly(client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        for n in range(20_000):
            pipe.xadd("orders", {"n": n})
        pipe.execute()
    with subprocess.Popen(
        command("tail", "orders", "-n", "20000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(WAIT_S)) == ("", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_behind_the_output_is_an_error(client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("streams"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (
        1,
        "millstream: standard output cannot be written: No space left on device\n",
    )


def test_closed_output_is_no_traceback(client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m millstream streams >&-', sys.executable],
        text=True, stderr=subprocess.PIPE, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_only_group_is_used_and_several_must_be_named(client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", "0")
    client.xreadgroup("billing", "anna", {"orders": ">"})
    assert piped("pending", "orders").stdout.split("\t")[1] == "anna"
    assert json.loads(piped("audit", "orders", "--json").stdout)["group"] == "billing"
    client.xgroup_create("orders", "shipping", "0")
    done = piped("pending", "orders")
    assert (done.returncode, "choose one with --group: billing, shipping" in done.stderr) == (2, True)
    client.xgroup_create("orders", "workers", "0")
    assert piped("pending", "orders").returncode == 0


def test_one_letter_has_the_same_shape_in_a_list_and_alone(client: redis.Redis) -> None:
    (letter_id,) = bury(1, "no")
    (listed,) = json.loads(piped("dead", "ls", LONG, "--json").stdout)
    alone = json.loads(piped("dead", "show", LONG, letter_id, "--json").stdout)
    assert listed == alone
    assert alone["fields"] == {"data": "0"}


def test_json_shapes_are_those_of_the_page(client: redis.Redis) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text().partition("## JSON")[2]
    bury(1, "no")
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", "0")
    client.xreadgroup("billing", "anna", {"orders": ">"})
    for words in (
        ["streams"],
        ["groups"],
        ["pending", "orders"],
        ["audit", "orders"],
        ["doctor"],
        ["top", "--rounds", "1"],
        ["version"],
    ):
        answer = json.loads(piped(*words, "--json").stdout)
        first = answer[0] if isinstance(answer, list) else answer
        row = next(each for each in page.splitlines() if each.startswith(f"| `{words[0]}"))
        assert "{" + ", ".join(first) + "}" in row, (words, list(first))


@pytest.mark.parametrize(
    "words",
    [
        ["check", "none.aof"],
        ["import", "none.rdb"],
        ["export", "x.rdb", "--dir", "none"],
        ["publish", "orders", "--file", "none.jsonl"],
        ["serve", "none.conf"],
        ["pipeline", "run", "none.toml"],
    ],
)
def test_a_missing_file_is_wrong_use_everywhere(client: redis.Redis, words: list[str]) -> None:
    done = piped(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "none" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_move_onto_itself_is_refused(client: redis.Redis, host: str, tmp_path: Path) -> None:
    client.set("k", "v")
    source, state = os.environ["MILLSTREAM_URL"], str(tmp_path / "state")
    target = source.replace("127.0.0.1", host)
    for words in (["--replace", "--yes"], ["--dry-run"]):
        done = piped("migrate", source, target, "--state", state, *words)
        assert (done.returncode, "are the same server" in done.stderr) == (2, True)
    assert client.get("k") == "v"
    done = piped("migrate", f"{source}/0", f"{source}/1", "--state", state)
    assert done.returncode == 0, "another database of the same server is another place"


def test_the_server_that_was_asked_is_named_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", f"redis://127.0.0.1:{servers.free_port()}")
    assert "(from MILLSTREAM_URL)" in piped("streams").stderr
    assert "(from --url)" in piped("streams", "--url", f"redis://127.0.0.1:{servers.free_port()}").stderr


def test_a_table_counts_wide_characters_and_cuts_only_errors() -> None:
    rows = [{"id": "1-0", "name": "漢字", "error": "x" * 50}, {"id": "2-0", "name": "ab", "error": "y"}]
    assert table(rows, ("id", "name", "error"), 30).splitlines() == [
        "id   name  error",
        "1-0  漢字  " + "x" * 18 + "…",
        "2-0  ab    y",
    ]
    assert (plural(1, "entry", "entries"), plural(2, "dead letter")) == ("1 entry", "2 dead letters")


# top


def line(stream: str, **values: Any) -> TopLine:
    zero: dict[str, Any] = dict.fromkeys(TopLine.__dataclass_fields__, 0)
    return TopLine(**zero | {"stream": stream, "group": "g", "last_sign_s": 1.0} | values)


def test_keys_change_what_top_shows() -> None:
    lines = [line("b", lag=1), line("a", lag=5, dead=1), line("c", lag=None)]
    view = View()
    assert [each.stream for each in view.chosen(lines)] == ["a", "b", "c"]
    for _ in range(list(COLUMNS).index("lag")):
        view = view.key("s", 10)
    assert (view.sort, [each.stream for each in view.chosen(lines)]) == ("lag", ["a", "b", "c"])
    assert [each.stream for each in view.key("r", 10).chosen(lines)] == ["c", "b", "a"]
    for key in "/c\x7fb\n":
        view = view.key(key, 10)
    assert (view.words, view.is_typing, [each.stream for each in view.chosen(lines)]) == ("b", False, ["b"])
    assert view.key("\x1b", 10).words == ""
    assert View().key(DOWN, 10).key(PAGE_DOWN, 10).within(100, 10).first == 11
    assert View().key(END, 10).within(100, 10).first == 90
    assert View().key("q", 10).is_over
    assert [colour(each) for each in (lines[1], lines[0], line("d", consumers=1, done_rate=2.0), line("e"))] == [
        "red", "red", "green", "default",
    ]  # fmt: skip


@pytest.fixture
def screen(client: redis.Redis) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`top` on a terminal of 24 lines, with 60 streams."""
    import fcntl
    import struct
    import termios

    for number in range(60):
        client.xadd(f"stream-{number:02}", {"n": 1})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        command("top", "--every", "5"), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        try:
            yield ours, process
        finally:
            process.kill()
            os.close(ours)


def await_text(file: int, text: str) -> str:
    seen, end = "", time.monotonic() + WAIT_S
    while text not in seen:
        assert time.monotonic() < end, seen[-2000:]
        if select.select([file], [], [], 0.5)[0]:
            seen += os.read(file, 1 << 16).decode(errors="replace")
    return seen


def test_top_scrolls_filters_and_quits(screen: tuple[int, subprocess.Popen[bytes]]) -> None:
    file, process = screen
    assert "stream-59" not in await_text(file, "1-21 of 60")
    os.write(file, b"G")
    assert "stream-59" in await_text(file, "40-60 of 60")
    os.write(file, b"/-07\n")
    assert "stream-07" in await_text(file, "1-1 of 1")
    os.write(file, b"q")
    while process.poll() is None:  # what it writes at its end must be read
        if select.select([file], [], [], 0.1)[0]:
            try:
                os.read(file, 1 << 16)
            except OSError:
                break
    assert process.wait(WAIT_S) == 0
