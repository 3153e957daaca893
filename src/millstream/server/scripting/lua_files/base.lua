-- Lua's own functions, where those of Redis differ or these would reach too far.

local box = ...
local located, at_raise, caught, is_fatal = box.located, box.at_raise, box.caught, box.is_fatal
local bad_argument, number_argument, copy, real_of = box.bad_argument, box.number_argument, box.copy, box.real_of
local hidden, visible, is_stopped, watch_thread = box.hidden, box.visible, box.is_stopped, box.watch_thread
local READONLY = box.READONLY
local error, pcall, xpcall, select, type, unpack = error, pcall, xpcall, select, type, unpack
local next, pairs, rawget, rawset, tonumber = next, pairs, rawget, rawset, tonumber
local getmetatable, setmetatable, getinfo = getmetatable, setmetatable, debug.getinfo
local collectgarbage, floor, insert = collectgarbage, math.floor, table.insert
local find, gfind, gmatch, gsub, match = string.find, string.gfind, string.gmatch, string.gsub, string.match
local create, resume = coroutine.create, coroutine.resume

local MAX_REPEATS = 1000 -- in a pattern
local MAX_INT = 2147483647

local base, strings, tables, routines, maths = {}, copy(string), copy(table), copy(coroutine), copy(math)

for _, name in next, {
    "assert", "error", "gcinfo", "ipairs", "rawequal", "select", "tonumber", "tostring", "type", "_VERSION",
} do
    base[name] = _G[name]
end

function base.next(...)
    local real = real_of[(...)]
    if real then
        return next(real, (select(2, ...)))
    end
    return next(...)
end

function base.pairs(...)
    local real = real_of[(...)]
    if real then
        return next, copy(real), nil
    end
    return pairs(...)
end

function base.rawget(...)
    local real = real_of[(...)]
    if real then
        return rawget(real, (select(2, ...)))
    end
    return rawget(...)
end

function base.rawset(...)
    if real_of[(...)] then
        error(READONLY, 0)
    end
    return rawset(...)
end

function base.getmetatable(...)
    local object = ...
    if hidden[object] then
        return visible[object]
    end
    return getmetatable(...)
end

function base.setmetatable(...)
    if real_of[(...)] then
        error(READONLY, 0)
    end
    return setmetatable(...)
end

function tables.insert(...)
    if real_of[(...)] then
        error(READONLY, 0)
    end
    return insert(...)
end

-- Lua 5.1 counts the results in 32 bits: with a range that overflows them it would write over its own memory.
function base.unpack(...)
    local first, last = tonumber((select(2, ...))) or 1, tonumber((select(3, ...))) or 0
    if last - first >= MAX_INT or first < -MAX_INT - 1 or first > MAX_INT or last < -MAX_INT - 1 or last > MAX_INT then
        error("too many results to unpack")
    end
    return unpack(...)
end

-- Redis gives the text of an error for the table.
local function unwrapped(ok, ...)
    if ok then
        return true, ...
    end
    local err = caught((...))
    local text = type(err) == "table" and err.err
    if type(text) == "string" or type(text) == "number" then
        return false, text
    end
    return false, err
end

function base.pcall(...)
    local count, given = select("#", ...), {...}
    if count == 0 then
        return false, "attempt to call a boolean value"
    elseif type(given[1]) ~= "function" then
        return unwrapped(pcall(...))
    end
    local function called()
        return given[1](unpack(given, 2, count))
    end
    return unwrapped(xpcall(called, at_raise))
end

local function checked(ok, ...)
    if not ok then
        caught((...))
    end
    return ok, ...
end

function base.xpcall(...)
    local called, handler = ...
    if select("#", ...) < 2 then
        bad_argument(2, "xpcall", "value expected")
    end
    return checked(xpcall(called, function(err)
        if is_stopped() or is_fatal(err) then
            return err
        end
        return handler(located(err, 2))
    end))
end

local function watched(name, called)
    if type(called) ~= "function" or getinfo(called, "S").what == "C" then
        bad_argument(1, name, "Lua function expected")
    end
    return function(...)
        watch_thread()
        return called(...)
    end
end

function routines.create(...)
    return create(watched("create", (...)))
end

local function resumed(thread, ok, ...)
    if not ok then
        return false, caught(located((...), 0, thread))
    end
    return true, ...
end

function routines.resume(...)
    return resumed((...), resume(...))
end

local function continued(ok, ...)
    if not ok then
        error((...))
    end
    return ...
end

function routines.wrap(...)
    local thread = create(watched("wrap", (...)))
    return function(...)
        return continued(resumed(thread, resume(thread, ...)))
    end
end

-- All scripts share the collector: they may run it, and believe that they set it.
local collector = {setpause = 200, setstepmul = 200}

function base.collectgarbage(...)
    local option, value = ...
    if option == "stop" or option == "restart" then
        return 0
    elseif option ~= nil and collector[option] then
        local before = collector[option]
        collector[option] = tonumber(value) or 0
        return before
    end
    return collectgarbage(...)
end

-- C recurses for each of these signs in a pattern: with many thousands it would run out of stack.
local function check_pattern(_, pattern)
    if type(pattern) == "string" and #pattern > MAX_REPEATS then
        local _, count = gsub(pattern, "[%*%+%-%?%(%)]", "")
        if count > MAX_REPEATS then
            error("pattern too complex")
        end
    end
end

function strings.find(...)
    check_pattern(...)
    return find(...)
end

function strings.match(...)
    check_pattern(...)
    return match(...)
end

function strings.gmatch(...)
    check_pattern(...)
    return gmatch(...)
end

function strings.gfind(...)
    check_pattern(...)
    return gfind(...)
end

function strings.gsub(...)
    check_pattern(...)
    return gsub(...)
end

-- C's lrand48, which Redis has for math.random: 48 bits in two halves, for a double cannot hold their products.
local high, low = 0x1234AB, 0xCD330E

local function draw()
    local product = low * 0xECE66D + 11
    high = (high * 0xECE66D + low * 0x5DE + floor(product / 16777216)) % 16777216
    low = product % 16777216
    return (high * 128 + floor(low / 131072)) % 2147483647 / 2147483647
end

local function whole(name, at, count, value)
    local number = number_argument(name, at, count, value)
    return number < 0 and -floor(-number) or floor(number)
end

function maths.random(...)
    local count = select("#", ...)
    local drawn = draw()
    if count == 0 then
        return drawn
    elseif count == 1 then
        local last = whole("random", 1, count, (...))
        if last < 1 then
            bad_argument(1, "random", "interval is empty")
        end
        return floor(drawn * last) + 1
    elseif count == 2 then
        local first = whole("random", 1, count, (...))
        local last = whole("random", 2, count, (select(2, ...)))
        if first > last then
            bad_argument(2, "random", "interval is empty")
        end
        return floor(drawn * (last - first + 1)) + first
    end
    error("wrong number of arguments")
end

function maths.randomseed(...)
    local seed = whole("randomseed", 1, select("#", ...), (...)) % 4294967296
    high, low = floor(seed / 256), seed % 256 * 65536 + 0x330E
end

base.string, base.table, base.math, base.coroutine = strings, tables, maths, routines
base.os = {clock = os.clock}
box.base, box.strings = base, strings
