-- Running scripts and functions, and loading libraries: what Python calls, collected in the table that is returned.

local box = ...
local host, guard, lift, start, stop = box.host, box.host.guard, box.host.lift, box.start, box.stop
local compile, loaders, converted, ERROR = box.compile, box.loaders, box.converted, box.ERROR
local error_line = box.error_line
local copy, fail, is_fatal, protect, uncaught = box.copy, box.fail, box.is_fatal, box.protect, box.uncaught
local protect_globals, base = box.protect_globals, box.base
local error, getmetatable, next, rawget, select = error, getmetatable, next, rawget, select
local pcall, tostring, type, xpcall = pcall, tostring, type, xpcall
local concat, match = table.concat, string.match

local TOO_LONG = "Script stopped: it ran longer than it may, and had not written anything."

for name, value in next, base do
    if type(value) == "table" then
        base[name] = protect(value)
    end
end
local string_metatable = getmetatable("")
string_metatable.__index = box.strings
string_metatable.__metatable = protect({__index = base.string})

-- Globals of their own for scripts and for libraries.
local function globals(interface, names)
    for name, value in next, base do
        names[name] = value
    end
    names.redis = protect(interface)
    local proxy, switch = protect_globals(names)
    names._G = proxy
    names.loadstring, names.load = loaders(proxy)
    return proxy, switch
end

local script_names = {__redis__err__handler = uncaught}
local script_globals = globals(box.script_interface, script_names)
local library_globals, switch_globals = globals(box.library_interface, {})

local scripts, libraries = {}, {} -- by hash; by number, and then by name
local loading -- the functions of the library that is being loaded, by name
local load_names -- what there is while a library is loaded
local api = {}

local function raised(err)
    if is_fatal(err) then
        error(err)
    elseif type(err) ~= "table" then
        err = {err = "ERR " .. tostring(err)}
    end
    local text, source, line = rawget(err, "err"), rawget(err, "source"), rawget(err, "line")
    if type(text) ~= "string" then
        text = "ERR unknown error"
    end
    text = error_line(text)
    local known = rawget(err, "ignore_error_stats_update") ~= nil
    if type(source) == "string" and line ~= nil then
        return ERROR, text, known, source .. ":" .. tostring(line)
    end
    return ERROR, text, known
end

local function ended(protocol, ok, ...)
    if not ok then
        stop()
        return raised((...))
    end
    local is_converted, kind, value, third = pcall(converted, (...), protocol) -- within the limits of the script
    stop()
    if not is_converted then
        return raised(kind)
    end
    return kind, value, third
end

-- Compile a script and keep it; the problem, if there is one.
function api.compile(sha, text)
    guard()
    local chunk, problem = compile(text, "@user_script", script_globals)
    lift()
    scripts[sha] = chunk
    return problem
end

function api.forget(sha)
    scripts[sha] = nil
end

function api.run(sha, keys, arguments, protocol)
    box.version = 2
    script_names.KEYS, script_names.ARGV = keys, arguments
    start(TOO_LONG)
    return ended(protocol, xpcall(scripts[sha], uncaught))
end

function api.call(library, name, keys, arguments, protocol)
    box.version = 2
    local called = libraries[library][name]
    start(TOO_LONG)
    return ended(protocol, xpcall(function()
        return called(keys, arguments)
    end, uncaught))
end

-- Libraries

local function check_name(name)
    if not match(name, "^[%w_]+$") then
        fail("Library names can only contain letters, numbers, or underscores(_) and must be at least one character long")
    end
    return name
end

local function is_text(value)
    return type(value) == "string" or type(value) == "number"
end

local FLAGS = {
    ["no-writes"] = true, ["allow-oom"] = true, ["allow-stale"] = true, ["no-cluster"] = true,
    ["allow-cross-slot-keys"] = true,
}

local function flags_of(value)
    if type(value) ~= "table" then
        fail("flags argument to redis.register_function must be a table representing function flags")
    end
    local flags = {}
    while rawget(value, #flags + 1) ~= nil do
        local flag = rawget(value, #flags + 1)
        if not FLAGS[flag] then
            fail("unknown flag given")
        end
        flags[#flags + 1] = flag
    end
    return concat(flags, " ")
end

local function named_arguments(given)
    local name, callback, description, flags
    for key, value in next, given do
        if not is_text(key) then
            fail("named argument key given to redis.register_function is not a string")
        elseif key == "function_name" then
            if not is_text(value) then
                fail("function_name argument given to redis.register_function must be a string")
            end
            name = tostring(value)
        elseif key == "description" then
            if not is_text(value) then
                fail("description argument given to redis.register_function must be a string")
            end
            description = tostring(value)
        elseif key == "callback" then
            if type(value) ~= "function" then
                fail("callback argument given to redis.register_function must be a function")
            end
            callback = value
        elseif key == "flags" then
            flags = flags_of(value)
        else
            fail("unknown argument given to redis.register_function")
        end
    end
    if not name then
        fail("redis.register_function must get a function name argument")
    elseif not callback then
        fail("redis.register_function must get a callback argument")
    end
    return name, callback, description, flags
end

local function positional_arguments(name, callback)
    if not is_text(name) then
        fail("first argument to redis.register_function must be a string")
    elseif type(callback) ~= "function" then
        fail("second argument to redis.register_function must be a function")
    end
    return tostring(name), callback
end

local function register_function(...)
    local count = select("#", ...)
    if not loading then
        fail("redis.register_function can only be called on FUNCTION LOAD command")
    elseif count < 1 or count > 2 then
        fail("wrong number of arguments to redis.register_function")
    end
    local name, callback, description, flags
    if count == 2 then
        name, callback = positional_arguments(...)
    elseif type((...)) ~= "table" then
        fail("calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).")
    else
        name, callback, description, flags = named_arguments((...))
    end
    check_name(name)
    if loading[name] then
        fail("Function already exists in the library")
    end
    loading[name] = callback
    host.register(name, description or false, flags or "")
end

do
    local interface = {log = box.library_interface.log, register_function = register_function}
    for _, name in next, {
        "LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING", "REDIS_VERSION", "REDIS_VERSION_NUM",
    } do
        interface[name] = box.library_interface[name]
    end
    load_names = {redis = (protect_globals(interface))}
end

-- Load a library: nil, or the problem, and whether it is one of compiling.
function api.load(library, text)
    guard()
    local chunk, problem = compile(text, "@user_function", library_globals)
    lift()
    if not chunk then
        return problem, true
    end
    loading = {}
    switch_globals(load_names)
    start("FUNCTION LOAD timeout")
    local kind, message = ended(2, xpcall(chunk, uncaught))
    switch_globals(nil)
    libraries[library], loading = loading, nil
    if kind == ERROR then
        libraries[library] = nil
        return message, false
    end
end

function api.unload(library)
    libraries[library] = nil
end

-- The true globals are nobody's: nothing is left in them to be found.
for _, names in next, {package.loaded, _G} do
    for name in next, names do
        names[name] = nil
    end
end

return api
