"""A connection: the order of checks, protocols, authentication, replies, the end."""

from __future__ import annotations

import pytest

from millstream.errors import CommandError
from millstream.server.protocol.resp import encode
from tests.server.support import Peer, World
from tests.support.wire import pack


def error(text: str) -> bytes:
    return encode(CommandError(text), 2)


# The order of checks


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ("NOPE", "ERR unknown command 'NOPE'"),
        ("nope a b", "ERR unknown command 'nope', with args beginning with: 'a' 'b' "),
        ("XGROUP", "ERR wrong number of arguments for 'xgroup' command"),
        ("XGROUP NOPE", "ERR unknown subcommand 'NOPE'. Try XGROUP HELP."),
        ("GET", "ERR wrong number of arguments for 'get' command"),
        ("XGROUP CREATE s", "ERR wrong number of arguments for 'xgroup|create' command"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
    ],
)
def test_what_cannot_be_looked_up_is_refused(a: Peer, request_: str, text: str) -> None:
    assert a(request_) == error(text)


def test_names_are_found_in_any_case(a: Peer) -> None:
    assert a("pInG") == a("PING") == a("ping") == b"+PONG\r\n"


def test_debug_is_refused_unless_it_was_enabled_at_start(a: Peer) -> None:
    assert a("DEBUG SLEEP 0").startswith(b"-ERR DEBUG command not allowed.")
    assert World(enable_debug_command="yes").peer()("DEBUG SLEEP 0") == b"+OK\r\n"


def test_unknown_commands_and_arities_are_reported_before_missing_authentication() -> None:
    peer = World(requirepass="secret").peer()
    assert peer("NOPE") == error("ERR unknown command 'NOPE'")
    assert peer("GET") == error("ERR wrong number of arguments for 'get' command")
    assert peer("GET k") == error("NOAUTH Authentication required.")
    assert peer("PING") == error("NOAUTH Authentication required.")
    assert peer("RESET") == b"+RESET\r\n"


def test_gates_are_asked_in_order_and_can_refuse(world: World, a: Peer) -> None:
    world.hub.gates.append(lambda session, row, argv: None)
    world.hub.gates.append(lambda session, row, argv: CommandError("OOM no") if "denyoom" in row.flags else None)
    assert a("SET k v") == error("OOM no")
    assert a("GET k") == b"$-1\r\n"
    a("MULTI")
    assert a("SET k v") == error("OOM no")
    assert a("EXEC") == error("EXECABORT Transaction discarded because of previous errors.")


# Authentication


def test_auth_lets_a_client_in() -> None:
    peer = World(requirepass="secret").peer()
    assert peer("AUTH wrong") == error("WRONGPASS invalid username-password pair or user is disabled.")
    assert peer("AUTH nobody secret").startswith(b"-WRONGPASS")
    assert peer("AUTH default secret") == b"+OK\r\n"
    assert peer("PING") == b"+PONG\r\n"
    assert peer("AUTH wrong").startswith(b"-WRONGPASS")
    assert peer("PING") == b"+PONG\r\n"  # the old identity stays


def test_hello_can_authenticate_and_fails_without() -> None:
    peer = World(requirepass="secret").peer()
    assert peer("HELLO 3").startswith(b"-NOAUTH HELLO must be called with the client already authenticated")
    assert peer("HELLO 3 AUTH default wrong SETNAME x").startswith(b"-WRONGPASS")
    assert peer("HELLO 3 AUTH default secret SETNAME x").startswith(b"%7\r\n")
    assert peer("CLIENT GETNAME") == b"$1\r\nx\r\n"


def test_long_requests_need_authentication() -> None:
    world = World(requirepass="secret")
    peer = world.peer()
    assert peer(["ECHO", b"x" * 20000]) == error("ERR Protocol error: unauthenticated bulk length")
    assert peer.is_cut_off
    peer = world.peer()
    assert peer.raw(pack([b"AUTH", b"secret"]) + pack([b"ECHO", b"x" * 20000])).startswith(b"+OK\r\n$20000\r\n")


# Protocols and state


def test_hello_answers_in_the_protocol_it_chooses(a: Peer) -> None:
    assert a("HELLO 3").startswith(b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n8.10.0\r\n")
    assert a("GET none") == b"_\r\n"
    assert a("HELLO 2").startswith(b"*14\r\n")
    assert a("GET none") == b"$-1\r\n"


@pytest.mark.parametrize("request_", ["HELLO x", "HELLO 4", "HELLO 3 NOPE", "HELLO 3 SETNAME", "HELLO 3 AUTH a b"])
def test_a_hello_that_fails_changes_nothing(a: Peer, request_: str) -> None:
    assert a(request_).startswith(b"-")
    assert a("GET none") == b"$-1\r\n"


def test_a_database_is_chosen_for_the_connection(a: Peer, b: Peer) -> None:
    assert a("SELECT 3") == b"+OK\r\n"
    a("SET k v")
    assert b("GET k") == b"$-1\r\n"
    assert a("SELECT 16") == error("ERR DB index is out of range")
    assert a("GET k") == b"$1\r\nv\r\n"


def test_reset_makes_a_connection_new_but_keeps_the_library_name(world: World, a: Peer, b: Peer) -> None:
    for request in ("HELLO 3", "SELECT 2", "CLIENT SETNAME me", "CLIENT SETINFO LIB-NAME lib"):
        a(request)
    a("SUBSCRIBE c")
    a("WATCH k")
    assert a("RESET") == b"+RESET\r\n"
    assert a("CLIENT GETNAME") == b"$-1\r\n"
    assert a.session.db == 0
    assert b("PUBLISH c x") == b":0\r\n"
    assert not world.hub.watches
    assert b"lib-name=lib " in a("CLIENT INFO")


# Replies


def test_replies_are_one_write_and_in_order(a: Peer) -> None:
    writes: list[bytes] = []
    a.session._send = writes.append
    a.raw(pack([b"SET", b"k", b"1"]) + pack([b"INCR", b"k"]) + pack([b"GET", b"k"]))
    assert writes == [b"+OK\r\n:2\r\n$1\r\n2\r\n"]


def test_reply_skip_silences_itself_and_the_next_command(a: Peer) -> None:
    assert a("CLIENT REPLY SKIP") == b""
    assert a("NOPE") == b""
    assert a("PING") == b"+PONG\r\n"


def test_reply_off_lasts_until_on_and_spares_messages(a: Peer, b: Peer) -> None:
    a("HELLO 3")
    a("SUBSCRIBE c")
    assert a("CLIENT REPLY OFF") == a("PING") == a("CLIENT REPLY SKIP") == a("PING") == b""
    b("PUBLISH c x")
    assert a.read() == b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"
    assert a("CLIENT REPLY ON") == b"+OK\r\n"


# The end


def test_quit_answers_and_runs_nothing_behind_it(a: Peer, b: Peer) -> None:
    assert a.raw(pack([b"QUIT", b"now"]) + pack([b"SET", b"k", b"v"])) == b"+OK\r\n"
    assert a.is_cut_off
    assert b("GET k") == b"$-1\r\n"
    assert a("PING") == b""


def test_a_protocol_error_is_answered_after_the_requests_before_it(a: Peer, b: Peer) -> None:
    data = pack([b"SET", b"k", b"v"]) + b"*1\r\n+PING\r\n" + pack([b"DEL", b"k"])
    assert a.raw(data) == b"+OK\r\n" + error("ERR Protocol error: expected '$', got '+'")
    assert a.is_cut_off
    assert b("GET k") == b"$1\r\nv\r\n"


@pytest.mark.parametrize("request_", [b"POST / HTTP/1.1\r\n", b"Host: x\r\n", pack([b"post", b"/"])])
def test_a_browser_is_hung_up_on(a: Peer, request_: bytes) -> None:
    assert a.raw(request_ + b"PING\r\n") == b""
    assert a.is_cut_off


def test_a_connection_that_cannot_take_its_output_is_closed_alone(world: World, a: Peer, b: Peer) -> None:
    def broken(data: bytes) -> None:
        raise OSError("gone")

    a("SUBSCRIBE c")
    a.session._send = broken
    assert b("PUBLISH c x") == b":1\r\n"
    assert a.session.is_closed
    assert b("PUBLISH c x") == b":0\r\n"


def test_a_closed_connection_is_forgotten_everywhere(world: World, a: Peer, b: Peer) -> None:
    a("WATCH k")
    a("SUBSCRIBE c")
    a.session.close()
    assert b("PUBLISH c x") == b":0\r\n"
    assert not world.hub.watches
    assert b("CLIENT LIST").count(b"id=") == 1


def test_a_command_that_fails_inside_is_an_error_and_no_end(
    a: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(a.session.hub.pubsub.__class__, "publish", broken)
    assert a("PUBLISH c x") == error("ERR internal error in 'publish'")
    assert "publish" in caplog.text
    assert a("PING") == b"+PONG\r\n"
