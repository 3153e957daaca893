-- What the other files stand on: Python's functions, errors that know their place, protected tables, the watch.
--
-- Python runs the files of this folder in order, each with the same table `box`, into which it puts what later ones
-- need. Together they make the world a script sees: Redis's globals, read-only, and nothing of this process. Scripts
-- never see a Python object: what Python gives is wrapped in Lua, and only strings, numbers, booleans and tables go
-- through. All files are compiled without tail calls (see bytecode.py), and errors that arise in them are told at the
-- line of the script that called (`located`), as those of C functions are.
--
-- Memory is limited while a script runs and not while Python does: an allocation that fails inside Python's half of a
-- call would tear it down. So each function of Python lifts the limit first, and the Lua that called it calls `guard`
-- next, which puts it back.

local box = ...
local host, as_function = {}, python.as_function
for _, name in next, {"guard", "lift", "tick", "perform", "perform_packed", "failure", "double_text"} do
    host[name] = as_function(box.functions[name])
end
local guard = host.guard

-- What is not called often puts the limit back by itself.
for _, name in next, {"allowed", "log", "number_text", "register", "relink", "set_version", "sha1"} do
    local called = as_function(box.functions[name])
    host[name] = function(...)
        local result = called(...)
        guard()
        return result
    end
end
box.functions, box.host = nil, host

local error, select, type, unpack, xpcall = error, select, type, unpack, xpcall
local next, rawset, tostring, tonumber = next, rawset, tostring, tonumber
local getmetatable, setmetatable = getmetatable, setmetatable
local getinfo, sethook = debug.getinfo, debug.sethook
local format, match = string.format, string.match

local OURS = "=[millstream]"
local PREFIX = "^%[millstream%]:%d+: (.*)$"
local INTERVAL = 25000 -- instructions between two looks at the clock
local MAX_LEVEL = 4000 -- finding a frame takes as long as it is deep
local PAD = "\1pad" -- see bytecode.py

-- Errors

-- The first frame from `level` on that is not ours (in a thread: from its top), its level, and whether frames of
-- ours were passed. The C function that one of ours was in when it failed is passed with it.
local function foreign(level, thread)
    local function frame(at)
        if thread then
            return getinfo(thread, at, "Slf")
        end
        return getinfo(at + 2, "Slf") -- above this function and the one around it
    end
    local passed = false
    while true do
        local info = frame(level)
        if not info or info.func == xpcall or level > MAX_LEVEL then -- what called it is C, or nobody knows
            return nil, level, passed
        elseif info.source == OURS then
            passed = true
        else
            local below = info.what == "C" and frame(level + 1)
            if not below or below.source ~= OURS then
                return info, level, passed
            end
        end
        level = level + 1
    end
end

-- An error as if C had raised it: where it names a line of ours, the line that called us, if that is Lua.
local function located(err, level, thread)
    local text = type(err) == "string" and match(err, PREFIX)
    if not text then
        return err
    end
    local info = foreign(thread and 0 or level + 1, thread)
    if info and info.currentline > 0 then
        return info.short_src .. ":" .. info.currentline .. ": " .. text
    end
    return text
end

local function at_raise(err)
    return located(err, 2)
end

-- Stands for null in JSON. Lua has no other value of its kind.
local null = newproxy(true)
getmetatable(null).__tostring = function()
    return "userdata: (nil)"
end

-- A Python exception: it ends the script, whatever that has to say.
local function is_fatal(err)
    return type(err) == "userdata" and err ~= null
end

-- What becomes of an error that nobody caught: a table with its text and its place.
local function uncaught(err)
    if is_fatal(err) then
        return err
    end
    local info, level, passed = foreign(2)
    if info and not passed and info.what == "C" then
        info = getinfo(level + 1, "Sl")
    end
    err = located(err, 2)
    if type(err) ~= "table" then
        err = {err = "ERR " .. tostring(err)}
    end
    if info then
        rawset(err, "source", info.source)
        rawset(err, "line", info.currentline)
    end
    return err
end

-- An error of the interface: a table, as those of commands, without a line in its text.
local function fail(text)
    error({err = "ERR " .. text})
end

local function bad_argument(at, name, problem)
    error(format("bad argument #%d to '%s' (%s)", at, name, problem))
end

-- `value` as a string, where C would have taken it for one.
local function text_argument(name, at, count, value)
    if type(value) == "string" or type(value) == "number" then
        return tostring(value)
    end
    bad_argument(at, name, "string expected, got " .. (at > count and "no value" or type(value)))
end

local function number_argument(name, at, count, value)
    local number = tonumber(value)
    if number and (type(value) == "number" or type(value) == "string") then
        return number
    end
    bad_argument(at, name, "number expected, got " .. (at > count and "no value" or type(value)))
end

-- Protected tables

local READONLY = "Attempt to modify a readonly table"
local real_of = {} -- what is behind a protected table
local hidden = {[null] = true} -- has a metatable that nobody may have
local visible = {} -- what is given instead

local function copy(real)
    local result = {}
    for key, value in next, real do
        result[key] = value
    end
    return result
end

local function refuse()
    error(READONLY)
end

-- A table that is read through and cannot be written.
local function protect(real, metatable)
    local proxy = setmetatable({}, {__index = real, __newindex = refuse})
    real_of[proxy] = real
    hidden[proxy] = true
    visible[proxy] = metatable
    return proxy
end

-- At least so many values, see bytecode.py.
local function pad(count, ...)
    if select("#", ...) >= count then
        return ...
    end
    return unpack({...}, 1, count)
end

-- The same for globals: reading what is not there is an error. The second result changes what is read.
local function protect_globals(real)
    local function missing(_, name)
        if name == PAD then
            return pad
        end
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'")
    end
    local function strict(names)
        return setmetatable(names, {__index = missing})
    end
    local proxy = protect(strict(real), protect({__index = missing}))
    local metatable = getmetatable(proxy)
    return proxy, function(names)
        metatable.__index = names and strict(names) or real
    end
end

-- Stopping a script

local is_running = false
local stopped -- why, once the script must end
local too_long -- what to say when time is up

local function watch()
    if not is_running or stopped and getinfo(2, "S").source == OURS then
        return
    end
    if not stopped then
        local verdict = host.tick() -- false, true, or why it must end
        guard()
        if not verdict then
            return
        end
        stopped = verdict == true and too_long or verdict
    end
    sethook(watch, "l") -- a script that catches this is stopped again at its next line
    error({err = "ERR " .. stopped})
end

-- The error that a script has caught, unless it may not.
local function caught(err)
    if stopped then
        error({err = "ERR " .. stopped})
    elseif is_fatal(err) then
        error(err)
    end
    return err
end

-- Begin to watch what runs from here on; what it is told when it takes too long.
function box.start(message)
    is_running, stopped, too_long = true, nil, message
    sethook(watch, "", INTERVAL)
    guard()
end

function box.stop()
    is_running = false
    host.lift()
end

function box.is_stopped()
    return stopped ~= nil
end

-- The thread of a coroutine is watched like the main one.
function box.watch_thread()
    sethook(watch, "", INTERVAL)
end

box.OURS, box.READONLY, box.null = OURS, READONLY, null
box.located, box.at_raise, box.uncaught, box.is_fatal, box.caught = located, at_raise, uncaught, is_fatal, caught
box.fail, box.bad_argument, box.text_argument, box.number_argument = fail, bad_argument, text_argument, number_argument
box.real_of, box.hidden, box.visible = real_of, hidden, visible
box.copy, box.protect, box.protect_globals = copy, protect, protect_globals
