"""CONFIG REWRITE."""

from __future__ import annotations

from pathlib import Path

from millstream.cli.broker.directives import read_all
from millstream.server.config.rewrite import MARK, rewritten
from millstream.server.core.hub import Hub
from tests.server.support import Peer

DEFAULTS = {"port": b"6379", "save": b"", "requirepass": b"", "bind": b"127.0.0.1", "timeout": b"0"}


def test_comments_and_order_stay_and_values_are_brought_up_to_date() -> None:
    text = b"# mine\nport 1\n\nsave 900 1\nsave 60 5\ninclude x.conf\n"
    values = DEFAULTS | {"port": b"2", "save": b"900 1 60 5"}
    assert rewritten(text, values, DEFAULTS, []) == b"# mine\nport 2\n\nsave 900 1 60 5\ninclude x.conf\n"


def test_what_stood_nowhere_is_added_behind_a_mark() -> None:
    once = rewritten(b"port 1\n", DEFAULTS | {"port": b"1", "timeout": b"5"}, DEFAULTS, [b"user u on"])
    assert once == b"port 1\n" + MARK + b"\ntimeout 5\nuser u on\n"
    again = rewritten(once, DEFAULTS | {"port": b"1", "requirepass": b"a b"}, DEFAULTS, [b"user u off"])
    assert again == b"port 1\n" + MARK + b'\ntimeout 0\nuser u off\nrequirepass "a b"\n'


def test_users_are_replaced_where_the_first_one_stood() -> None:
    text = b"user a on\nport 1\nuser b on\n"
    lines = [b"user a off", b"user c on"]
    assert rewritten(text, DEFAULTS | {"port": b"1"}, DEFAULTS, lines) == b"user a off\nuser c on\nport 1\n"


def test_an_empty_value_is_written_in_quotes() -> None:
    assert rewritten(b"save 900 1\n", DEFAULTS, DEFAULTS, []) == b'save ""\n'


def test_a_server_that_is_started_again_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "millstream.conf"
    file.write_text("# mine\nport 7777\nuser alice on >secret ~a* +@read\n")
    found = read_all([str(file)], {})
    hub = Hub(settings=found.settings, users=found.users)
    hub.config_file = file
    peer = Peer(hub)
    peer("CONFIG SET maxmemory 50mb slowlog-max-len 64 notify-keyspace-events KEA")
    peer(["CONFIG", "SET", "requirepass", 'p "w']), peer(["AUTH", 'p "w'])
    peer("ACL SETUSER bob on >hidden ~b* &c* +get -@dangerous")
    before = peer("ACL LIST")
    assert peer("CONFIG REWRITE") == b"+OK\r\n"
    text = file.read_text()
    assert text.startswith("# mine\nport 7777\nuser ")
    assert "secret" not in text, "a password is kept as its hash"
    again = read_all([str(file)], {})
    twin = Peer(Hub(settings=again.settings, users=again.users))
    twin(["AUTH", 'p "w'])
    assert twin("ACL LIST") == before
    asked = "CONFIG GET maxmemory slowlog-max-len notify-keyspace-events"
    assert twin(asked) == peer(asked)


def test_without_a_file_there_is_nothing_to_write(world: object) -> None:
    assert Peer(Hub())("CONFIG REWRITE") == b"-ERR The server is running without a config file\r\n"


def test_a_file_that_cannot_be_written_is_an_error_and_stays(tmp_path: Path) -> None:
    hub = Hub()
    hub.config_file = tmp_path / "nowhere" / "millstream.conf"
    assert Peer(hub)("CONFIG REWRITE").startswith(b"-ERR Rewriting config file: ")
