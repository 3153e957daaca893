"""What a script cannot do: reach out of Lua, change what others see, take memory or time without end, crash us."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.server.support import Peer, World
from tests.support.ours import SOURCE

ROOT = Path(__file__).parents[3]


def run(peer: Peer, script: str, *words: str) -> bytes:
    return peer(["EVAL", textwrap.dedent(script), 0, *words])


def run_apart(program: str) -> None:
    """Run a program in a process of its own, which must end well."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {"PYTHONPATH": f"{SOURCE}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


# Reaching out


@pytest.mark.parametrize(
    "name",
    [
        "debug",
        "dofile",
        "getfenv",
        "io",
        "jit",
        "lfs",
        "loadfile",
        "module",
        "newproxy",
        "package",
        "print",
        "python",
        "require",
        "setfenv",
        "__builtins__",
        "host",
        "box",
    ],
)
def test_there_is_no_way_out_among_the_globals(a: Peer, name: str) -> None:
    assert b"attempted to access nonexistent global variable" in run(a, f"return {name}")
    assert run(a, f"return tostring(rawget(_G, '{name}'))") == b"$3\r\nnil\r\n"
    assert b"attempted to access nonexistent global" in run(a, f"return loadstring('return {name}')()")


def test_of_os_only_the_clock_is_there(a: Peer) -> None:
    names = run(a, "local found = {} for name in pairs(os) do found[#found + 1] = name end return found")
    assert names == b"*1\r\n$5\r\nclock\r\n"


@pytest.mark.parametrize(
    "script",
    [
        "return loadstring(string.dump(function() return 1 end))",
        "return load(function() return string.dump(function() return 1 end) end)",
        "local p = {'\\27', 'LuaQ', nil} local at = 0 return load(function() at = at + 1 return p[at] end)",
        "return loadstring('\\27Lua')",
    ],
)
def test_compiled_programs_are_not_loaded(a: Peer, script: str) -> None:
    """Lua 5.1 believes what they say: with one of them a script could read and write all memory."""
    if "load(function() return string" in script:
        script = (
            "local done = false return load(function() if not done then done = true "
            "return string.dump(function() return 1 end) end end)"
        )
    assert run(a, script) == b"$-1\r\n"
    assert b"unexpected symbol near 'char(27)'" in run(
        a, script.replace("return load", "local f, e = load") + " return e"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "redis.call('SET', 'k', 'v')",
        "redis.call('GET', 'k')",
        "redis.call('GET', 'none')",
        "redis.call('TIME')",
        "redis.pcall('NOPE')",
        "redis.call('XRANGE', 's', '-', '+')",
        "redis.call('XINFO', 'STREAM', 's', 'FULL')",
        "redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')",
        "redis.call('INFO')",
        "redis.call('COMMAND')",
        "{pcall(redis.call, 'NOPE')}",
        "{pcall(redis.call, {})}",
        "{pcall(cjson.decode, '{')}",
        "{xpcall(function() redis.call('NOPE') end, function(e) return e end)}",
        "{coroutine.resume(coroutine.create(function() redis.call('NOPE') end))}",
        "redis.sha1hex('x')",
        "{pcall(string.rep, 'x', 3e8)}",
        "{pcall(redis.log)}",
        "{loadstring('x x')}",
        "KEYS",
        "ARGV",
        "redis",
        "_G",
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_nothing_of_python_is_handed_over(a: Peer, expression: str, version: int) -> None:
    a("XADD s 1-1 a b")
    a("ZADD z 1.5 a")
    script = """
        local seen = {}
        local function walk(value)
            if type(value) == 'userdata' and value ~= cjson.null then error('found one') end
            if type(value) ~= 'table' or seen[value] then return end
            seen[value] = true
            for key, item in pairs(value) do walk(key) walk(item) end
            walk(getmetatable(value))
        end
        redis.setresp(VERSION)
        walk(EXPRESSION)
        return 'clean'
    """
    assert run(a, script.replace("EXPRESSION", expression).replace("VERSION", str(version))) == b"$5\r\nclean\r\n"


def test_the_null_of_json_can_be_compared_and_nothing_else(a: Peer) -> None:
    for use in ("cjson.null.x", "cjson.null.x()", "cjson.null()", "#cjson.null", "cjson.null.__class__"):
        assert run(a, f"return {use}").startswith(b"-ERR user_script:1: attempt to")
    assert run(a, "return tostring(getmetatable(cjson.null))") == b"$3\r\nnil\r\n"
    assert b"table expected, got userdata" in run(a, "setmetatable(cjson.null, {})")


# Changing what others see

ATTACKS = [
    "string.upper = EVIL",
    "redis.call = EVIL",
    "_G.redis = {call = EVIL}",
    "redis = {}",
    "tostring = EVIL",
    "rawset(string, 'upper', EVIL)",
    "rawset(redis, 'call', EVIL)",
    "rawset(_G, 'redis', {})",
    "setmetatable(_G, {__index = EVIL})",
    "setmetatable(redis, {__index = EVIL})",
    "setmetatable(string, nil)",
    "getmetatable('').__index = EVIL",
    "getmetatable('').upper = EVIL",
    "rawset(getmetatable(''), '__index', EVIL)",
    "setmetatable(getmetatable(''), {})",
    "getmetatable(_G).__index = EVIL",
    "getmetatable(_G).__newindex = nil",
    "rawset(getmetatable(_G), '__index', EVIL)",
    "table.insert(redis, EVIL)",
    "table.insert(_G, 1, EVIL)",
    "local _, t = pairs(redis) t.call = EVIL",
    "local _, t = pairs(_G) t.redis = EVIL t.string = nil",
    "local _, t = pairs(string) t.upper = EVIL",
    "for k, v in pairs(cjson) do cjson[k] = EVIL end",
    "KEYS = EVIL",
    "ARGV = nil",
    "math.pi = 3",
    "table.sort(redis, EVIL)",
    "table.remove(redis)",
    "_VERSION = 'x'",
    "loadstring('redis = EVIL')()",
    "coroutine.wrap(function() redis.call = EVIL end)()",
    "os.clock = EVIL",
    "cjson.null = 1",
    "bit.band = EVIL",
    "cmsgpack.pack = EVIL",
    "struct.pack = EVIL",
    "coroutine.wrap = EVIL",
    "redis.REPL_ALL = 0",
    "__redis__err__handler = EVIL",
    "next(_G)",
    "table.foreach(redis, function(k) redis[k] = 1 end)",
    "cjson.decode_array_with_array_mt(true) getmetatable(cjson.decode('[]')).__index = EVIL",
    "cjson.decode_array_with_array_mt(true) rawset(getmetatable(cjson.decode('[]')), '__index', EVIL)",
    "string.gsub('x', 'x', function() string.upper = EVIL end)",
    "_G['string']['upper'] = EVIL",
]
PROBE = """
    local parts = {}
    local names = {}
    for name, value in pairs(_G) do names[#names + 1] = name .. ':' .. type(value) end
    table.sort(names)
    parts[1] = table.concat(names, ' ')
    parts[2] = ('abc'):upper() .. string.upper('x') .. tostring(1) .. math.floor(1.5) .. bit.band(7, 3)
    parts[3] = redis.call('ECHO', 'x') .. cjson.encode({1, 2}) .. cmsgpack.unpack(cmsgpack.pack('y'))
    parts[4] = type(KEYS) .. type(ARGV) .. #cjson.decode('[1]') .. tostring(cjson.decode('[]')[1]) .. redis.REPL_ALL
    parts[5] = tostring(cjson.null) .. struct.size('i') .. type(os.clock()) .. _VERSION .. math.pi
    parts[6] = type(coroutine.create(function() end)) .. tostring(getmetatable('').__index == string)
    return table.concat(parts, '|')
"""


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_script_changes_nothing_for_the_next_one(world: World, a: Peer, attack: str) -> None:
    before = run(a, PROBE)
    assert before.startswith(b"$")
    evil = "(function() return 'evil' end)"
    run(a, f"pcall(function() {attack.replace('EVIL', evil)} end)")
    run(a, attack.replace("EVIL", evil))
    run(a, "cjson.decode_array_with_array_mt(false)")
    assert run(a, PROBE) == before


def test_libraries_do_not_see_each_other_nor_scripts(a: Peer) -> None:
    load = "#!lua name={0}\nlocal secret = '{0}'\nredis.register_function('get_{0}', function() return secret end)"
    for name in ("one", "two"):
        a(["FUNCTION", "LOAD", load.format(name)])
    assert a("FCALL get_one 0") == b"$3\r\none\r\n"
    assert b"nonexistent global variable 'secret'" in run(a, "return secret")
    assert b"nonexistent global variable 'get_one'" in run(a, "return get_one")


# Memory


@pytest.fixture
def small() -> Peer:
    """A connection to a hub whose scripts have 8 MB."""
    world = World()
    world.hub.runner.memory_limit = 8 << 20
    return world.peer()


BOMBS = [
    "return string.rep('x', 1e9)",
    "local t = {} for i = 1, 1e9 do t[i] = i end",
    "local s = 'x' while true do s = s .. s end",
    "local s = ('x'):rep(1e5) return #s:gsub('x', s)",
    "local t = {} for i = 1, 1e5 do t[i] = i .. ('x'):rep(1e4) end",
    "local t = {('x'):rep(1e6), 1} for i = 1, 1e4 do t[i] = t[1] end return table.concat(t)",
    "local t = {} while true do t = {t} end",
    "local t = {} while true do t[#t + 1] = function() return t end end",
    "local t = {} while true do t[#t + 1] = coroutine.create(function() end) end",
    "local function f(...) return f(1, ...) end return f()",
    "local t = {} while true do t[#t + 1] = #t .. 'key' end",
    "while true do loadstring('return ' .. ('1,'):rep(1e6) .. '1') end",
    "return cjson.encode(('\\1'):rep(2e6))",
    "local t = {} for i = 1, 1e4 do t[i] = redis.call('GET', 'big') .. i end",
    "local t = {} for i = 1, 1e4 do t[i] = redis.call('LRANGE', 'list', 0, -1) end",
    "collectgarbage('stop') local s for i = 1, 1e9 do s = ('x'):rep(1e4) .. i end",
    "local t = {} for i = 1, 1e9 do t[i] = redis.sha1hex(i) end",
    "return unpack({}, 1, 7e3), ('x'):rep(1e8)",
    "local t = {} for i = 1, 1e9 do t[i] = {redis.pcall('NOPE')} end",
    "return cmsgpack.unpack('\\221\\127\\255\\255\\255' .. ('\\1'):rep(1e6))",
    "return struct.pack(('c1000000'):rep(100), ('x'):rep(1e6))",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_has_an_end_and_the_next_script_has_it_again(small: Peer, bomb: str) -> None:
    small(["SET", "big", "x" * 100_000])
    small(["RPUSH", "list", *["x" * 100] * 1000])
    if "collectgarbage" in bomb:  # the collector was not stopped: there is no end but time
        bomb = bomb.replace("1e9", "3e3")
        assert run(small, bomb) == b"$-1\r\n"
    else:
        assert run(small, bomb).startswith(b"-ERR ")
    assert run(small, "return #string.rep('x', 2e6)") == b":2000000\r\n"
    assert run(small, "return redis.call('ECHO', 'alive')") == b"$5\r\nalive\r\n"


def test_a_script_can_catch_that_memory_is_used_up(small: Peer) -> None:
    assert run(small, "local ok, e = pcall(string.rep, 'x', 1e9) return e") == b"$17\r\nnot enough memory\r\n"


def test_a_large_reply_is_an_error_of_the_script_and_not_of_the_server(small: Peer) -> None:
    small(["SET", "big", "x" * 20_000_000])
    assert run(small, "local s = redis.call('GET', 'big') return #(s .. 'x')") == b"-ERR not enough memory\r\n"
    assert run(small, "return redis.call('STRLEN', 'big')") == b":20000000\r\n"


# Time


@pytest.fixture
def hasty() -> Peer:
    """A connection to a hub whose scripts have 40 ms."""
    return World(busy_reply_threshold="20").peer()


LOOPS = [
    "while true do end",
    "while true do pcall(function() while true do end end) end",
    "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "local function f() while true do end end while true do coroutine.resume(coroutine.create(f)) end",
    "coroutine.wrap(function() while true do coroutine.wrap(function() while true do end end)() end end)()",
    "while true do redis.call('ECHO', 'x') end",
    "while true do pcall(redis.call, 'NOPE') end",
    "repeat until false",
    "local t = setmetatable({}, {__index = function(t, k) while true do end end}) while true do pcall(function() return t.x end) end",
    "table.sort({1, 2, 3}, function() while true do end end)",
    "for i = 1, 1e12 do end",
    "string.gsub('x', 'x', function() while true do end end)",
    "load(function() return ' ' end)",
    "while true do cjson.encode({1, 2, 3}) end",
    "while true do loadstring('return 1')() end",
]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_script_that_only_reads_is_stopped_whatever_it_catches(hasty: Peer, loop: str) -> None:
    assert run(hasty, loop).startswith(b"-ERR Script stopped")
    assert run(hasty, "return 1") == b":1\r\n"
    assert run(hasty, "for i = 1, 1e5 do end return 2") == b":2\r\n"


def test_a_script_that_has_written_goes_on(hasty: Peer) -> None:
    script = """
        redis.call('SET', 'k', 'v')
        local start = os.clock()
        while os.clock() - start < 0.1 do end
        return redis.call('INCR', 'n')
    """
    assert run(hasty, script) == b":1\r\n"


def test_a_function_is_stopped_too_and_a_library_has_half_a_second_to_load(hasty: Peer) -> None:
    hasty(["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() while true do end end)"])
    assert hasty("FCALL f 0").startswith(b"-ERR Script stopped")
    reply = hasty(["FUNCTION", "LOAD", "#!lua name=m\nwhile true do end"])
    assert reply == b"-ERR Error registering functions: ERR FUNCTION LOAD timeout\r\n"
    assert hasty("FCALL f 0").startswith(b"-ERR Script stopped")


# Crashing

CRASHERS = {
    "a pattern that recurses in C": """
        local p = ('a?'):rep(300000)
        for _, f in ipairs({string.find, string.match, string.gmatch, string.gsub, string.gfind}) do
            assert(not pcall(f, ('a'):rep(300000), p, ''))
        end
        assert(not pcall(function() return ('a'):rep(300000):find(p) end))
        assert(not pcall(string.find, 'a', ('('):rep(300000)))
    """,
    "a call with too few arguments for a function with many (CVE-2014-5461)": """
        local names = {}
        for i = 1, 100 do names[i] = 'p' .. i end
        local text = 'local function f(' .. table.concat(names, ',') .. ',...) local a, b = 1 return select("#", ...) end return f'
        local f = loadstring(text)()
        local function deep(n) if n == 0 then return f() end return 1 + deep(n - 1) end
        for i = 1, 300 do
            deep(i)
            local t = {}
            for j = 1, i do t[j] = {} end
        end
    """,
    "recursion in Lua": "local function f() return 1 + f() end f()",
    "recursion through C": "local function f() string.gsub('a', 'a', f) end f()",
    "recursion through pcall": "local function f() pcall(f) error('x') end f()",
    "recursion through coroutines": "local function f() coroutine.wrap(f)() end f()",
    "recursion through metatables": "local t = {} setmetatable(t, {__index = t}) return t.x",
    "recursion in an error handler": "local function h() error('x') end xpcall(function() error('y') end, h)",
    "deep JSON": "cjson.decode_max_depth(1e6) cjson.decode(('['):rep(1e5))",
    "deep MessagePack": "cmsgpack.unpack(('\\145'):rep(1e5) .. '\\1')",
    "a deep table": "local t = {} for i = 1, 1e5 do t = {t} end cjson.encode_max_depth(1e6) pcall(cjson.encode, t) return t",
    "deep parentheses": "return loadstring(('('):rep(1e5))",
    "a sort that lies": "local t = {} for i = 1, 1000 do t[i] = i end table.sort(t, function() return true end)",
    "long formats": "string.format(('%99.99f'):rep(1000), 1e308)",
    "yielding where it cannot be": "table.sort({1, 2}, coroutine.yield)",
    "resuming the dead and oneself": """
        local co co = coroutine.create(function() return coroutine.resume(co) end)
        coroutine.resume(co) coroutine.resume(co) coroutine.wrap(function() coroutine.yield(coroutine.running()) end)()
    """,
}


def test_what_would_crash_lua_is_an_error_or_nothing() -> None:
    """In a process of their own: one that succeeds would take the test run with it."""
    program = """
        import sys
        from tests.server.support import World
        from tests.server.scripting.test_sandbox import CRASHERS
        peer = World().peer()
        for name, script in CRASHERS.items():
            print(name, file=sys.stderr, flush=True)
            reply = peer(["EVAL", script, 0])
            assert reply[:1] in b"-*$:", reply
            assert peer(["EVAL", "return 'alive'", 0]) == b"$5\\r\\nalive\\r\\n"
    """
    run_apart(program)


def test_running_out_of_memory_at_any_point_leaves_everything_whole() -> None:
    """The limit is met while Python and Lua call each other, at a different place each time."""
    program = """
        from tests.server.support import World
        world = World()
        world.hub.runner.memory_limit = 600_000
        peer = world.peer()
        peer(["SET", "big", "x" * 5000])
        peer(["RPUSH", "list", *["y" * 50] * 50])
        script = '''
            local held = {}
            for i = 1, tonumber(ARGV[1]) do held[i] = ('x'):rep(1000) .. i end
            local function all()
                redis.call('GET', 'big') redis.call('LRANGE', 'list', 0, -1) redis.pcall('NOPE') redis.sha1hex('x')
                cjson.encode(held) cjson.decode('[[1,2,{"a":"b"}]]') cmsgpack.unpack(cmsgpack.pack(held))
                loadstring('return ' .. #held)() coroutine.wrap(function() redis.call('GET', 'big') end)()
                redis.call('MGET', unpack(held)) redis.setresp(3) redis.call('CONFIG', 'GET', 'x')
            end
            for i = 1, 20 do pcall(all) held[#held + 1] = ('y'):rep(100 * i) .. i end
            return #held
        '''
        for held in range(0, 300, 5):
            peer(["EVAL", script, 0, held])
            assert peer(["EVAL", "return 'alive'", 0]) == b"$5\\r\\nalive\\r\\n", held
    """
    run_apart(program)


def test_unpacking_more_than_can_be_counted_is_an_error() -> None:
    """Lua 5.1 counts results in 32 bits, and wrote over its own memory when they overflowed."""
    run_apart(
        """
        from millstream.server.core.hub import Hub
        from tests.server.support import Peer

        peer = Peer(Hub())
        for first, last in ((-2, 2147483647), (0, 2147483647), (-2147483648, -2), (1, 1e300), (-1e300, 1)):
            reply = peer(["EVAL", f"return {{unpack({{1, 2, 3}}, {first}, {last})}}", 0])
            assert b"too many results to unpack" in reply, (first, last, reply)
        assert peer(["EVAL", "return {unpack({1, 2, 3}, 2, 3)}", 0]) == b"*2\\r\\n:2\\r\\n:3\\r\\n"
        assert peer(["EVAL", "return select('#', unpack({}, -2147483648, -2147483646))", 0]) == b":3\\r\\n"
        """
    )
