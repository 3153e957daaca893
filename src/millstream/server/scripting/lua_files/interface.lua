-- The interface `redis`.

local box = ...
local host, fail, copy = box.host, box.fail, box.copy
local guard, perform, failure = host.guard, host.perform, host.failure
local error, next, select, tonumber, tostring, type = error, next, select, tonumber, tostring, type
local concat, find, sub = table.concat, string.find, string.sub

local MANY = 32 -- words; more go to Python as one string

box.version = 2 -- of the protocol in which a script gets replies

-- Many words go to Python as one string: their lengths, then all of them.
local function perform_packed(words)
    local sizes = {}
    for at = 1, #words do
        local word = words[at]
        if type(word) == "number" then
            words[at] = host.number_text(word)
        end
        sizes[at] = #words[at]
    end
    return host.perform_packed(concat(sizes, " ") .. "\n" .. concat(words))
end

local function check_words(...)
    local count = select("#", ...)
    if count == 0 then
        return "ERR Please specify at least one argument for this redis lib call"
    end
    local words = {...}
    for at = 1, count do
        local kind = type(words[at])
        if kind ~= "string" and kind ~= "number" then
            return "ERR Lua redis lib command arguments must be strings or integers"
        end
    end
    return nil, words, count
end

-- Run a command: its reply, or nil and the error as a table.
local function send(...)
    local problem, words, count = check_words(...)
    if not problem then
        local reply
        if count > MANY then
            reply = perform_packed(words)
        else
            reply = perform(...)
        end
        guard()
        if reply ~= nil then
            return reply
        end
        problem = failure()
        guard()
        if not problem then
            return nil
        end
    end
    return nil, {err = problem, ignore_error_stats_update = true}
end

local redis = {
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
}

function redis.call(...)
    local reply, problem = send(...)
    if problem then
        error(problem)
    end
    return reply
end

function redis.pcall(...)
    local reply, problem = send(...)
    return problem or reply
end

local function one_text(...)
    return select("#", ...) == 1 and type((...)) == "string"
end

function redis.error_reply(...)
    if not one_text(...) then
        return {err = "ERR wrong number or type of arguments"}
    end
    local text = ...
    if sub(text, 1, 1) == "-" then
        text = sub(text, 2)
    end
    return {err = find(text, " ", 1, true) and text or "ERR " .. text}
end

function redis.status_reply(...)
    if not one_text(...) then
        return {err = "ERR wrong number or type of arguments"}
    end
    return {ok = (...)}
end

function redis.sha1hex(...)
    if select("#", ...) ~= 1 then
        fail("wrong number of arguments")
    end
    local text = ...
    return host.sha1((type(text) == "string" or type(text) == "number") and tostring(text) or "")
end

function redis.log(...)
    local count, level = select("#", ...), (...)
    if count < 2 then
        fail("redis.log() requires two arguments or more.")
    elseif type(level) ~= "number" then
        fail("First argument must be a number (log level).")
    elseif level < 0 or level > 3 then
        fail("Invalid log level.")
    end
    local words = {}
    for _, word in next, {select(2, ...)} do
        if type(word) == "string" or type(word) == "number" then
            words[#words + 1] = word
        end
    end
    host.log(level, concat(words, " "))
end

function redis.setresp(...)
    if select("#", ...) ~= 1 then
        fail("redis.setresp() requires one argument.")
    end
    local wanted = tonumber((...))
    if wanted ~= 2 and wanted ~= 3 then
        fail("RESP version must be 2 or 3.")
    end
    box.version = wanted
    host.set_version(wanted)
end

function redis.set_repl(...)
    if select("#", ...) ~= 1 then
        fail("redis.set_repl() requires one argument.")
    end
    local flags = tonumber((...)) or 0
    if flags < 0 or flags > 3 then
        fail("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
    end
end

function redis.acl_check_cmd(...)
    local problem, words = check_words(...)
    if problem then
        error({err = problem})
    end
    local sizes = {}
    for at = 1, #words do
        words[at] = tostring(words[at])
        sizes[at] = #words[at]
    end
    local may = host.allowed(concat(sizes, " ") .. "\n" .. concat(words))
    if may == 1 then
        return true
    elseif may == 0 then
        return false
    end
    fail(may == -1 and "Invalid command passed to redis.acl_check_cmd()" or "Wrong number of args for redis.acl_check_cmd()")
end

redis.REDIS_VERSION, redis.REDIS_VERSION_NUM = box.redis_version, box.redis_version_number
box.library_interface = copy(redis)

-- What only scripts have.

function redis.replicate_commands()
    return true
end

function redis.breakpoint()
    return false
end

function redis.debug()
end

box.script_interface = redis
