-- The library `cmsgpack`: MessagePack. Tables nested deeper than 16 are packed as nil, as Redis does.

local box = ...
local number_argument, text_argument, bad_argument = box.number_argument, box.text_argument, box.bad_argument
local from_integer, from_float = box.numbers.from_integer, box.numbers.from_float
local to_unsigned, to_signed, to_float = box.numbers.to_unsigned, box.numbers.to_signed, box.numbers.to_float
local error, floor, next, rawget, select, type, unpack = error, math.floor, next, rawget, select, type, unpack
local byte, char, format, sub = string.byte, string.char, string.format, string.sub
local concat = table.concat

local MAX_NESTING = 16

local pack_value -- (parts, value, level)

-- The head of something that has a length: the short form, or a mark for each size of the length.
local function head(length, short, most, mark_8, mark_16, mark_32)
    if length <= most then
        return char(short + length)
    elseif mark_8 and length <= 255 then
        return char(mark_8, length)
    elseif length <= 65535 then
        return char(mark_16) .. from_integer(length, 2)
    end
    return char(mark_32) .. from_integer(length, 4)
end

local function packed_integer(number)
    if number >= 0 then
        if number <= 127 then
            return char(number)
        elseif number <= 255 then
            return char(0xcc, number)
        elseif number <= 65535 then
            return "\205" .. from_integer(number, 2)
        elseif number <= 4294967295 then
            return "\206" .. from_integer(number, 4)
        end
        return "\207" .. from_integer(number, 8)
    elseif number >= -32 then
        return char(256 + number)
    elseif number >= -128 then
        return char(0xd0, 256 + number)
    elseif number >= -32768 then
        return "\209" .. from_integer(number, 2)
    elseif number >= -2147483648 then
        return "\210" .. from_integer(number, 4)
    end
    return "\211" .. from_integer(number, 8)
end

local function packed_number(number)
    if number == floor(number) and number >= -9223372036854775808 and number < 9223372036854775808 then
        return packed_integer(number)
    end
    local short = from_float(number, 4)
    if to_float(short) == number then
        return "\202" .. short
    end
    return "\203" .. from_float(number, 8)
end

-- How many items, if the keys are 1 to that number; else nil, and how many entries there are.
local function array_length(value)
    local count, most, is_array = 0, 0, true
    for key in next, value do
        count = count + 1
        if type(key) ~= "number" or key <= 0 or key > 2147483647 or key ~= floor(key) then
            is_array = false
        elseif key > most then
            most = key
        end
    end
    return is_array and most == count and count or nil, count
end

local function pack_table(parts, value, level)
    local length, count = array_length(value)
    if length then
        parts[#parts + 1] = head(length, 0x90, 15, nil, 0xdc, 0xdd)
        for at = 1, length do
            pack_value(parts, rawget(value, at), level + 1)
        end
        return
    end
    parts[#parts + 1] = head(count, 0x80, 15, nil, 0xde, 0xdf)
    for key, item in next, value do
        pack_value(parts, key, level + 1)
        pack_value(parts, item, level + 1)
    end
end

function pack_value(parts, value, level)
    local kind = type(value)
    if kind == "string" then
        parts[#parts + 1] = head(#value, 0xa0, 31, 0xd9, 0xda, 0xdb)
        parts[#parts + 1] = value
    elseif kind == "number" then
        parts[#parts + 1] = packed_number(value)
    elseif kind == "boolean" then
        parts[#parts + 1] = value and "\195" or "\194"
    elseif kind == "table" and level < MAX_NESTING then
        pack_table(parts, value, level)
    else
        parts[#parts + 1] = "\192"
    end
end

local function pack(...)
    local count, given, parts = select("#", ...), {...}, {}
    if count == 0 then
        bad_argument(0, "pack", "MessagePack pack needs input.")
    end
    for at = 1, count do
        pack_value(parts, given[at], 0)
    end
    return concat(parts)
end

local unpack_value -- (data, at) → value, where it ends

local function bytes_at(data, at, size)
    if at + size - 1 > #data then
        error("Missing bytes in input.")
    end
    return sub(data, at, at + size - 1)
end

local function length_at(data, at, size)
    return to_unsigned(bytes_at(data, at, size)), at + size
end

local function unpack_array(data, at, length)
    local result = {}
    for index = 1, length do
        result[index], at = unpack_value(data, at)
    end
    return result, at
end

local function unpack_map(data, at, length)
    local result = {}
    for _ = 1, length do
        local key, value
        key, at = unpack_value(data, at)
        value, at = unpack_value(data, at)
        if key == nil then
            error("table index is nil", 0)
        elseif key ~= key then
            error("table index is NaN", 0)
        end
        result[key] = value
    end
    return result, at
end

local function of_size(read, size)
    return function(data, at)
        return read(bytes_at(data, at, size)), at + size
    end
end

local function after_length(size, read)
    return function(data, at)
        local length
        length, at = length_at(data, at, size)
        return read(data, at, length)
    end
end

local function text_of(data, at, length)
    return bytes_at(data, at, length), at + length
end

local function constant(value)
    return function(_, at)
        return value, at
    end
end

local BY_MARK = {
    [0xc0] = constant(nil), [0xc2] = constant(false), [0xc3] = constant(true),
    [0xcc] = of_size(to_unsigned, 1), [0xcd] = of_size(to_unsigned, 2), [0xce] = of_size(to_unsigned, 4),
    [0xcf] = of_size(to_signed, 8), -- Redis, too, has negative numbers where there should be very large ones
    [0xd0] = of_size(to_signed, 1), [0xd1] = of_size(to_signed, 2),
    [0xd2] = of_size(to_signed, 4), [0xd3] = of_size(to_signed, 8),
    [0xca] = of_size(to_float, 4), [0xcb] = of_size(to_float, 8),
    [0xd9] = after_length(1, text_of), [0xda] = after_length(2, text_of), [0xdb] = after_length(4, text_of),
    [0xdc] = after_length(2, unpack_array), [0xdd] = after_length(4, unpack_array),
    [0xde] = after_length(2, unpack_map), [0xdf] = after_length(4, unpack_map),
}

function unpack_value(data, at)
    local mark = byte(data, at)
    if not mark then
        error("Missing bytes in input.")
    end
    at = at + 1
    local read = BY_MARK[mark]
    if read then
        return read(data, at)
    elseif mark < 0x80 then
        return mark, at
    elseif mark >= 0xe0 then
        return mark - 256, at
    elseif mark < 0x90 then
        return unpack_map(data, at, mark - 0x80)
    elseif mark < 0xa0 then
        return unpack_array(data, at, mark - 0x90)
    elseif mark < 0xc0 then
        return text_of(data, at, mark - 0xa0)
    end
    error("Bad data format in input.")
end

-- Values from an offset on, at most so many (0: all, and without saying where they end).
local function unpack_from(data, limit, offset)
    if offset < 0 or limit < 0 then
        error(format("Invalid request to unpack with offset of %d and limit of %d.", offset, #data))
    elseif offset > #data then
        error(format("Start offset %d greater than input length %d.", offset, #data))
    end
    local decode_all = limit == 0 and offset == 0
    local values, count, at = {}, decode_all and 0 or 1, offset + 1
    while at <= #data and (decode_all or count <= limit) do
        count = count + 1
        values[count], at = unpack_value(data, at)
    end
    if not decode_all then
        values[1] = at > #data and -1 or at - 1
    end
    return unpack(values, 1, count)
end

local function unpack_all(...)
    return unpack_from(text_argument("unpack", 1, select("#", ...), (...)), 0, 0)
end

local function whole(name, at, count, value)
    local number = number_argument(name, at, count, value)
    return number < 0 and -floor(-number) or floor(number)
end

local function unpack_one(...)
    local count = select("#", ...)
    local data, offset = ...
    offset = offset == nil and 0 or whole("unpack_one", 2, count, offset)
    return unpack_from(text_argument("unpack_one", 1, count, data), 1, offset)
end

local function unpack_limit(...)
    local count = select("#", ...)
    local data, limit, offset = ...
    limit = whole("unpack_limit", 2, count, limit)
    offset = offset == nil and 0 or whole("unpack_limit", 3, count, offset)
    return unpack_from(text_argument("unpack_limit", 1, count, data), limit, offset)
end

box.base.cmsgpack = {
    pack = pack, unpack = unpack_all, unpack_one = unpack_one, unpack_limit = unpack_limit,
    _NAME = "cmsgpack", _VERSION = "lua-cmsgpack 0.4.0", _DESCRIPTION = "MessagePack C implementation for Lua",
    _COPYRIGHT = "Copyright (C) 2012, Salvatore Sanfilippo",
}
