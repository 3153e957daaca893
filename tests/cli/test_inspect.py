"""The commands that look at streams, publish, and deal with dead letters, as a person types them, on real servers."""

from __future__ import annotations

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from millstream import Stream
from millstream.cli.main import main
from tests.support import servers
from tests.support.cluster import Cluster


@pytest.fixture(params=["valkey", "redis", "cluster"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("valkey_cluster")
        cluster.reset()
        url = cluster.url
    else:
        server: servers.RealServer = request.getfixturevalue(f"{request.param}_server")
        url = f"redis://127.0.0.1:{server.port}"
        with Stream[Any]("x", url) as stream:
            stream.backend.execute("FLUSHALL", key=b"")
    monkeypatch.setenv("MILLSTREAM_URL", url)
    return url


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def bury(url: str, count: int) -> None:
    with Stream[Any]("orders", url, group="billing") as orders:
        orders.publish_many([{"n": n} for n in range(count)])
        for message in orders.consume(ahead=count, wait=0.2):
            message.reject("odd" if message.data["n"] % 2 else "even")


def test_publish_then_look(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (first,) = answer(capsys, "publish", "orders", '{"n": 1}')
    assert answer(capsys, "publish", "orders", '{"n": 2}', "--dedupe", "two") == answer(
        capsys, "publish", "orders", '{"n": 2}', "--dedupe", "two"
    )
    answer(capsys, "publish", "orders", "--fields", "customer=42", "amount=12.50")
    (tmp_path / "lines").write_text('{"n": 3}\n\n{"n": 4}\n')
    answer(capsys, "publish", "orders", "--file", str(tmp_path / "lines"))
    (state,) = answer(capsys, "streams")
    assert (state["name"], state["length"], state["groups"]) == ("orders", 5, 0)
    code, out, _ = run(capsys, "tail", "orders", "--from", first, "-n", "2")
    assert code == 0
    assert 'data={"n":1}' in out
    assert "customer=42" not in out
    assert "customer=42  amount=12.50" in run(capsys, "tail", "orders", "-n", "3")[1]


def test_publishing_from_a_pipe_names_the_line_that_is_no_json(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b'{"n": 1}\nnot json\n{"n": 3}\n')))
    code, out, err = run(capsys, "publish", "orders", "-")
    assert code == 2
    assert "line 2 is not JSON" in err
    assert "1 entry was appended, up to line 1; later lines were not" in err
    with Stream[Any]("orders", url) as orders:
        (entry,) = orders.backend.execute("XRANGE", "orders", "-", "+")
    assert out.split() == [entry[0].decode()], "what was appended is printed"


def test_groups_pending_and_audit(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Stream[Any]("orders", url, group="billing") as orders:
        orders.publish_many([{"n": n} for n in range(6)])
        for number, message in enumerate(orders.consume(ahead=5, wait=0.1)):
            if number == 0:
                message.ack()
            elif number == 1:
                message.retry(60)
            elif number == 4:
                break
        (group,) = answer(capsys, "groups", "orders")
        assert (group["name"], group["pending"], group["released"], group["waiting"], group["lag"]) == (
            "billing",
            4,
            3,
            1,
            1,
        )
        rows = answer(capsys, "pending", "orders", "--group", "billing")
        assert sorted(row["consumer"] for row in rows) == ["", "", "", "(delayed)"]
        told = answer(capsys, "audit", "orders", "--group", "billing")
        assert (told["published"], told["done"], told["pending"], told["undelivered"], told["balanced"]) == (
            6,
            1,
            4,
            1,
            True,
        )
        orders.backend.execute("XACK", "orders", "billing", rows[0]["id"])
        code, _, err = run(capsys, "audit", "orders", "--group", "billing")
        assert code == 1
        assert "1 missing" in err


def test_dead_letters_are_listed_shown_redriven_and_discarded(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, 6)
    letters = answer(capsys, "dead", "ls", "orders")
    assert [letter["error"] for letter in letters] == ["even", "odd"] * 3
    shown = answer(capsys, "dead", "show", "orders", letters[1]["id"])
    assert (shown["reason"], shown["fields"]) == ("rejected", {"data": '{"n":1}'})
    assert run(capsys, "dead", "show", "orders", "1-1")[0] == 1
    assert answer(capsys, "dead", "redrive", "orders", "--error", "odd", "--dry-run")["matched"] == 3
    code, _, err = run(capsys, "dead", "redrive", "orders", "--error", "odd")
    assert (code, "--yes" in err) == (2, True), "without a terminal it does not guess"
    assert answer(capsys, "dead", "redrive", "orders", "--error", "odd", "--yes")["done"] == 3
    assert answer(capsys, "dead", "discard", "orders", "--id", letters[0]["id"], "--yes")["done"] == 1
    assert len(answer(capsys, "dead", "ls", "orders", "--since", "1h")) == 2
    assert "even" in run(capsys, "dead", "ls", "orders")[1]


def test_the_doctor_names_what_is_stuck_and_what_to_type(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, 2)
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert "2 dead letters" in out
    assert "millstream dead ls orders" in out
    with Stream[Any]("mail", url) as mail:
        mail.publish_many([{}, {}])
        mail.backend.execute("XGROUP", "CREATE", "mail", "senders", "0", key=b"mail")
    code, out, err = run(capsys, "doctor")
    assert (code, "1 problem" in err) == (1, True)
    assert "group senders of mail: undelivered: 2, released: 0, and no consumer reads" in out


def test_top_shows_rates_and_counts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, 3)
    code, out, err = run(capsys, "top", "--rounds", "2", "--every", "0.05", "--json")
    assert code == 0, err
    first, second = (json.loads(line) for line in out.splitlines())
    (line,) = second["lines"]
    assert (line["stream"], line["group"], line["dead"], line["pending"]) == ("orders", "billing", 3, 0)
    assert first["lines"][0]["in_rate"] is None
    assert line["in_rate"] == 0.0
    assert "orders" in run(capsys, "top", "--rounds", "1")[1]


def test_a_server_that_is_not_there_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", f"redis://127.0.0.1:{servers.free_port()}")
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "millstream serve" in out
    assert run(capsys, "streams")[0] == 1


def test_an_unknown_stream_or_group_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, 1)
    assert "there is no stream 'ordres'; the server has orders" in run(capsys, "pending", "ordres")[2]
    assert "has no group 'workers'; it has billing" in run(capsys, "pending", "orders", "--group", "workers")[2]


def test_a_key_of_another_type_is_named_and_hides_no_other_stream(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bury(url, 2)
    with Stream[Any]("other", url, group="g") as other:
        other.publish(1)
        for key in ("{other}:dlq", "{other}:delayed"):
            other.backend.execute("SET", key, "x")
        other.backend.execute("XGROUP", "CREATE", "other", "g", "0", key=b"other")
    assert [(each["name"], each["dead"], each["delayed"]) for each in answer(capsys, "streams")] == [
        ("orders", 2, 0),
        ("other", None, None),
    ]
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "the key '{other}:dlq' holds a string" in out
    assert "millstream dead ls orders" in out
    code, out, err = run(capsys, "top", "--rounds", "1")
    assert (code, "orders" in out) == (0, True), err
    for words in (["dead", "ls", "other"], ["dead", "redrive", "other", "--yes"], ["audit", "other"]):
        code, _, err = run(capsys, *words)
        assert (code, "the key '{other}:dlq' holds a string" in err) == (1, True), words


def test_publishing_to_a_key_of_another_type_names_the_key(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Stream[Any]("x", url) as stream:
        stream.backend.execute("SET", "plain", "x")
    code, _, err = run(capsys, "publish", "plain", "1")
    assert (code, "the key 'plain' holds a string" in err) == (1, True)


def test_a_long_delay_is_printed_in_full(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "waits for 2000000 s" in run(capsys, "publish", "later", "1", "--delay", "2000000")[1]


def test_the_doctor_starts_no_server_where_one_refuses_the_password(
    redis_server: servers.RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "doctor", "--url", f"redis://nobody:wrong@127.0.0.1:{redis_server.port}")
    assert (code, "WRONGPASS" in out, "millstream serve" in out) == (1, True, False)
