-- What a script returns, for Python: a value it knows, or RESP in the protocol of whoever asked.

local box = ...
local double_text = box.host.double_text
local next, rawget, type = next, rawget, type
local concat, format, gsub, match, sub = table.concat, string.format, string.gsub, string.match, string.sub

local MAX_DEPTH = 7994 -- there Redis's Lua stack ends
local VALUE, STATUS, ERROR, ENCODED = 0, 1, 2, 3 -- as in lua.py

local MAX_REVISITS = 8500 -- more than any cycle has until the stack ends

local append -- (parts, value, protocol, depth)

-- Tables of the reply that is being converted: true while they are, then false, then, when they come up again, their
-- text. So a table that is in another one twice, which is in another one twice, and so on, is not converted 2^n times.
local known, revisits, stack_ends

-- Texts that C takes for a line: they end at a zero, and an error before the line ends behind it.
local function status_line(text)
    return (gsub(match(text, "^%Z*"), "[\r\n]", " "))
end

local function error_line(text)
    return (gsub(match(match(text, "^%Z*"), "^(.-)[\r\n]*$"), "[\r\n]", " "))
end

local function append_bulk(parts, text)
    parts[#parts + 1] = "$" .. #text .. "\r\n" .. text .. "\r\n"
end

local function append_entries(parts, entries, mark, per_entry, protocol, depth)
    local at, count = #parts + 1, 0
    parts[at] = ""
    for key, value in next, entries do
        count = count + 1
        append(parts, key, protocol, depth + 1)
        if per_entry == 2 then
            append(parts, value, protocol, depth + 1)
        end
    end
    parts[at] = protocol == 3 and mark .. count .. "\r\n" or "*" .. count * per_entry .. "\r\n"
end

local function append_double(parts, number, protocol)
    local text = number == 0 and 1 / number < 0 and "-0" or double_text(number)
    if protocol == 3 then
        parts[#parts + 1] = "," .. text .. "\r\n"
    else
        append_bulk(parts, text)
    end
end

local function append_verbatim(parts, verbatim, protocol)
    local text, kind = rawget(verbatim, "string"), rawget(verbatim, "format")
    if type(text) ~= "string" or type(kind) ~= "string" then
        return false
    elseif protocol == 3 then
        kind = sub(kind .. "   ", 1, 3)
        parts[#parts + 1] = "=" .. #text + 4 .. "\r\n" .. kind .. ":" .. text .. "\r\n"
    else
        append_bulk(parts, text)
    end
    return true
end

-- The tables that stand for something else than an array; whether this is one.
local function append_special(parts, value, protocol, depth)
    local function field(name, kind)
        local found = rawget(value, name)
        return type(found) == kind and found
    end
    local found = field("err", "string")
    if found then
        parts[#parts + 1] = "-" .. error_line(found) .. "\r\n"
        return true
    end
    found = field("ok", "string")
    if found then
        parts[#parts + 1] = "+" .. status_line(found) .. "\r\n"
        return true
    end
    found = field("double", "number")
    if found then
        append_double(parts, found, protocol)
        return true
    end
    found = field("map", "table")
    if found then
        append_entries(parts, found, "%", 2, protocol, depth)
        return true
    end
    found = field("set", "table")
    if found then
        append_entries(parts, found, "~", 1, protocol, depth)
        return true
    end
    found = field("big_number", "string")
    if found then
        found = gsub(found, "[\r\n]", " ")
        if protocol == 3 then
            parts[#parts + 1] = "(" .. found .. "\r\n"
        else
            append_bulk(parts, found)
        end
        return true
    end
    found = field("verbatim_string", "table")
    return found and append_verbatim(parts, found, protocol)
end

-- Many short strings as one: they would take more memory than what they stand for.
local function packed(parts, from)
    local last = #parts
    local text = concat(parts, "", from, last)
    for at = last, from + 1, -1 do
        parts[at] = nil
    end
    parts[from] = text
    return from + 1
end

local function append_array(parts, value, protocol, depth)
    local at, count = #parts + 1, 0
    local from = at + 1
    parts[at] = ""
    while true do
        local item = rawget(value, count + 1)
        if item == nil then
            break
        end
        count = count + 1
        append(parts, item, protocol, depth + 1)
        if count % 4096 == 0 then
            from = packed(parts, from)
        end
    end
    parts[at] = "*" .. count .. "\r\n"
end

function append(parts, value, protocol, depth)
    local kind = type(value)
    if depth > MAX_DEPTH then
        stack_ends = stack_ends + 1
        parts[#parts + 1] = "-ERR reached lua stack limit\r\n"
    elseif kind == "string" then
        append_bulk(parts, value)
    elseif kind == "number" then
        parts[#parts + 1] = format(":%d\r\n", value)
    elseif kind == "boolean" and box.version == 3 then
        parts[#parts + 1] = protocol == 3 and (value and "#t\r\n" or "#f\r\n") or (value and ":1\r\n" or ":0\r\n")
    elseif value == true then
        parts[#parts + 1] = ":1\r\n"
    elseif kind ~= "table" then
        parts[#parts + 1] = protocol == 3 and "_\r\n" or "$-1\r\n"
    elseif type(known[value]) == "string" then
        parts[#parts + 1] = known[value]
    else
        local into, ends, is_again = parts, stack_ends, known[value] ~= nil
        if is_again then
            revisits = revisits + 1
            if revisits > MAX_REVISITS then
                parts[#parts + 1] = "-ERR reached lua stack limit\r\n"
                return
            end
            into = known[value] and parts or {} -- in itself: there is no text of it
        end
        local was = known[value]
        known[value] = true
        if not append_special(into, value, protocol, depth) then
            append_array(into, value, protocol, depth)
        end
        known[value] = was or false
        if into ~= parts then
            local text = concat(into)
            parts[#parts + 1] = text
            if stack_ends == ends then
                known[value] = text
            end
        end
    end
end

-- For Python: what kind of reply this is, and the reply. A value, a status, an error, or RESP.
local function converted(value, protocol)
    local kind = type(value)
    if kind == "string" or kind == "number" then
        return VALUE, value
    elseif kind == "table" then
        local err, ok = rawget(value, "err"), rawget(value, "ok")
        if type(err) == "string" then
            return ERROR, error_line(err), rawget(value, "ignore_error_stats_update") ~= nil
        elseif type(ok) == "string" then
            return STATUS, status_line(ok)
        end
    elseif kind ~= "boolean" then
        return VALUE, nil
    end
    local parts = {}
    known, revisits, stack_ends = {}, 0, 0
    append(parts, value, protocol, 0)
    known = nil
    return ENCODED, concat(parts)
end

box.ERROR, box.converted, box.error_line = ERROR, converted, error_line
