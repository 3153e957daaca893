-- The library `cjson`: JSON as lua-cjson reads and writes it, its errors included.

local box = ...
local null, bad_argument = box.null, box.bad_argument
local number_argument, text_argument = box.number_argument, box.text_argument
local error, getmetatable, setmetatable, next, rawget = error, getmetatable, setmetatable, next, rawget
local floor, select, tonumber, tostring, type = math.floor, select, tonumber, tostring, type
local byte, char, find, format = string.byte, string.char, string.find, string.format
local gsub, lower, match, sub = string.gsub, string.lower, string.match, string.sub
local concat = table.concat

-- The metatable of decoded arrays, where those are wanted, and what scripts see of it.
local SHOWN = box.protect({})
local ARRAY = {__metatable = SHOWN}

-- Writing

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\", ["/"] = "\\/"}
for code = 0, 31 do
    ESCAPES[char(code)] = format("\\u%04x", code)
end
ESCAPES["\127"] = "\\u007f"
for escape, plain in next, {b = "\b", t = "\t", n = "\n", f = "\f", r = "\r"} do
    ESCAPES[plain] = "\\" .. escape
end

local function refuse(value, reason)
    error("Cannot serialise " .. type(value) .. ": " .. reason)
end

local function quoted(text)
    if find(text, '[%c"\\/]') then
        text = gsub(text, '[%c"\\/]', ESCAPES)
    end
    return '"' .. text .. '"'
end

local function number_text(settings, number)
    if number - number == 0 then
        return format(settings.number_format, number)
    elseif settings.encode_invalid == "off" then
        refuse(number, "must not be NaN or Inf")
    elseif settings.encode_invalid == "null" then
        return "null"
    end
    return number ~= number and "nan" or number > 0 and "inf" or "-inf"
end

-- The length of an array, or nil for an object.
local function array_length(settings, value)
    if getmetatable(value) == SHOWN then
        return #value
    end
    local most, count = 0, 0
    for key in next, value do
        if type(key) ~= "number" or key < 1 or key ~= floor(key) then
            return nil
        end
        count = count + 1
        most = key > most and key or most
    end
    if settings.sparse_ratio > 0 and most > count * settings.sparse_ratio and most > settings.sparse_safe then
        if settings.sparse_convert == "off" then
            refuse(value, "excessively sparse array")
        end
        return nil
    end
    return most > 0 and most or nil
end

local text_of -- (settings, value, depth)

local function array_text(settings, value, length, depth)
    local items = {}
    for at = 1, length do
        items[at] = text_of(settings, rawget(value, at), depth)
    end
    return "[" .. concat(items, ",") .. "]"
end

local function object_text(settings, value, depth)
    local items, count = {}, 0
    for key, item in next, value do
        local name
        if type(key) == "string" then
            name = quoted(key)
        elseif type(key) == "number" then
            name = '"' .. number_text(settings, key) .. '"'
        else
            refuse(key, "table key must be a number or string")
        end
        count = count + 1
        items[count] = name .. ":" .. text_of(settings, item, depth)
    end
    return "{" .. concat(items, ",") .. "}"
end

function text_of(settings, value, depth)
    local kind = type(value)
    if kind == "string" then
        return quoted(value)
    elseif kind == "number" then
        return number_text(settings, value)
    elseif kind == "boolean" then
        return value and "true" or "false"
    elseif value == nil or value == null then
        return "null"
    elseif kind == "table" then
        if depth >= settings.encode_depth then
            error(format("Cannot serialise, excessive nesting (%d)", depth + 1))
        end
        local length = array_length(settings, value)
        if length then
            return array_text(settings, value, length, depth + 1)
        end
        return object_text(settings, value, depth + 1)
    end
    refuse(value, "type not supported")
end

-- Reading. A token is its kind, its value, where it begins and where it ends; an error is one too.

local SIGNS = {
    ["{"] = "T_OBJ_BEGIN", ["}"] = "T_OBJ_END", ["["] = "T_ARR_BEGIN", ["]"] = "T_ARR_END", [","] = "T_COMMA",
    [":"] = "T_COLON", ["\0"] = "T_END", [""] = "T_END",
}
local BLANKS = {[" "] = true, ["\t"] = true, ["\n"] = true, ["\r"] = true}
local DIGITS, UNDECIDED = {["-"] = true}, {["."] = true, e = true, E = true}
for digit = 0, 9 do
    DIGITS[tostring(digit)] = true
end
local WORDS = {["true"] = true, ["false"] = false, ["null"] = null}
local UNESCAPES = {
    ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
}
-- What C's strtod takes, the longer forms first.
local NUMBERS = {
    "^[+-]?%d+%.?%d*[eE][+-]?%d+", "^[+-]?%.%d+[eE][+-]?%d+", "^[+-]?0[xX]%x+%.?%x*[pP][+-]?%d+",
    "^[+-]?0[xX]%x+%.?%x*", "^[+-]?%d+%.?%d*", "^[+-]?%.%d+",
}
local ODD_NUMBERS = {["inf"] = 1 / 0, ["infinity"] = 1 / 0, ["nan"] = box.numbers.nan}

local function utf8(code)
    if code < 0x80 then
        return char(code)
    elseif code < 0x800 then
        return char(0xC0 + floor(code / 64), 0x80 + code % 64)
    elseif code < 0x10000 then
        return char(0xE0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
    end
    return char(
        0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64, 0x80 + floor(code / 64) % 64, 0x80 + code % 64
    )
end

-- The character of an escape like \u20ac at a position, and where it ends; nil if there is none.
local function unicode_at(text, at)
    local digits = match(text, "^\\u(%x%x%x%x)", at)
    local code = digits and tonumber(digits, 16)
    if not code or code < 0xD800 or code > 0xDFFF then
        return code and utf8(code), at + 6
    end
    digits = code < 0xDC00 and match(text, "^\\u(%x%x%x%x)", at + 6)
    local second = digits and tonumber(digits, 16)
    if not second or second < 0xDC00 or second > 0xDFFF then
        return nil
    end
    return utf8((code - 0xD800) * 1024 + second - 0xDC00 + 0x10000), at + 12
end

local function string_token(text, begin)
    local at, parts = begin + 1, nil
    while true do
        local stop = find(text, '["\\%z]', at) or #text + 1
        local sign = sub(text, stop, stop)
        if sign == '"' then
            local last = sub(text, at, stop - 1)
            return "T_STRING", parts and concat(parts) .. last or last, begin, stop + 1
        elseif sign ~= "\\" then
            return "T_ERROR", "unexpected end of string", stop, stop
        end
        parts = parts or {}
        parts[#parts + 1] = sub(text, at, stop - 1)
        local escape = sub(text, stop + 1, stop + 1)
        if escape == "u" then
            local character, after = unicode_at(text, stop)
            if not character then
                return "T_ERROR", "invalid unicode escape code", stop, stop
            end
            parts[#parts + 1], at = character, after
        elseif UNESCAPES[escape] then
            parts[#parts + 1], at = UNESCAPES[escape], stop + 2
        else
            return "T_ERROR", "invalid escape code", stop, stop
        end
    end
end

-- Numbers that C knows and JSON does not.
local function is_odd(text, at)
    if find(text, "^%+", at) or find(text, "^-?0[xX%d]", at) then
        return true
    end
    local word = lower(match(text, "^-?(%a%a%a)", at) or "")
    return word == "inf" or word == "nan"
end

local function number_token(text, begin)
    for at = 1, #NUMBERS do
        local _, stop = find(text, NUMBERS[at], begin)
        if stop then
            return "T_NUMBER", tonumber(sub(text, begin, stop)), begin, stop + 1
        end
    end
    local sign, word = match(text, "^([+-]?)(%a+)", begin)
    word = word and lower(word) or ""
    for _, name in next, {"infinity", "inf", "nan"} do
        if sub(word, 1, #name) == name then
            local number = ODD_NUMBERS[name]
            return "T_NUMBER", sign == "-" and -number or number, begin, begin + #sign + #name
        end
    end
    return "T_ERROR", "invalid number", begin, begin
end

-- The token at or after a position.
local function token_at(settings, text, at)
    local begin = at
    local sign = sub(text, begin, begin)
    if BLANKS[sign] then
        begin = find(text, "[^ \t\n\r]", at) or #text + 1
        sign = sub(text, begin, begin)
    end
    if sign == '"' then
        local _, stop, plain = find(text, '^([^"\\%z]*)"', begin + 1)
        if stop then
            return "T_STRING", plain, begin, stop + 1
        end
        return string_token(text, begin)
    elseif SIGNS[sign] then
        return SIGNS[sign], nil, begin, begin + 1
    elseif DIGITS[sign] then
        local _, stop, digits, after = find(text, "^([1-9]%d*)(.?)", begin)
        if digits and not UNDECIDED[after] then -- nearly every number is one like this
            return "T_NUMBER", tonumber(digits), begin, stop + 1 - #after
        end
        if settings.decode_invalid == "off" and is_odd(text, begin) then
            return "T_ERROR", "invalid number", begin, begin
        end
        return number_token(text, begin)
    end
    local word = match(text, "^true", begin) or match(text, "^false", begin) or match(text, "^null", begin)
    if word then
        return word == "null" and "T_NULL" or "T_BOOLEAN", WORDS[word], begin, begin + #word
    elseif settings.decode_invalid ~= "off" and is_odd(text, begin) then
        return number_token(text, begin)
    end
    return "T_ERROR", "invalid token", begin, begin
end

local function expected(what, kind, value, at)
    error(format("Expected %s but found %s at character %d", what, kind == "T_ERROR" and value or kind, at))
end

local read -- (settings, text, depth, token …) → value, where it ends

local function check_depth(settings, depth, at)
    if depth > settings.decode_depth then
        error(format("Found too many nested data structures (%d) at character %d", depth, at))
    end
end

local function read_array(settings, text, depth, begin)
    check_depth(settings, depth, begin)
    local result, count = {}, 0
    if settings.array_metatable == "on" then
        setmetatable(result, ARRAY)
    end
    local kind, value, at, stop = token_at(settings, text, begin + 1)
    if kind == "T_ARR_END" then
        return result, stop
    end
    while true do
        count = count + 1
        result[count], stop = read(settings, text, depth, kind, value, at, stop)
        kind, value, at, stop = token_at(settings, text, stop)
        if kind == "T_ARR_END" then
            return result, stop
        elseif kind ~= "T_COMMA" then
            expected("comma or array end", kind, value, at)
        end
        kind, value, at, stop = token_at(settings, text, stop)
    end
end

local function read_object(settings, text, depth, begin)
    check_depth(settings, depth, begin)
    local result = {}
    local kind, value, at, stop = token_at(settings, text, begin + 1)
    if kind == "T_OBJ_END" then
        return result, stop
    end
    while true do
        if kind ~= "T_STRING" then
            expected("object key string", kind, value, at)
        end
        local key = value
        kind, value, at, stop = token_at(settings, text, stop)
        if kind ~= "T_COLON" then
            expected("colon", kind, value, at)
        end
        kind, value, at, stop = token_at(settings, text, stop)
        result[key], stop = read(settings, text, depth, kind, value, at, stop)
        kind, value, at, stop = token_at(settings, text, stop)
        if kind == "T_OBJ_END" then
            return result, stop
        elseif kind ~= "T_COMMA" then
            expected("comma or object end", kind, value, at)
        end
        kind, value, at, stop = token_at(settings, text, stop)
    end
end

function read(settings, text, depth, kind, value, at, stop)
    if kind == "T_STRING" or kind == "T_NUMBER" or kind == "T_BOOLEAN" or kind == "T_NULL" then
        return value, stop
    elseif kind == "T_OBJ_BEGIN" then
        return read_object(settings, text, depth + 1, at)
    elseif kind == "T_ARR_BEGIN" then
        return read_array(settings, text, depth + 1, at)
    end
    expected("value", kind, value, at)
end

-- The library, with settings of its own

local SWITCH, SWITCH_OR_NULL = {off = false, on = true}, {off = false, on = true, null = "null"}

local function check_count(name, most, ...)
    if select("#", ...) > most then
        bad_argument(most + 1, name, "found too many arguments")
    end
end

-- Change a setting that has a few values, if one is given; its value.
local function choose(settings, setting, choices, name, at, given)
    if type(given) == "boolean" then
        settings[setting] = given and "on" or "off"
    elseif given ~= nil then
        local word = text_argument(name, at, at, given)
        if choices[word] == nil then
            bad_argument(at, name, "invalid option '" .. word .. "'")
        end
        settings[setting] = word
    end
    return choices[settings[setting]]
end

local function change(settings, setting, low, high, name, at, given)
    if given ~= nil then
        local number = number_argument(name, at, at, given)
        number = number < 0 and -floor(-number) or floor(number)
        if number < low or number > high then
            bad_argument(1, name, format("expected integer between %d and %d", low, high))
        end
        settings[setting] = number
    end
    return settings[setting]
end

local LARGE = 2147483647

local function new()
    local settings = {
        sparse_convert = "off", sparse_ratio = 2, sparse_safe = 10, encode_depth = 1000, decode_depth = 1000,
        precision = 14, number_format = "%.14g", encode_invalid = "off", decode_invalid = "on", keep_buffer = "on",
        array_metatable = "off",
    }
    local cjson = {_NAME = "cjson", _VERSION = "2.1.0", null = null, new = new}

    function cjson.encode(...)
        if select("#", ...) ~= 1 then
            bad_argument(1, "encode", "expected 1 argument")
        end
        return text_of(settings, (...), 0)
    end

    function cjson.decode(...)
        if select("#", ...) ~= 1 then
            bad_argument(1, "decode", "expected 1 argument")
        end
        local text = text_argument("decode", 1, 1, (...))
        if #text > 1 and (byte(text, 1) == 0 or byte(text, 2) == 0) then
            error("JSON parser does not support UTF-16 or UTF-32")
        end
        local result, stop = read(settings, text, 0, token_at(settings, text, 1))
        local kind, value, at = token_at(settings, text, stop)
        if kind ~= "T_END" then
            expected("the end", kind, value, at)
        end
        return result
    end

    function cjson.encode_sparse_array(...)
        check_count("encode_sparse_array", 3, ...)
        local convert, ratio, safe = ...
        return choose(settings, "sparse_convert", SWITCH, "encode_sparse_array", 1, convert),
            change(settings, "sparse_ratio", 0, LARGE, "encode_sparse_array", 2, ratio),
            change(settings, "sparse_safe", 0, LARGE, "encode_sparse_array", 3, safe)
    end

    function cjson.encode_max_depth(...)
        check_count("encode_max_depth", 1, ...)
        return change(settings, "encode_depth", 1, LARGE, "encode_max_depth", 1, (...))
    end

    function cjson.decode_max_depth(...)
        check_count("decode_max_depth", 1, ...)
        return change(settings, "decode_depth", 1, LARGE, "decode_max_depth", 1, (...))
    end

    function cjson.encode_number_precision(...)
        check_count("encode_number_precision", 1, ...)
        local precision = change(settings, "precision", 1, 14, "encode_number_precision", 1, (...))
        settings.number_format = "%." .. precision .. "g"
        return precision
    end

    function cjson.encode_keep_buffer(...)
        check_count("encode_keep_buffer", 1, ...)
        return choose(settings, "keep_buffer", SWITCH, "encode_keep_buffer", 1, (...))
    end

    function cjson.encode_invalid_numbers(...)
        check_count("encode_invalid_numbers", 1, ...)
        return choose(settings, "encode_invalid", SWITCH_OR_NULL, "encode_invalid_numbers", 1, (...))
    end

    function cjson.decode_invalid_numbers(...)
        check_count("decode_invalid_numbers", 1, ...)
        return choose(settings, "decode_invalid", SWITCH, "decode_invalid_numbers", 1, (...))
    end

    function cjson.decode_array_with_array_mt(...)
        check_count("decode_array_with_array_mt", 1, ...)
        return choose(settings, "array_metatable", SWITCH, "decode_array_with_array_mt", 1, (...))
    end

    return cjson
end

box.base.cjson = new()
