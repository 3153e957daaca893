"""Configuration files and options: what they mean, and how what is wrong in them is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.broker.directives import Directives, read_all
from millstream.errors import ConfigError
from millstream.server.core.hub import Hub

DEFAULTS = {"port": "6379", "save": ""}


def read(*arguments: str) -> Directives:
    return read_all(list(arguments), DEFAULTS)


def errors(*arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(*arguments)
    return str(raised.value).splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.conf"


def test_a_file_is_read_like_redis_conf(file: Path) -> None:
    file.write_text(
        "# a comment\n\n  port 7000\r\nBIND 127.0.0.1 -::1\n"
        'requirepass "a \\x41 \\"b\\""\nunixsocket \'/tmp/a b\'\n\tmaxmemory 2mb\nnotify-keyspace-events ""\n'
    )
    assert read(str(file)).settings == {
        "port": "7000",
        "save": "",
        "bind": "127.0.0.1 -::1",
        "requirepass": 'a A "b"',
        "unixsocket": "/tmp/a b",
        "maxmemory": "2mb",
        "notify-keyspace-events": "",
    }


def test_options_win_over_the_file_and_take_words_up_to_the_next(file: Path) -> None:
    file.write_text("port 7000\nappendonly no\n")
    settings = read(str(file), "--port", "7001", "--bind", "127.0.0.1", "::1", "--appendfsync=always").settings
    assert settings == {
        "port": "7001",
        "save": "",
        "appendonly": "no",
        "bind": "127.0.0.1 ::1",
        "appendfsync": "always",
    }


@pytest.mark.parametrize(
    ("lines", "save"),
    [
        ("save 900 1\nsave 300 10", "900 1 300 10"),
        ("save 3600 1 300 100", "3600 1 300 100"),
        ("save 900 1\nsave ''", ""),
        ("save 900 1\nsave ''\nsave 60 5", "60 5"),
    ],
)
def test_save_points_add_up_until_an_empty_one(file: Path, lines: str, save: str) -> None:
    file.write_text(lines)
    settings = read(str(file)).settings
    assert settings["save"] == save
    assert Hub(settings=settings).config["save"].decode() == save


def test_an_option_may_hold_several_words_in_one() -> None:
    assert read("--save", "3600 1 300 100").settings["save"] == "3600 1 300 100"
    assert read("--save", "").settings["save"] == ""
    name = "--client-output-buffer-limit"
    hub = Hub(settings=read(name, "pubsub 1mb 0 0", name, "normal", "1", "2", "3").settings)
    assert hub.config["client-output-buffer-limit"] == b"normal 1 2 3 slave 268435456 67108864 60 pubsub 1048576 0 0"


def test_an_included_file_is_read_where_it_is_named(tmp_path: Path, file: Path) -> None:
    (tmp_path / "a.inc").write_text("port 1\ntimeout 5\n")
    (tmp_path / "b.inc").write_text("maxclients 7\n")
    file.write_text(f"port 2\ninclude {tmp_path}/*.inc\ntimeout 6\n")
    assert read(str(file)).settings == {"port": "1", "save": "", "timeout": "6", "maxclients": "7"}


def test_a_file_that_includes_itself_is_refused(file: Path) -> None:
    file.write_text(f"include {file}\n")
    assert "files are included" in errors(str(file))[0]


def test_everything_that_is_wrong_is_named_by_file_and_line(file: Path) -> None:
    file.write_text(
        "prot 1\nport x\nport\nport 1 2\nappendonly maybe\n'\ninclude /no/such/file\nsave 5\n# fine\nslaveof a 1\n"
    )
    assert errors(str(file), "--nope", "1", "--maxclients", "0") == [
        f"{file}:6: unbalanced quotes",
        f"{file}:7: include /no/such/file: No such file or directory",
        f"{file}:1: prot: unknown directive; did you mean port?",
        f"{file}:2: port: argument couldn't be parsed into an integer",
        f"{file}:3: port: takes a value, 0 are given",
        f"{file}:4: port: takes one value, 2 are given",
        f"{file}:5: appendonly: argument must be 'yes' or 'no'",
        f"{file}:8: save: Invalid save parameters",
        f"{file}:10: slaveof: this server is a single node and cannot follow another",
        "--nope: unknown directive",
        "--maxclients: argument must be between 1 and 4294967295 inclusive",
    ]


def test_a_missing_file_is_named() -> None:
    assert errors("/no/such.conf") == ["/no/such.conf: No such file or directory"]
    assert errors("/no/such.conf", "stray")[1] == "stray: an option begins with `--`"


def test_what_can_only_be_one_way_may_be_said(file: Path) -> None:
    file.write_text("daemonize no\ncluster-enabled no\n")
    assert read(str(file)).settings == DEFAULTS
    assert "stays in the foreground" in errors("--daemonize", "yes")[0]
    assert "single node" in errors("--cluster-enabled", "yes")[0]


def test_directives_of_redis_that_mean_nothing_here_are_accepted_and_listed(file: Path) -> None:
    file.write_text("tcp-backlog 100\nhash-max-listpack-entries 128\nrdbchecksum yes\nrepl-timeout 60\n")
    found = read(str(file))
    assert found.meaningless == ["hash-max-listpack-entries", "rdbchecksum", "repl-timeout"]
    assert found.settings["tcp-backlog"] == "100"


def test_a_secret_is_never_repeated(file: Path) -> None:
    file.write_text("requirepass hunter2 hunter2\nuser a on >hunter2 +@nope\n")
    assert "hunter2" not in "\n".join(errors(str(file), "--requirepass", "hunter2", "hunter2"))


def test_users_are_declared_with_their_rules(file: Path) -> None:
    file.write_text("user worker on >pw ~jobs:* +@stream\n")
    found = read(str(file))
    assert found.users == [(b"worker", b"on", b">pw", b"~jobs:*", b"+@stream")]
    assert b"worker" in Hub(settings=found.settings, users=found.users).access.users
