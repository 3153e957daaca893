"""Users, their rules, and what they are denied: as sentences, and held against a real Redis 8.10 byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from millstream.clock import ManualClock
from millstream.engine.table import Command
from millstream.errors import ConfigError
from millstream.server.access.permissions import CATEGORIES
from millstream.server.access.redis_names import NAMES
from millstream.server.commands import TABLE
from millstream.server.core.hub import Hub
from tests.server.commands.test_against_redis import Raw, await_blocked, requests
from tests.server.support import START_MS, Peer, World, words
from tests.support.servers import RealServer
from tests.support.wire import Wire, pack, parse

NOPERM_KEY = b"-NOPERM No permissions to access a key\r\n"
HASH = "a" * 64

# Rules of SETUSER, applied to the same user one line after the other. `~` alone cannot stand for a blank here.
RULES = [
    "",
    "on",
    "off",
    "ON",
    "nopass",
    "resetpass",
    ">p",
    ">p >q >p",
    "<p",
    "<nope",
    f"#{HASH}",
    f"#{HASH.upper()}",
    "#abc",
    f"!{HASH}",
    f"!{'b' * 64}",
    "!x",
    "nopass >x",
    "nopass resetpass",
    "nopass <x",
    "nopass #" + HASH,
    ">",
    "#",
    "~a",
    "~a ~b ~a",
    "~a %R~a %W~a",
    "%R~a",
    "%W~a",
    "%RW",
    "%RR",
    "%Rx",
    "%RW~a",
    "%WR~a",
    "%rw~a",
    "%r~a",
    "%RR~a",
    "%~a",
    "%X~a",
    "%R",
    "%",
    "~",
    "%R~",
    "allkeys",
    "AllKeys ~x",
    "allkeys ~*",
    "allkeys %RW~*",
    "allkeys %R~x",
    "%RW~* ~x",
    "%R~* ~x %W~*",
    "~a ~*",
    "resetkeys",
    "~a\0b",
    "&a",
    "&a &b &a",
    "&",
    "allchannels",
    "ALLchannels &a",
    "allchannels &*",
    "&a &*",
    "resetchannels",
    "&a\0",
    "+get",
    "+GET",
    "-get",
    "+get -get",
    "-get +get",
    "+@all",
    "+@All",
    "-@all",
    "allcommands",
    "nocommands",
    "+@all -get",
    "+@all -get +get",
    "+get +@all",
    "-@all +@read -@all",
    "+@read",
    "+@READ -@read",
    "+@read +@write -@read +@read",
    "+@nope",
    "+@",
    "+@read|x",
    "@read",
    "+",
    "-",
    "+nope",
    "-nope",
    "+all",
    "foo",
    "+config|get",
    "+CONFIG|GET",
    "-config|get",
    "+config|nope",
    "-config|nope",
    "+config|",
    "+config|get|x",
    "+config|get|",
    "+nope|x",
    "+@all -config +config|get -config|set",
    "+config|get +config|set +config",
    "+config|get +config|set -config|get +@admin -config",
    "+select|0",
    "+select|0 +select|1",
    "+select|0 +select",
    "+select +select|2 -select",
    "+SELECT|A",
    "-select|2",
    "+select|",
    "+get|x|y",
    "-get|x",
    "+get|x -get",
    "+xgroup|create +xgroup",
    "-xgroup +xgroup|create -xgroup|create +@stream -xgroup|CREATE",
    "+module -geoadd",
    "+cluster|forget -module|load",
    "+geoadd|x",
    "+@geo -@bitmap +@array",
    "sanitize-payload",
    "skip-sanitize-payload",
    "(+get~~x)",
    "(+get ~x)",
    "( +get ~x )",
    "()",
    "( )",
    "(",
    ")",
    "(+get",
    "(+get ~x +set",
    "(+get ~x))",
    "((+get ~x))",
    "(+get (~x)",
    "(+get)(+set)",
    "x(+get)",
    "(on)",
    "(>a)",
    "(reset)",
    "(nopass)",
    "(clearselectors)",
    "(sanitize-payload)",
    "(+nope)",
    "(allkeys ~a)",
    "(allchannels &a)",
    "(%R~a &b +@read -get)",
    "(%R~a &b +@read allcommands)",
    "(+get ~a) (~b +set)",
    "(+get) clearselectors",
    "clearselectors",
    "reset",
    "on >p ~a &b +get (+set ~c) reset",
    "on +get foo",
    "+get +nope",
]

# Users by their rules, and calls to ask about. Who logs in needs ECHO, which ends every exchange here.
USERS = {
    "keys": "on nopass ~a* %R~r* %W~w* &* +@all",
    "commands": "on nopass allkeys allchannels +@all -get -config|set -acl -@dangerous +info",
    "few": "on nopass allkeys +select|0 +config|get +@connection -client +client|id",
    "streams": "on nopass ~s:* +@stream +@fast -xnack",
    "channels": "on nopass allkeys &c* &x +@all",
    "selectors": "on nopass ~a +get +echo (~b +set) (~c* +mget) (+publish &q) (%R~d +@read)",
    "nobody": "off",
    "everybody": "on nopass ~* &* +@all",
}
CALLS = """
    get a|get b|get zz|set a 1|set w 1|set r 1|set w 1 get|set a 1 get|set zz 1|mget a r|mget a r zz|mget c1 c2
    mget c1 d c3|strlen w|strlen zz|exists w|type w|ttl w|touch w|object encoding w|object encoding zz
    memory usage w|dump w|getdel w|getex w|append w 1|incr w|incr a|mset w 1|mset a 1 zz 1|setrange w 0 x
    getrange w 0 1|del w|del r|unlink r|expire r 1|expire w 1|persist w|rename a w|rename w a|rename r w
    renamenx a w|copy r w|copy w r|copy a zz|move a 1|move w 1|xadd w * a b|xadd r * a b|xadd s:1 * a b|xlen w
    xlen zz|xrange w - +|xrange r - +|xack w g 1|xack r g 1|xdel w 1|xread streams a zz 0 0|xread streams r 0
    xread streams w 0|xreadgroup group g c streams r >|xreadgroup group g c streams w >
    xreadgroup group g c streams s:1 >|xgroup create w g $|xgroup create r g $|xgroup create s:1 g $|xgroup help
    xinfo stream w|xinfo stream r|xpending w g|xclaim w g c 0 1-1|xclaim r g c 0 1-1|xautoclaim w g c 0 0
    xtrim w maxlen 1|xsetid w 1|xnack w g fail ids 1 1|xnack s:1 g fail ids 1 1|xdelex w ids 1 1|xackdel w g ids 1 1
    xcfgset w idmp-duration 1|xidmprecord w p i 1-1|delex w|digest w|hset w a b|hget w a|hgetall w|hlen w|hdel w a
    lpush w a|lpop w|lrange w 0 1|llen w|sadd w a|smembers w|sismember w a|scard w|spop w|zadd w 1 a|zscore w a
    zcard w|zrangebyscore w 0 1|srandmember w|watch zz|watch w|keys *|scan 0|flushall|swapdb 0 1|randomkey
    publish c x|publish d x|publish q x|spublish c x|spublish d x|subscribe c1 d|subscribe c1 x|psubscribe c*
    psubscribe c|psubscribe x|ssubscribe c|ssubscribe d|unsubscribe d|punsubscribe d|sunsubscribe d
    pubsub channels d|eval x 1 zz|eval x 1 a|eval x 1 r|eval x 1 w|eval x 0|eval x nope|evalsha x 2 a zz
    fcall x 1 zz|script load x|config get x|config set a b|config help|config resetstat|config foo x|config
    acl whoami|acl list|client id|client list|client getname|command|command count|command info get|info|multi|exec
    discard|auth a b|hello|reset|quit|ping|select 0|select 1|SELECT 0|wait 0 0|debug sleep 0|monitor|slowlog get
    role|lastsave|time|nope|nope x|get|get a b|object|xgroup|function list|cluster info|readonly
"""


def calls() -> list[list[bytes]]:
    return [words(call.strip()) for line in CALLS.strip().splitlines() for call in line.split("|")]


def rules_of(line: str) -> list[bytes]:
    """Rules as they are sent: blanks inside parentheses belong to the rule where `~~` holds them together."""
    return [rule.replace("~~", " ~").encode() for rule in line.split(" ")] if line else []


class Line:
    """A real connection that is asked in words."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(self, request: str | bytes | list[str | bytes | int]) -> bytes:
        return self._wire.ask(*words(request))


@pytest.fixture
def real(redis_server: RealServer) -> Iterator[RealServer]:
    """The real server with the default user only."""
    with redis_server.connect() as wire:
        wire.ask(b"FLUSHALL")
        yield redis_server
        wire.ask(*words("ACL SETUSER default reset on nopass ~* &* +@all"))
        for name in parse(wire.ask(b"ACL", b"USERS")):  # type: ignore[attr-defined]
            if name != b"default":
                wire.ask(b"ACL", b"DELUSER", name)
        wire.ask(b"ACL", b"LOG", b"RESET")


@pytest.mark.differential
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["a fresh user", "one user"])
def test_rules_make_the_same_user(real: RealServer, protocol: int, is_fresh: bool) -> None:
    ours = World().peer(protocol)
    ours.read()
    with real.connect(protocol) as wire:
        theirs = Line(wire)
        for line in RULES:
            start = [b"reset"] if is_fresh else []
            request = [b"ACL", b"SETUSER", b"u", *start, *rules_of(line)]
            assert ours(request) == theirs(request), line
            for look in ("ACL LIST", "ACL GETUSER u"):
                assert ours(look) == theirs(look), (line, look)


@pytest.mark.differential
def test_the_same_calls_are_denied_for_the_same_reason(real: RealServer) -> None:
    ours = World().peer()
    with real.connect() as wire:
        theirs = Line(wire)
        for name, rules in USERS.items():
            request = [b"ACL", b"SETUSER", name.encode(), *re_split(rules)]
            assert ours(request) == theirs(request) == b"+OK\r\n"
        differing = [
            (name, call, ours(request), theirs(request))
            for name in USERS
            for call in calls()
            if (request := [b"ACL", b"DRYRUN", name.encode(), *call])
            and ours(request) != theirs(request)
            and call[0] not in KNOWN_ONLY_THERE
        ]
    assert differing == []


KNOWN_ONLY_THERE = {name.encode() for name in NAMES} - TABLE.keys()


def re_split(rules: str) -> list[bytes]:
    """Rules between blanks, those inside parentheses apart."""
    return [rule.encode() for rule in re.findall(r"\([^)]*\)|\S+", rules)]


def random_rule(dice: Random) -> bytes:
    """A rule about a command, a category, keys or channels, or any of those above."""
    sign = dice.choice("+-")
    subject = dice.choice(["a", "a*", "r*", "w", "w*", "zz", "s:*", "c*", "c1", "?", "[a-z]", "d"])
    names = [row.name for row in rows() if "cluster" not in row.name]
    return dice.choice(
        [
            f"{sign}{dice.choice(names)}".encode(),
            f"{sign}@{dice.choice(CATEGORIES)}".encode(),
            f"{dice.choice(['~', '%R~', '%W~', '&'])}{subject}".encode(),
            *rules_of(dice.choice(RULES)),
        ]
    )


@pytest.mark.differential
def test_random_rules_make_the_same_user(real: RealServer) -> None:
    ours, dice = World().peer(), Random(8_10)
    asked = [call for call in calls() if call[0] not in KNOWN_ONLY_THERE]
    with real.connect() as wire:
        theirs = Line(wire)
        for _ in range(400):
            start = [b"reset"] if dice.random() < 0.1 else []
            rules = [random_rule(dice) for _ in range(dice.randint(1, 6))]
            requests: list[list[bytes]] = [[b"ACL", b"SETUSER", b"u", *start, *rules], words("ACL LIST")]
            requests += [[b"ACL", b"DRYRUN", b"u", *call] for call in dice.sample(asked, 10)]
            for request in requests:
                assert ours(request) == theirs(request), (rules, request)


@pytest.mark.differential
@pytest.mark.parametrize("name", [name for name in USERS if name not in ("nobody", "everybody")])
def test_denied_calls_are_answered_alike(real: RealServer, name: str) -> None:
    """Only calls that are denied are sent: what others answer is not this test's business."""
    world = World(enable_debug_command="yes")
    ours, admin = world.peer(), world.peer()
    with real.connect() as wire, real.connect() as their_admin:
        theirs = Line(wire)
        request = [b"ACL", b"SETUSER", name.encode(), *re_split(USERS[name])]
        admin(request)
        their_admin.ask(*words(request))
        for line in (ours, theirs):
            assert line(f"AUTH {name} x") == b"+OK\r\n"
        for call in calls():
            verdict = admin([b"ACL", b"DRYRUN", name.encode(), *call])
            if verdict.startswith(b"$") and call[0] not in KNOWN_ONLY_THERE:
                assert ours(call) == theirs(call), call
        log = parse(their_admin.ask(b"ACL", b"LOG", b"1000"))
        mine = parse(admin("ACL LOG 1000"))
        assert [entry[:10] for entry in mine] == [entry[:10] for entry in log]  # type: ignore[attr-defined]


PROGRAMS = {
    "arguments": """
        ACL | ACL FOO | ACL WHOAMI | ACL WHOAMI x | ACL USERS | ACL USERS x | ACL LIST | ACL LIST x | ACL GETUSER
        ACL GETUSER nope | ACL GETUSER default | ACL CAT | ACL CAT nope | ACL CAT @read | ACL CAT a b | ACL CAT ''
        ACL GENPASS 0 | ACL GENPASS 4097 | ACL GENPASS x | ACL GENPASS 1 2 | ACL LOAD | ACL SAVE | ACL LOG x
        ACL LOG 1 2 | ACL LOG RESET | ACL LOG | ACL LOG 0 | ACL LOG -1 | ACL DELUSER | ACL DELUSER x
        ACL DELUSER default | ACL SETUSER | ACL SETUSER a | ACL DELUSER a default | ACL USERS | ACL DELUSER a b a
        ACL USERS | ACL SETUSER b bad | ACL USERS | ACL DRYRUN | ACL DRYRUN a | ACL DRYRUN nope get x
        ACL DRYRUN default get x | ACL DRYRUN default get
        ACL SETUSER a~b | ACL SETUSER '' | ACL USERS | ACL DELUSER '' | CLIENT KILL USER nope
        CONFIG SET acl-pubsub-default x | CONFIG SET acllog-max-len -1 | CONFIG SET aclfile x | CONFIG GET aclfile
        CONFIG GET acllog-max-len | COMMAND INFO acl|setuser acl|whoami acl|log | COMMAND GETKEYSANDFLAGS copy a b
        COMMAND GETKEYSANDFLAGS set a b | COMMAND GETKEYSANDFLAGS set a b get | COMMAND GETKEYSANDFLAGS rename a b
        COMMAND GETKEYSANDFLAGS set a b ifeq c | COMMAND GETKEYSANDFLAGS delex a
        COMMAND GETKEYSANDFLAGS delex a ifne c
    """,
    "passwords": """
        ACL SETUSER u on >one >two +@all ~* | AUTH u one | ACL WHOAMI | AUTH u three | ACL WHOAMI | AUTH nobody x
        AUTH default whatever | ACL WHOAMI | AUTH u two | ACL SETUSER u <two | ACL WHOAMI | AUTH u two | AUTH u one
        ACL SETUSER u nopass | AUTH u whatever | ACL SETUSER u resetpass | AUTH u one | ACL SETUSER u off nopass
        AUTH u x | ACL WHOAMI | HELLO 2 AUTH u x | HELLO 2 AUTH nobody x | HELLO 2 AUTH u | RESET | ACL WHOAMI
        ACL SETUSER u -auth -hello -reset on | AUTH u x | AUTH u x | RESET | ACL WHOAMI
    """,
    "the default user": """
        CONFIG SET requirepass pw | ACL LIST | CONFIG GET requirepass | 1>PING | 1>AUTH x | 1>AUTH pw | 1>PING
        ACL SETUSER default >other | CONFIG GET requirepass | 1>AUTH other | 1>AUTH pw | ACL SETUSER default nopass
        1>AUTH pw | 1>RESET | 1>PING | ACL SETUSER default resetpass | 1>RESET | 1>PING | 1>AUTH x | 1>AUTH default x
        CONFIG SET requirepass '' | ACL LIST | 1>AUTH x | 1>RESET | 1>PING | ACL SETUSER default off | 1>PING | 1>RESET
        1>PING | 1>AUTH x | 1>AUTH default x | 1>HELLO 3 | PING | ACL SETUSER default on | 1>RESET | 1>PING
        ACL SETUSER default -ping | PING | 1>PING | ACL SETUSER default +ping | PING
    """,
    "transactions": """
        ACL SETUSER u on nopass ~k* &c +@all -get | 1>AUTH u x | 1>MULTI | 1>GET k | 1>SET k 1 | 1>EXEC | 1>MULTI
        1>SET q 1 | 1>EXEC | 1>MULTI | 1>PUBLISH d x | 1>DISCARD | 1>MULTI | 1>SET k 1 | 1>INCR k | 1>PUBLISH c x
        1>SET k2 v | ACL SETUSER u -incr resetchannels resetkeys ~k | 1>EXEC | 1>MULTI | 1>SET k 1 | ACL SETUSER u -exec
        1>EXEC | 1>SET k 2 | 1>EXEC | ACL SETUSER u -multi | 1>MULTI | 1>SET k 3 | ACL SETUSER u +multi -discard
        1>MULTI | 1>DISCARD | 1>RESET | 1>ACL WHOAMI
    """,
    "blocked": """
        ACL SETUSER u on nopass ~* +@all | XGROUP CREATE s g $ MKSTREAM | 1>AUTH u x
        1>XREADGROUP GROUP g c BLOCK 0 STREAMS s > | ACL SETUSER u -xreadgroup | XADD s 1-1 f v | XPENDING s g
        1>XREAD BLOCK 0 STREAMS s $ | ACL SETUSER u resetkeys ~t | XADD s 1-2 f v | 1>XREAD BLOCK 0 STREAMS t $
        XADD t 1-1 f v
    """,
    "channels": """
        ACL SETUSER u on nopass +@all &a* &b | 1>AUTH u x | 1>SUBSCRIBE a1 d | 1>SUBSCRIBE a1 | 1>PSUBSCRIBE a
        1>PSUBSCRIBE a* | 1>SSUBSCRIBE b | ACL SETUSER u &c | PUBLISH a1 x | ACL SETUSER u resetchannels &a* &b &a1
        PUBLISH a1 x | 1>UNSUBSCRIBE zz | 1>RESET
    """,
    "configuration": """
        CONFIG SET acl-pubsub-default allchannels | ACL SETUSER n | ACL GETUSER n | ACL SETUSER n (+get) | ACL LIST
        ACL SETUSER n reset | ACL LIST | CONFIG SET acl-pubsub-default resetchannels | ACL SETUSER m | ACL LIST
        ACL SETUSER m (+get) | ACL LIST
    """,
}


@pytest.mark.differential
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_answered_alike(real: RealServer, name: str) -> None:
    hub = Hub(settings={"enable-debug-command": "yes"})
    ours = [Peer(hub) for _ in range(2)]
    theirs = [Raw(real, 2) for _ in range(2)]
    for who, request in requests(PROGRAMS[name]):
        ours[who].session.feed(pack(request))
        theirs[who].send(pack(request))
        for peer, raw in zip(ours, theirs, strict=True):
            expected = peer.read()
            assert raw.receive(len(expected)) == expected, request
        if ours[who].is_blocked:
            await_blocked(real, sum(peer.is_blocked for peer in ours))
    for peer, raw in zip(ours, theirs, strict=True):
        raw.send(pack([b"QUIT"]))
        assert raw.rest() == peer("QUIT")
    hub.close()


def rows() -> Iterator[Command]:
    for row in TABLE.values():
        yield row
        yield from row.subcommands.values()


@pytest.mark.differential
def test_commands_are_in_the_same_categories(real: RealServer) -> None:
    ours = World().peer()
    have = {row.name.encode() for row in rows()} - {row.name.encode() for row in rows() if "cluster" in row.name}
    with real.connect() as wire:
        for category in parse(wire.ask(b"ACL", b"CAT")):  # type: ignore[attr-defined]
            theirs = {name.lower() for name in parse(wire.ask(b"ACL", b"CAT", category))}  # type: ignore[attr-defined]
            mine = parse(ours([b"ACL", b"CAT", category]))
            assert set(mine) & have == theirs & have, category  # type: ignore[call-overload]


@pytest.mark.differential
def test_every_command_of_redis_can_be_named_in_a_rule(real: RealServer) -> None:
    ours = World().peer()
    with real.connect() as wire:
        for name in parse(wire.ask(b"COMMAND", b"LIST")):  # type: ignore[attr-defined]
            assert ours([b"ACL", b"SETUSER", b"u", b"+" + name]) == b"+OK\r\n", name
        slow = parse(wire.ask(b"ACL", b"CAT", b"slow")) + parse(wire.ask(b"ACL", b"CAT", b"fast"))  # type: ignore[operator]
        for name in slow:
            assert ours([b"ACL", b"SETUSER", b"u", b"-" + name]) == b"+OK\r\n", name


# Without a real server


def a_user(world: World, rules: str, name: str = "u") -> Peer:
    """A connection of a user with these rules."""
    assert world.peer()([b"ACL", b"SETUSER", name.encode(), b"on", b"nopass", *re_split(rules)]) == b"+OK\r\n"
    peer = world.peer()
    assert peer(f"AUTH {name} x") == b"+OK\r\n"
    return peer


def test_there_is_no_gate_while_everybody_may_do_everything(world: World, a: Peer) -> None:
    assert world.hub.gates == []
    a("ACL SETUSER u on nopass ~* &* +@all")
    assert world.hub.gates == []
    a("ACL SETUSER u -get")
    assert len(world.hub.gates) == 1
    a("ACL SETUSER u +get")
    assert world.hub.gates == []
    a("ACL SETUSER u -get")
    a("ACL DELUSER u")
    assert world.hub.gates == []


def test_access_is_checked_before_other_gates(world: World, a: Peer) -> None:
    peer = a_user(world, "~*")
    world.hub.gates.append(lambda session, row, argv: pytest.fail("asked too early"))
    assert peer("GET k") == b"-NOPERM User u has no permissions to run the 'get' command\r\n"


def test_a_deleted_users_connections_are_cut_off(world: World, a: Peer) -> None:
    peer = a_user(world, "~* +@all")
    other = a_user(world, "~* +@all", "other")
    assert peer("XREAD BLOCK 0 STREAMS s $") == b""
    assert a("ACL DELUSER u") == b":1\r\n"
    assert peer.is_cut_off
    assert not other.is_cut_off
    a("XADD s 1-1 f v")
    assert peer.read() == b""


def test_somebody_who_deletes_themselves_is_told_and_cut_off(world: World) -> None:
    peer = a_user(world, "~* +@all")
    assert peer("ACL DELUSER u") == b":1\r\n"
    assert peer.is_cut_off


def test_nothing_runs_for_somebody_who_is_gone(world: World, a: Peer) -> None:
    peer = a_user(world, "~* +@all")
    for request in ("MULTI", "ACL DELUSER u", "SET k v"):
        peer(request)
    reply = peer("EXEC")
    assert reply.startswith(b"*2\r\n:1\r\n-NOPERM ")
    assert peer.is_cut_off
    assert a("GET k") == b"$-1\r\n"


def test_a_subscriber_who_may_no_longer_listen_is_cut_off(world: World, a: Peer) -> None:
    on_channel, on_pattern, on_shard = (a_user(world, "&a* &b +@all") for _ in range(3))
    on_channel("SUBSCRIBE a1")
    on_pattern("PSUBSCRIBE a*")
    on_shard("SSUBSCRIBE b")
    a("ACL SETUSER u resetchannels &a1 &b")
    assert (on_channel.is_cut_off, on_pattern.is_cut_off, on_shard.is_cut_off) == (False, True, False)
    a("ACL SETUSER u -subscribe")
    assert not on_channel.is_cut_off
    a("ACL SETUSER u reset")
    assert on_channel.is_cut_off
    assert on_shard.is_cut_off


def test_somebody_who_lost_rights_while_waiting_takes_nothing(world: World, a: Peer) -> None:
    peer = a_user(world, "~* +@all")
    a("XGROUP CREATE s g $ MKSTREAM")
    peer("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
    a("ACL SETUSER u -xreadgroup")
    assert peer.read() == b""
    a("XADD s 1-1 f v")
    assert peer.read() == b"-NOPERM User u has no permissions to run the 'xreadgroup' command\r\n"
    assert a("XPENDING s g").startswith(b"*4\r\n:0\r\n")
    assert peer("PING") == b"+PONG\r\n"
    assert b"cmdstat_xreadgroup:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1" in a("INFO commandstats")


def test_a_user_who_is_switched_off_keeps_their_connections(world: World, a: Peer) -> None:
    peer = a_user(world, "~* +@all")
    a("ACL SETUSER u off")
    assert peer("PING") == b"+PONG\r\n"
    assert peer("AUTH u x").startswith(b"-WRONGPASS ")


def test_a_first_word_with_a_blank_is_refused() -> None:
    """Redis takes `+get|x y` and ends with an assertion when it is asked to show it."""
    assert World().peer()(["ACL", "SETUSER", "u", "+get|x y"]).endswith(b": Syntax error\r\n")


def test_a_wrong_password_in_a_transaction_has_its_place_in_the_reply(a: Peer) -> None:
    """Redis leaves it out, and the client waits for ever."""
    for request in ("MULTI", "AUTH nobody x", "PING"):
        a(request)
    assert re.fullmatch(rb"\*2\r\n-WRONGPASS [^\r]*\r\n\+PONG\r\n", a("EXEC"))


def test_scripts_may_do_what_their_caller_may(world: World, a: Peer) -> None:
    peer = a_user(world, "~a &c +@all -set")
    for script, told in (
        ("return redis.call('set', 'a', 1)", b"-ERR ACL failure in script: User u has no permissions to run the 'set'"),
        ("return redis.call('get', 'b')", b"-ERR ACL failure in script: No permissions to access a key"),
        ("return redis.call('publish', 'd', 'x')", b"-ERR ACL failure in script: No permissions to access a channel"),
        ("return redis.call('get', 'a')", b"$-1"),
    ):
        assert peer(["EVAL", script, 0]).startswith(told), script
    assert peer(["EVAL", "return 1", 1, "b"]) == NOPERM_KEY
    assert [entry[:2] for entry in shown(a, "reason", "context", "object")] == [
        (b"key", b"toplevel"),
        (b"channel", b"lua"),
        (b"key", b"lua"),
        (b"command", b"lua"),
    ]


# ACL LOG


def shown(peer: Peer, *fields: str) -> list[tuple[object, ...]]:
    """Some fields of each entry of the log."""
    entries = [dict(pairs(entry)) for entry in parse(peer("ACL LOG 1000"))]  # type: ignore[attr-defined]
    return [tuple(entry[field.encode()] for field in fields) for entry in entries]


def pairs(flat: list[object]) -> list[tuple[object, object]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def test_the_same_denial_within_a_minute_is_one_entry(world: World, a: Peer) -> None:
    peer = a_user(world, "~a +@all -get")
    for _ in range(3):
        peer("GET a")
        world.clock.advance(30_000)
    world.clock.advance(60_000)
    peer("GET a")
    world.clock.advance(1_500)
    assert shown(a, "count", "entry-id", "age-seconds", "timestamp-created", "timestamp-last-updated") == [
        (1, 1, b"1.5", START_MS + 150_000, START_MS + 150_000),
        (3, 0, b"91.5", START_MS, START_MS + 60_000),
    ]


def test_a_repeated_denial_comes_to_the_front(world: World, a: Peer) -> None:
    peer = a_user(world, "~a +@all")
    for key in ("x", "y", "x"):
        peer(f"GET {key}")
    assert shown(a, "object", "count") == [(b"x", 2), (b"y", 1)]


def test_the_log_forgets_the_oldest(world: World, a: Peer) -> None:
    a("CONFIG SET acllog-max-len 2")
    peer = a_user(world, "~a +@all")
    for key in ("x", "y", "z"):
        peer(f"GET {key}")
    assert shown(a, "object") == [(b"z",), (b"y",)]
    a("ACL LOG RESET")
    assert shown(a, "object") == []


def test_the_log_says_what_where_and_who(world: World, a: Peer) -> None:
    peer = a_user(world, "~a &c +@all -get")
    peer("AUTH u2 x")
    peer("GET a")
    peer("MULTI")
    peer("SET b 1")
    peer("DISCARD")
    peer("PUBLISH d x")
    assert shown(a, "reason", "context", "object", "username") == [
        (b"channel", b"toplevel", b"d", b"u"),
        (b"key", b"multi", b"b", b"u"),
        (b"command", b"toplevel", b"get", b"u"),
        (b"auth", b"toplevel", b"AUTH", b"u2"),
    ]
    assert all(b" user=u " in line for (line,) in shown(a, "client-info"))
    denied = dict(line.split(b":") for line in a("INFO stats").splitlines() if line.startswith(b"acl_"))
    a("CONFIG RESETSTAT")
    assert denied == {
        b"acl_access_denied_auth": b"1",
        b"acl_access_denied_cmd": b"1",
        b"acl_access_denied_key": b"1",
        b"acl_access_denied_channel": b"1",
        b"acl_access_denied_tls_cert": b"0",
    }


# Files


def test_users_come_back_from_the_lines_that_acl_list_shows() -> None:
    world, again = World(), World()
    for line in RULES:
        world.peer()([b"ACL", b"SETUSER", b"u", *rules_of(line)])
        told = parse(world.peer()("ACL LIST"))[-1]  # type: ignore[index]
        if b"~x) " in told:  # `(+get ~x))` makes a pattern that ends like a selector
            world.peer()("ACL SETUSER u clearselectors")
            continue
        again.hub.access.delete([b"u"])
        again.hub.access.start([re_split(told.decode("latin-1"))[1:]])
        assert parse(again.peer()("ACL LIST"))[-1] == told, line  # type: ignore[index]


def world_with_file(tmp_path: Path, text: str) -> World:
    (tmp_path / "users.acl").write_text(text)
    return World(aclfile=str(tmp_path / "users.acl"))


def test_users_are_loaded_from_a_file_and_saved_to_it(tmp_path: Path) -> None:
    world = world_with_file(tmp_path, "# ours\n\n  user bob on >pw ~b* +@read\r\nuser eve off (+get ~x)\n")
    peer = world.peer()
    assert peer("ACL USERS") == b"*3\r\n$3\r\nbob\r\n$7\r\ndefault\r\n$3\r\neve\r\n"
    assert peer("AUTH bob pw") == b"+OK\r\n"
    admin = world.peer()
    admin("ACL SETUSER eve on")
    assert admin("ACL SAVE") == b"+OK\r\n"
    text = (tmp_path / "users.acl").read_bytes()
    assert text == b"".join(line + b"\n" for line in parse(admin("ACL LIST")))  # type: ignore[attr-defined]
    assert b"pw" not in text
    admin("ACL SETUSER eve off")
    assert admin("ACL LOAD") == b"+OK\r\n"
    assert b"user eve on " in admin("ACL LIST")


def test_loading_cuts_off_who_is_no_longer_there(tmp_path: Path) -> None:
    line = "user {} on nopass ~* &* +@all\n"
    world = world_with_file(tmp_path, line.format("bob") + line.format("eve"))
    bob, eve, somebody = world.peer(), world.peer(), world.peer()
    bob("AUTH bob x")
    eve("AUTH eve x")
    (tmp_path / "users.acl").write_text("user eve on nopass +get\n")
    somebody("ACL LOAD")
    assert (bob.is_cut_off, eve.is_cut_off, somebody.is_cut_off) == (True, False, False)
    assert eve("PING").startswith(b"-NOPERM ")


def test_a_file_with_errors_changes_nothing_and_names_their_lines(tmp_path: Path) -> None:
    world = world_with_file(tmp_path, "user bob on\n")
    path = tmp_path / "users.acl"
    path.write_text("user bob on >secret nope\nuser a +foo\nuser\nuser bob off\nuser c (+get\nuser d <secret\n")
    peer = world.peer()
    assert peer("ACL LOAD").decode() == (
        f"-ERR {path}:1: Syntax error. {path}:2: Error in applying operation '+foo': Unknown command or category name "
        f"in ACL. {path}:3 should start with user keyword followed by the username. WARNING: Duplicate user 'bob' "
        f"found on line 4. {path}:5: Unmatched parenthesis in selector definition. {path}:6: The password you are "
        "trying to remove from the user does not exist. WARNING: ACL errors detected, no change to the previously "
        "active ACL rules was performed\r\n"
    )
    assert peer("ACL USERS") == b"*2\r\n$3\r\nbob\r\n$7\r\ndefault\r\n"


def test_a_required_password_outlives_a_file_without_the_default_user(tmp_path: Path) -> None:
    """Redis opens the default user to everybody then."""
    (tmp_path / "users.acl").write_text("user bob on\n")
    world = World(aclfile=str(tmp_path / "users.acl"), requirepass="pw")
    assert world.peer()("PING").startswith(b"-NOAUTH ")
    assert world.peer()("AUTH pw") == b"+OK\r\n"


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    world = world_with_file(tmp_path, "user bob on\n")
    (tmp_path / "users.acl").unlink()
    tmp_path.rmdir()
    assert world.peer()("ACL SAVE").startswith(b"-ERR There was an error trying to save the ACLs.")


@pytest.mark.parametrize(
    ("users", "told"),
    [
        (["bob on", "bob off"], "user 'bob' is declared twice"),
        (["bob +nope"], "user 'bob': rule '+nope': Unknown command or category name in ACL"),
        (["bob <secret"], "user 'bob': rule (a password): The password you are trying to remove from the user does"),
        (["bob (+get"], "user 'bob': unmatched parenthesis at '(+get'"),
        (["a\tb on"], "a user needs a name without blanks"),
    ],
)
def test_a_user_that_cannot_be_declared_keeps_the_server_from_starting(users: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(told)) as error:
        Hub(clock=ManualClock(0), users=[words(user) for user in users])
    assert "secret" not in str(error.value)


def test_declared_users_are_there_from_the_start() -> None:
    users = [words("default off"), words("bob on >pw ~* +@all (+get ~x)")]
    hub = Hub(clock=ManualClock(0), settings={"requirepass": "x"}, users=users)
    peer = Peer(hub)
    assert peer("PING").startswith(b"-NOAUTH ")
    assert peer("AUTH x").startswith(b"-WRONGPASS ")
    assert peer("AUTH bob pw") == b"+OK\r\n"
    assert peer("ACL USERS") == b"*2\r\n$3\r\nbob\r\n$7\r\ndefault\r\n"


def test_users_in_a_file_and_in_the_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not in both"):
        Hub(clock=ManualClock(0), settings={"aclfile": str(tmp_path / "x")}, users=[words("bob on")])


def test_a_file_that_is_missing_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        World(aclfile=str(tmp_path / "nope"))


def test_generated_passwords_have_as_many_bits_as_asked_for(a: Peer) -> None:
    sizes = [len(parse(a(f"ACL GENPASS {bits}"))) for bits in (1, 4, 5, 8, 9, 4096)]  # type: ignore[arg-type]
    assert sizes == [1, 1, 2, 2, 3, 1024]
    made = {a("ACL GENPASS") for _ in range(20)}
    assert len(made) == 20
    assert all(re.fullmatch(rb"\$64\r\n[0-9a-f]{64}\r\n", one) for one in made)


def test_categories_are_listed_in_redis_order(a: Peer) -> None:
    listed = parse(a("ACL CAT"))
    assert listed[:3] == [b"keyspace", b"read", b"write"]  # type: ignore[index]
    assert all(first != second for first, second in pairwise(listed))  # type: ignore[call-overload]


@pytest.mark.parametrize("option", ["BY w_*", "GET w_*", "get h_*->f"])
def test_sort_reads_unnamed_keys_only_for_who_may_read_every_key(a: Peer, option: str) -> None:
    a(words("ACL SETUSER half on nopass +@all ~k*"))
    a(words("ACL SETUSER reader on nopass +@all ~k* %R~*"))
    a(words("RPUSH k1 1"))
    a(words("AUTH half x"))
    assert a([*words("SORT k1"), *words(option)]) == NOPERM_KEY
    assert a([*words("SORT k1"), *words("BY nosort GET #")]) == b"*1\r\n$1\r\n1\r\n"
    a(words("AUTH reader x"))
    assert a([*words("SORT k1"), *words(option)]).startswith(b"*1\r\n")
