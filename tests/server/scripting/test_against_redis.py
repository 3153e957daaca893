"""Scripts and functions held against a real Redis 8.10: raw reply bytes, in both protocols.

`scripts.txt` has the scripts, by topic. In each of them `show` prints a table, so that nothing of it is lost on the
way out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from millstream.server.core.hub import Hub
from tests.server.support import Peer, words
from tests.support.servers import RealServer
from tests.support.wire import pack, parse, split

pytestmark = pytest.mark.differential

SHOW = """
    local show
    show = function(value)
        if type(value) ~= 'table' then
            return type(value) .. ':' .. tostring(value)
        end
        local parts = {}
        for key, item in pairs(value) do
            parts[#parts + 1] = tostring(key) .. '=' .. show(item)
        end
        table.sort(parts)
        return '{' .. table.concat(parts, ';') .. '}'
    end
""".replace("\n    ", " ").replace("\n", " ")
_ADDRESS = re.compile(rb"0x[0-9a-f]+|_function:\d+")


def topics() -> dict[str, list[str]]:
    """The scripts of the table."""
    found: dict[str, list[str]] = {}
    table = (Path(__file__).parent / "scripts.txt").read_text()
    for part in table.split("\n== ")[1:]:
        title, *scripts = part.rstrip("\n").split("\n")
        found[title] = scripts
    return found


TOPICS = topics()
Request = str | Sequence[str | bytes | int]


class Duel:
    """One connection to each; both start empty."""

    def __init__(self, server: RealServer, protocol: int) -> None:
        self.real = server.connect(protocol)
        self.real.exchange(b"".join(map(pack, ([b"FLUSHALL"], [b"FUNCTION", b"FLUSH"], [b"SCRIPT", b"FLUSH"]))))
        self.ours = Peer(Hub(), protocol)

    def replies(self, requests: Sequence[Request]) -> list[tuple[bytes, bytes]]:
        """What the real one and ours answer, request by request."""
        batch = [words(request if isinstance(request, str) else list(request)) for request in requests]
        real = split(self.real.exchange(b"".join(map(pack, batch))))
        ours = [self.ours.raw(pack(argv)) for argv in batch]
        return list(zip(real, ours, strict=True))

    def check(self, requests: Sequence[Request], rearrange: Callable[[bytes], object] = bytes) -> None:
        """Let both answer; the answers must be the same, but for addresses of things in memory."""
        wrong = [
            f"{request!r}\n    real {real[:300]!r}\n    ours {ours[:300]!r}"
            for request, (real, ours) in zip(requests, self.replies(requests), strict=True)
            if rearrange(_ADDRESS.sub(b"", real)) != rearrange(_ADDRESS.sub(b"", ours))
        ]
        assert not wrong, f"{len(wrong)} of {len(requests)} differ:\n" + "\n".join(wrong[:20])


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def duel(request: pytest.FixtureRequest, redis_server: RealServer) -> Iterator[Duel]:
    duel = Duel(redis_server, request.param)
    yield duel
    duel.real.close()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_script_answers_as_it_does_on_redis(duel: Duel, topic: str) -> None:
    duel.check([["EVAL", SHOW + script, 0] for script in TOPICS[topic]])


def test_there_are_enough_of_them() -> None:
    assert sum(map(len, TOPICS.values())) > 500


# First lines

SHEBANGS = [
    "#!lua\nreturn 1",
    "#!lua flags=no-writes\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('set','x','y')",
    "#!lua flags=foo\nreturn 1",
    "#!lua flags=\nreturn 1",
    "#!lua foo\nreturn 1",
    "#!lua name=x\nreturn 1",
    "#!lua flags=no-writes,allow-stale,allow-oom,no-cluster,allow-cross-slot-keys\nreturn 1",
    "#!lua flags=no-writes flags=allow-oom\nreturn 1",
    "#!foo\nreturn 1",
    "#!lua",
    "#!lua\n",
    "#!",
    "#!\n",
    "#! lua\nreturn 1",
    "#!LUA\nreturn 1",
    "#!lua flags=NO-WRITES\nreturn 1",
    "#!lua flags=a, b\nreturn 1",
    "#!lua flags=no-writes,\nreturn 1",
    "#!lua\nerror('x')",
    "#!lua\n\n\nreturn foo",
    "#!/bin/sh\nreturn 1",
    "#!lua  \nreturn 1",
    "return\n\nfoo",
    "\n\nreturn foo.x",
    "x x",
    "return '",
    "return 1 return 2",
    "--[[",
    "\x1bLua",
    "return {",
    "for",
    "#",
    "# foo\nreturn 1",
    "return redis.call('set','a','b')",
    "return redis.call('get','a')",
    "return redis.call('publish','a','b')",
    "return redis.pcall('set','a','b')",
    "",
    " ",
    "\n",
    "--x",
    "return\r\n1",
]


def test_first_lines_and_broken_scripts(duel: Duel) -> None:
    for command in ("EVAL", "EVAL_RO"):
        duel.check([[command, script, 0] for script in SHEBANGS])
    duel.check([["SCRIPT", "LOAD", script] for script in SHEBANGS])
    duel.check([[command, script, 0] for script in SHEBANGS for command in ("EVAL", "EVAL_RO")])


def test_the_words_of_the_commands(duel: Duel) -> None:
    sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    duel.check(
        [
            "EVALSHA x 0",
            "EVALSHA_RO x 0",
            "EVALSHA x",
            "EVALSHA x y",
            "EVAL x",
            "EVAL x y",
            ["EVAL", "x x", "x"],
            ["EVAL", "return 1", -1],
            ["EVAL", "return 1", 1],
            ["EVAL", "return KEYS", 2, "a", "b", "c"],
            ["EVAL", "return ARGV", 1, "a", "b", "c"],
            ["EVAL", "return {KEYS, ARGV}", 0],
            "SCRIPT",
            "SCRIPT FOO",
            "SCRIPT EXISTS",
            f"SCRIPT EXISTS {sha} x",
            ["SCRIPT", "LOAD", "return 1"],
            f"SCRIPT EXISTS {sha} x",
            f"EVALSHA {sha} 0",
            f"EVALSHA {sha.upper()} 0",
            f"EVALSHA_RO {sha} 0",
            f"EVALSHA {sha} x",
            f"EVALSHA {sha} -1",
            "SCRIPT FLUSH x",
            "SCRIPT FLUSH SYNC x",
            "SCRIPT FLUSH SYNC",
            f"SCRIPT EXISTS {sha}",
            "SCRIPT KILL",
            "SCRIPT DEBUG",
            "SCRIPT LOAD",
            "EVAL_RO x",
            "EVALSHA_RO x",
        ]
    )


# Functions


def library(name: str, body: str) -> str:
    return f"#!lua name={name}\n{body}"


REGISTER = "redis.register_function"
REGISTRATIONS = [
    f"{REGISTER}()",
    f"{REGISTER}('a')",
    f"{REGISTER}(1)",
    f"{REGISTER}('a', 1)",
    f"{REGISTER}('a-b', function() end)",
    f"{REGISTER}('', function() end)",
    f"{REGISTER}({{}}, function() end)",
    f"{REGISTER}('a', function() end, 1)",
    f"{REGISTER}{{}}",
    f"{REGISTER}{{function_name='a'}}",
    f"{REGISTER}{{callback=function() end}}",
    f"{REGISTER}{{function_name={{}}, callback=function() end}}",
    f"{REGISTER}{{function_name='a', callback=1}}",
    f"{REGISTER}{{function_name='a', callback=function() end, foo=1}}",
    f"{REGISTER}{{function_name='a', callback=function() end, flags=1}}",
    f"{REGISTER}{{function_name='a', callback=function() end, flags={{'x'}}}}",
    f"{REGISTER}{{function_name='a', callback=function() end, flags={{1}}}}",
    f"{REGISTER}{{function_name='a', callback=function() end, description={{}}}}",
    f"{REGISTER}{{[1]='a', callback=function() end}}",
    f"{REGISTER}{{[{{}}]='a', callback=function() end}}",
    f"{REGISTER}('a', function() end) {REGISTER}('a', function() end)",
    "return 1",
    "x x",
    "error('foo')",
    "redis.call('get', 'x')",
    "return foo",
    "foo = 1",
    "redis.foo = 1",
    "return redis.foo",
    "return KEYS",
    "local t = _G",
    f"{REGISTER}('a', function() end) redis.log('x')",
    f"{REGISTER}('a', function() end) local x = nil; x()",
    f"{REGISTER}{{function_name=1, callback=function() end, description=1}}",
    f"{REGISTER}(1, function() end)",
    f"{REGISTER}('a', redis.log)",
    f"local r = redis {REGISTER}('a', function() return r.call('ping') end)",
    f"local r = redis {REGISTER}('a', function() r.register_function('x', function() end) end)",
    f"local n = 0 {REGISTER}('a', function() n = n + 1 return n end)",
    f"{REGISTER}('a', function(keys, args) return {{keys, args}} end)",
    f"{REGISTER}('a', function(...) return select('#', ...) end)",
    f"{REGISTER}('a', function() return redis.call('foo') end)",
    f"{REGISTER}('a', function() return foo end)",
    f"{REGISTER}('a', function() foo = 1 end)",
    f"{REGISTER}('a', function() return KEYS end)",
    f"{REGISTER}('a', function() error('x') end)",
    f"{REGISTER}('a', function() error({{err='x y'}}) end)",
    f"{REGISTER}('a', function() {REGISTER}('b', function() end) end)",
    f"{REGISTER}('a', function() return redis.call('set', 'a', 'b') end)",
    f"{REGISTER}{{function_name='a', callback=function() return redis.call('set', 'a', 'b') end, flags={{'no-writes'}}}}",
    f"{REGISTER}('a', function() redis.setresp(3) return redis.call('hgetall', 'h') end)",
    f"{REGISTER}('a', function() local o = {{}} for k in pairs(_G) do o[#o + 1] = k end table.sort(o) return o end)",
    f"{REGISTER}('a', function() local o = {{}} for k in pairs(redis) do o[#o + 1] = k end table.sort(o) return o end)",
]
FIRST_LINES = [
    "return 1",
    "#!lua\nx",
    "#!foo name=x\nx",
    "#!lua name=x foo=bar\nx",
    "#!lua name=x name=y\n",
    "#!lua name=x y\n",
    "#!lua name=x-y\nx",
    "#!lua name=\nx",
    "#!lua name=x flags=no-writes\nx",
    "#!LUA name=x\nx",
    "#!lua  name=x\nx",
    "#!lua NAME=x\nx",
    "#!lua name='x'\nx",
    '#!lua name="x\nx',
    "#!lua name=x",
    "#!\nx",
    "#! lua name=x\nx",
    "#!lua name=x\r\nx",
]


def test_libraries_load_or_fail_in_the_same_words(duel: Duel) -> None:
    duel.check(["HSET h f v"])
    for body in REGISTRATIONS:
        load: Request = ["FUNCTION", "LOAD", library("x", body)]
        duel.check([load, "FCALL a 1 k v", "FCALL a 0", "FCALL_RO a 0", load, "FUNCTION LIST", "FUNCTION FLUSH"])
    duel.check([["FUNCTION", "LOAD", line] for line in FIRST_LINES])


def test_libraries_are_listed_deleted_dumped_and_restored(duel: Duel) -> None:
    one = library(
        "one",
        f"{REGISTER}{{function_name='f', callback=function() return 1 end, flags={{'no-writes', "
        "'allow-oom'}, description='what it is for'}",
    )
    other = library("other", f"{REGISTER}('f', function() return 2 end)")
    newer = library("one", f"{REGISTER}('f', function() return 3 end)")
    third = library("third", f"{REGISTER}('h', function() return 4 end)")
    duel.check(
        [
            ["FUNCTION", "LOAD", one],
            ["FUNCTION", "LOAD", one],
            ["FUNCTION", "LOAD", other],
            "FCALL f 0",
            "FCALL_RO f 0",
            ["FUNCTION", "LOAD", "REPLACE", newer],
            "FCALL f 0",
            "FCALL_RO f 0",
            "FUNCTION LIST",
            "FUNCTION LIST WITHCODE",
            "FUNCTION LIST LIBRARYNAME o*",
            "FUNCTION LIST LIBRARYNAME x*",
            "FUNCTION LIST WITHCODE LIBRARYNAME ONE",
            "FUNCTION LIST FOO",
            "FUNCTION LIST LIBRARYNAME",
            "FUNCTION LIST WITHCODE WITHCODE",
            "FUNCTION STATS",
            "FUNCTION LIST LIBRARYNAME a LIBRARYNAME b",
            "FUNCTION DUMP",
            "FUNCTION DELETE nope",
            "FUNCTION DELETE",
            "FUNCTION KILL",
            "FUNCTION FLUSH x",
            "FUNCTION FLUSH SYNC x",
            "FUNCTION",
            "FUNCTION FOO",
            "FCALL nope 0",
            "FCALL f x",
            "FCALL f -1",
            "FCALL f 2 k",
            "FCALL f",
            "FUNCTION LOAD",
            ["FUNCTION", "LOAD", "foo", "x"],
            ["FUNCTION", "LOAD", "REPLACE"],
            ["FUNCTION", "LOAD", "REPLACE", "x", "y"],
        ]
    )
    dump = duel.replies(["FUNCTION DUMP"])[0][0].split(b"\r\n", 1)[1][:-2]
    broken = dump[:-1] + bytes([dump[-1] ^ 1])
    duel.check(
        [
            ["FUNCTION", "RESTORE", dump],
            ["FUNCTION", "RESTORE", dump, "APPEND"],
            ["FUNCTION", "RESTORE", dump, "REPLACE"],
            ["FUNCTION", "LOAD", third],
            ["FUNCTION", "RESTORE", dump, "FLUSH"],
            "FUNCTION LIST",
            "FCALL f 0",
            ["FUNCTION", "RESTORE", dump, "foo"],
            ["FUNCTION", "RESTORE", dump, "FLUSH", "x"],
            ["FUNCTION", "RESTORE", b"xx"],
            ["FUNCTION", "RESTORE", broken],
            "FUNCTION RESTORE",
            "FUNCTION DELETE one",
            "FUNCTION LIST",
            "FUNCTION DUMP",
            ["FUNCTION", "LOAD", other],
            ["FUNCTION", "RESTORE", dump],
            ["FUNCTION", "RESTORE", dump, "REPLACE"],
            "FUNCTION FLUSH ASYNC",
            ["FUNCTION", "RESTORE", dump],
            "FUNCTION LIST WITHCODE",
            "FUNCTION FLUSH",
            "FUNCTION DUMP",
        ]
    )


def test_a_dump_of_several_libraries_is_understood_by_the_other(duel: Duel) -> None:
    for number in range(5):
        duel.check(
            [["FUNCTION", "LOAD", library(f"l{number}", f"{REGISTER}('f{number}', function() return {number} end)")]]
        )
    ((real, ours),) = duel.replies(["FUNCTION DUMP"])
    exchanged = [("FLUSH", ours, real), ("FLUSH", real, ours)]
    for policy, for_real, for_ours in exchanged:
        restore = [b"FUNCTION", b"RESTORE"]
        dumps = [reply.split(b"\r\n", 1)[1][:-2] for reply in (for_real, for_ours)]
        assert duel.real.ask(*restore, dumps[0], policy.encode()) == b"+OK\r\n"
        assert duel.ours([*restore, dumps[1], policy.encode()]) == b"+OK\r\n"
        duel.check([f"FCALL f{number} 0" for number in range(5)])
        duel.check(["FUNCTION LIST WITHCODE"], rearrange=_unordered)


def _unordered(reply: bytes) -> object:
    value = parse(reply)
    return sorted(map(repr, value)) if isinstance(value, list) else value


# Chance


def literal(chance: random.Random, depth: int = 0) -> str:
    """A Lua expression without surprises for replies: numbers, strings, booleans, tables of all kinds."""
    kind = chance.randrange(10 if depth < 4 else 5)
    if kind == 0:
        return chance.choice(["true", "false", "cjson.null"])
    if kind == 1:
        return repr(chance.randrange(-(2**40), 2**40))
    if kind == 2:
        return repr(chance.uniform(-1e6, 1e6) * 10 ** chance.randrange(-8, 8))
    if kind in (3, 4):
        return text(chance)
    items = [literal(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind in (5, 6):
        return "{" + ", ".join(items) + "}"
    pairs = [f"[{key(chance)}] = {item}" for item in items]
    if kind == 7:
        return "{" + ", ".join(pairs) + "}"
    special = {
        8: "{" + chance.choice(["map", "set"]) + " = {" + ", ".join(pairs) + "}}",
        9: chance.choice(["{double = %s}", "{ok = %s}", "{err = %s}", "{big_number = %s}"])
        % (items[0] if items else "1"),
    }
    return special[kind]


def key(chance: random.Random) -> str:
    return chance.choice([text(chance), repr(chance.randrange(1, 9)), repr(chance.randrange(-3, 99) / 2)])


def text(chance: random.Random) -> str:
    letters = [chance.choice(["a", "b", "\\n", '\\"', "\\\\", "/", "\\0", "\\200", "1", " ", "é"]) for _ in range(6)]
    return '"' + "".join(letters[: chance.randrange(7)]) + '"'


@pytest.mark.parametrize("seed", range(3))
def test_random_values_come_out_the_same(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    forms = ["return {}", "redis.setresp(3) return {}", "return {{{}, 1}}", "return show({})"]
    duel.check([["EVAL", SHOW + chance.choice(forms).format(literal(chance)), 0] for _ in range(300)])


@pytest.mark.parametrize("seed", range(3))
def test_random_values_are_packed_and_unpacked_the_same(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    forms = [
        "return cjson.encode({})",
        "return cmsgpack.pack({})",
        "return show({{cmsgpack.unpack(cmsgpack.pack({}))}})",
        "return show(cjson.decode(cjson.encode({{{}}})))",
    ]
    duel.check([["EVAL", SHOW + chance.choice(forms).format(literal(chance)), 0] for _ in range(300)])


@pytest.mark.parametrize("seed", range(2))
def test_random_json_is_read_the_same(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"b\\n"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\x"',
        "1",
        "-2.5e3",
        "0x1F",
        "01",
        "1e",
        "-",
        "nan",
        "-inf",
        "Infinity",
        "true",
        "false",
        "null",
        "nul",
        " ",
        "\n",
        '"',
        "\\",
        "é",
        "1.",
        ".5",
        "+1",
    ]
    requests: list[Request] = []
    for _ in range(300):
        json = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 8)))
        if chance.random() < 0.5:
            json = f'[{json}, {{"k": {json}}}]'
        requests.append(["EVAL", SHOW + "return show(cjson.decode(ARGV[1]))", 0, json])
    duel.check(requests)


@pytest.mark.parametrize("seed", range(2))
def test_random_bytes_are_unpacked_the_same(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    marks = [
        0x01,
        0x7F,
        0x81,
        0x92,
        0xA3,
        0xC0,
        0xC1,
        0xC2,
        0xC3,
        0xC4,
        0xC7,
        *range(0xCA, 0xD5),
        0xD9,
        0xDA,
        0xDC,
        0xDE,
        0xFF,
    ]
    requests: list[Request] = []
    for _ in range(300):
        data = bytes(chance.choice([*marks, 0, chance.randrange(256)]) for _ in range(chance.randrange(1, 12)))
        requests.append(["EVAL", SHOW + "return show({cmsgpack.unpack(ARGV[1])})", 0, data])
        form = "".join(chance.choice("<>!bBhHlLTiIfdxs c1c3c0i3I5!4!8") for _ in range(chance.randrange(1, 6)))
        requests.append(["EVAL", SHOW + "return show({struct.unpack(ARGV[1], ARGV[2])})", 0, form, data])
        requests.append(["EVAL", "return struct.pack(ARGV[1], unpack(ARGV, 2))", 0, form, *map(str, data[:6])])
        requests.append(["EVAL", SHOW + "return show(struct.size(ARGV[1]))", 0, form])
    duel.check(requests)


BITS = ["tobit", "tohex", "bnot", "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "bswap"]


@pytest.mark.parametrize("seed", range(2))
def test_random_bits_are_moved_the_same(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    requests: list[Request] = []
    for _ in range(300):
        name = chance.choice(BITS)
        numbers = [
            chance.choice([chance.randrange(-(2**33), 2**33), chance.uniform(-1e12, 1e12), 2**53, 31, -1]) for _ in "ab"
        ]
        requests.append(["EVAL", f"return tostring(bit.{name}({numbers[0]!r}, {numbers[1]!r}))", 0])
    duel.check(requests)


@pytest.mark.parametrize("seed", range(2))
def test_random_numbers_become_the_same_words(duel: Duel, seed: int) -> None:
    chance = random.Random(seed)
    requests: list[Request] = []
    for _ in range(300):
        number = chance.choice(
            [
                chance.uniform(-1, 1) * 10 ** chance.randrange(-300, 300),
                float(chance.randrange(-(2**63), 2**63)),
                chance.randrange(-1000, 1000) / 8,
                chance.randrange(10**17),
            ]
        )
        requests.append(["EVAL", f"return {{redis.call('ECHO', {number!r}), {number!r}, {{double = {number!r}}}}}", 0])
    duel.check(requests)


READS = [
    "'GET', 'str'",
    "'GET', 'none'",
    "'MGET', 'str', 'none'",
    "'STRLEN', 'str'",
    "'HGETALL', 'hash'",
    "'HGETALL', 'none'",
    "'HGET', 'hash', 'f'",
    "'HMGET', 'hash', 'f', 'x'",
    "'HKEYS', 'hash'",
    "'HVALS', 'hash'",
    "'HLEN', 'hash'",
    "'LRANGE', 'list', 0, -1",
    "'LINDEX', 'list', 5",
    "'LLEN', 'list'",
    "'SMEMBERS', 'set'",
    "'SCARD', 'set'",
    "'SISMEMBER', 'set', 'a'",
    "'SMISMEMBER', 'set', 'a', 'x'",
    "'ZRANGE', 'zset', 0, -1",
    "'ZSCORE', 'zset', 'a'",
    "'ZRANGE', 'zset', 0, -1, 'WITHSCORES'",
    "'ZSCORE', 'zset', 'x'",
    "'ZCARD', 'zset'",
    "'ZRANK', 'zset', 'b'",
    "'XRANGE', 'stream', '-', '+'",
    "'XREVRANGE', 'stream', '+', '-', 'COUNT', 1",
    "'XLEN', 'stream'",
    "'XRANGE', 'none', '-', '+'",
    "'XREAD', 'STREAMS', 'stream', '0'",
    "'XREAD', 'STREAMS', 'stream', '$'",
    "'XINFO', 'STREAM', 'stream'",
    "'XREAD', 'COUNT', 1, 'STREAMS', 'stream', 'other', '0', '0'",
    "'XINFO', 'GROUPS', 'stream'",
    "'XPENDING', 'stream', 'g'",
    "'XPENDING', 'stream', 'g', '9', '+', 10",
    "'XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 'stream', '0'",
    "'XAUTOCLAIM', 'stream', 'g', 'd', 100000, '0'",
    "'TYPE', 'stream'",
    "'TYPE', 'none'",
    "'EXISTS', 'str', 'none'",
    "'TTL', 'str'",
    "'PING'",
    "'ECHO', 'x'",
    "'KEYS', 'stri*'",
    "'GETRANGE', 'str', 0, 1",
    "'XINFO', 'NOPE'",
    "'GET', 'hash'",
    "'XLEN', 'hash'",
]
SETUP = [
    "SET str value",
    "HSET hash f 1 g two",
    "RPUSH list a b c",
    "SADD set a",
    "ZADD zset 1 a 2.5 b",
    "XADD stream 1-1 a b",
    "XADD stream 2-1 a b c d",
    "XADD other 1-1 a b",
    "XGROUP CREATE stream g 0",
    "XREADGROUP GROUP g c COUNT 1 STREAMS stream >",
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "form", ["return redis.call({})", "return show(redis.pcall({}))", "return {{redis.pcall({})}}"]
)
def test_replies_of_commands_come_in_the_same(duel: Duel, version: int, form: str) -> None:
    duel.replies(SETUP)
    scripts = [f"redis.setresp({version}) " + SHOW + form.format(read) for read in READS]
    blurred = re.compile(rb":?\d{9,}|idle=number:\d+|inactive=number:-?\d+|seen-time=number:\d+")
    duel.check([["EVAL", script, 0] for script in scripts], rearrange=lambda reply: blurred.sub(b"", reply))
