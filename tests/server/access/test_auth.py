"""Logging in, and that passwords stay secret."""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.broker import Broker
from millstream.clock import ManualClock
from millstream.errors import CommandError
from millstream.server.access import users
from millstream.server.access.auth import redacted
from millstream.server.commands import lookup
from millstream.server.core.hub import Hub
from tests.server.support import Peer, World, words

ONCE = Retry(NoBackoff(), 0)
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


def test_a_password_is_kept_as_its_hash_only(world: World, a: Peer) -> None:
    a("ACL SETUSER u on >secret")
    user = world.hub.access.users[b"u"]
    assert user.passwords == [sha256(b"secret").hexdigest().encode()]
    assert repr(user) == "User(b'u')"


def test_every_password_is_compared_whichever_fits(world: World, a: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def note(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr(users, "compare_digest", note)
    a("ACL SETUSER u on >one >two >three")
    for password in ("one", "two", "three", "four"):
        a(f"AUTH u {password}")
        assert len(compared) == 3
        compared.clear()


@pytest.mark.parametrize(
    ("request_", "shown"),
    [
        ("AUTH secret", "AUTH (redacted)"),
        ("auth bob secret", "auth (redacted) (redacted)"),
        ("HELLO 3", "HELLO 3"),
        ("HELLO 3 SETNAME x AUTH bob secret", "HELLO 3 SETNAME x AUTH (redacted) (redacted)"),
        ("hello 3 auth bob secret setname x", "hello 3 auth (redacted) (redacted) setname x"),
        ("HELLO 3 AUTH secret", "HELLO 3 AUTH (redacted)"),
        ("ACL SETUSER bob >secret ~*", "ACL SETUSER (redacted) (redacted) (redacted)"),
        ("ACL WHOAMI", "ACL WHOAMI"),
        ("CONFIG SET requirepass secret port 1", "CONFIG SET requirepass (redacted) port 1"),
        ("CONFIG SET port 1 REQUIREPASS secret", "CONFIG SET port 1 REQUIREPASS (redacted)"),
        ("CONFIG GET requirepass", "CONFIG GET requirepass"),
        ("SET secret secret", "SET secret secret"),
    ],
)
def test_secrets_are_hidden_where_calls_are_shown(request_: str, shown: str) -> None:
    argv = words(request_)
    assert b" ".join(redacted(lookup(argv), argv)).decode() == shown


def test_nothing_shows_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "users").write_text("user bob on >secret\n")
    world = World(aclfile=str(tmp_path / "users"), requirepass="secret")
    peer, monitor = world.peer(), world.peer()
    monitor("AUTH secret")
    monitor("MONITOR")
    for request in (
        "AUTH bob secretly",
        "AUTH bob secret",
        "GET secretly",
        "AUTH secret",
        "HELLO 3 AUTH default secret",
        "ACL SETUSER u >secret",
        "ACL SETUSER u on >secret ~* +@all nope",
        "CONFIG SET requirepass secret2",
        "AUTH secret2",
        "ACL SAVE",
        "ACL LOAD",
    ):
        peer(request)
    (tmp_path / "users").write_text("user bob on >secret >secretly <nosecret\n")
    assert b":1: The password you are trying to remove" in (refusal := peer("ACL LOAD"))
    seen = [peer(request) for request in ("INFO all", "ACL LIST", "ACL LOG", "CLIENT LIST", "SLOWLOG GET")]
    assert not any(reply.startswith(b"-") for reply in seen)
    assert b"secret" not in b"".join(seen) + refusal
    assert b"(redacted)" in (told := monitor.read())
    assert b"secret" not in told
    assert "secret" not in caplog.text


def test_a_connection_stays_logged_in_when_a_password_is_set(a: Peer, world: World) -> None:
    a("CONFIG SET requirepass pw")
    assert a("PING") == b"+PONG\r\n"
    assert world.peer()("PING") == b"-NOAUTH Authentication required.\r\n"


def test_a_wrong_password_changes_nothing(world: World, a: Peer) -> None:
    a("ACL SETUSER u on >pw +@all")
    assert a("AUTH u pw") == b"+OK\r\n"
    for request in ("AUTH u no", "AUTH nobody pw", "HELLO 3 AUTH u no"):
        assert a(request) == WRONGPASS
    assert a("ACL WHOAMI") == b"$1\r\nu\r\n"
    assert a.session.protocol == 2


def test_any_of_several_passwords_will_do(a: Peer) -> None:
    a("ACL SETUSER u on >one >two")
    assert a("AUTH u two") == b"+OK\r\n"
    a("AUTH default x")
    a("ACL SETUSER u <two")
    assert a("AUTH u two") == WRONGPASS
    assert a("AUTH u one") == b"+OK\r\n"


def test_reset_brings_the_default_user_back(world: World, a: Peer) -> None:
    a("ACL SETUSER u on nopass +@all")
    a("AUTH u x")
    a("RESET")
    assert a("ACL WHOAMI") == b"$7\r\ndefault\r\n"
    a("CONFIG SET requirepass pw")
    a("RESET")
    assert a("ACL WHOAMI").startswith(b"-NOAUTH ")


def test_the_program_itself_needs_no_permission() -> None:
    with Broker(clock=ManualClock(0)) as broker:
        broker.execute("ACL", "SETUSER", "default", "off", "resetkeys", "-@all")
        broker.xadd("s", {"f": "v"})
        assert broker.xlen("s") == 1
        with pytest.raises(redis.exceptions.RedisError):
            broker.client(retry=ONCE).ping()


def test_redis_py_logs_in_as_a_user() -> None:
    with Broker(clock=ManualClock(0)) as broker:
        admin = broker.client()
        admin.acl_setuser("u", enabled=True, passwords=["+pw"], categories=["+@stream"], keys=["s*"])
        client = broker.client(username="u", password="pw")
        assert client.xadd("s1", {"f": "v"})
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xadd("t1", {"f": "v"})
        with pytest.raises(redis.exceptions.NoPermissionError, match="'get'"):
            client.get("s1")
        with pytest.raises(redis.exceptions.AuthenticationError):
            broker.client(username="u", password="no", retry=ONCE).ping()
        told = admin.acl_getuser("u")
        assert told["keys"] in (["s*"], "~s*", ["~s*"])
        assert admin.acl_whoami() == "default"
        assert admin.acl_log()[0]["reason"] == "auth"
        assert admin.acl_deluser("u") == 1


def test_a_user_is_denied_in_direct_mode_only_on_connections(world: World) -> None:
    """`hub.run` is the program's own: it passes the gate that memory and the log put up, not this one."""
    hub = world.hub
    hub.run(words("ACL SETUSER default -get"))
    assert hub.run(words("GET k")) is None
    hub.gates.append(lambda session, row, argv: CommandError("ERR no"))
    with pytest.raises(CommandError, match="no"):
        hub.run(words("GET k"))


def test_whoever_is_not_logged_in_is_told_so_before_anything_about_rights() -> None:
    hub = Hub(clock=ManualClock(0), settings={"requirepass": "pw"}, users=[words("u on nopass")])
    peer = Peer(hub)
    assert peer("GET k").startswith(b"-NOAUTH ")
    assert peer("NOPE").startswith(b"-ERR unknown command")
    assert peer("GET").startswith(b"-ERR wrong number")
    peer("AUTH u x")
    assert re.match(rb"-NOPERM User u has no permissions to run the 'get' command", peer("GET k"))
