-- The library `struct`: values to bytes and back, by a format as in C.

local box = ...
local number_argument, text_argument, bad_argument = box.number_argument, box.text_argument, box.bad_argument
local numbers = box.numbers
local error, floor, select, tonumber, type, unpack = error, math.floor, select, tonumber, type, unpack
local find, format, match = string.find, string.format, string.match
local rep, reverse, sub = string.rep, string.reverse, string.sub
local concat = table.concat

local MAX_INTEGER = 32 -- bytes
local NATURAL = 8 -- the alignment that `!` alone stands for
local SIZES = {b = 1, B = 1, h = 2, H = 2, l = 8, L = 8, T = 8, f = 4, d = 8, x = 1}
local SIGNED = {b = true, h = true, l = true, i = true}

-- The bits of a number that a mask has, too. For sizes like 5 that is no remainder, but it is what Redis does.
local function masked(number, mask)
    local result, bit = 0, 1
    while bit <= mask do
        if floor(mask / bit) % 2 == 1 and floor(number / bit) % 2 == 1 then
            result = result + bit
        end
        bit = bit * 2
    end
    return result
end

-- A format that is being read: the option it stands at, its size, and what was set before it.
local function reader(text)
    local at, little, alignment = 1, true, 1
    local function number(default)
        local digits = match(text, "^%d+", at)
        if not digits then
            return default
        end
        at = at + #digits
        if tonumber(digits) > 2147483647 then
            error("integral size overflow")
        end
        return tonumber(digits)
    end
    local function size_of(option)
        if option == "c" then
            return number(1)
        elseif option == "i" or option == "I" then
            local size = number(4)
            if size > MAX_INTEGER then
                error(format("integral size %d is larger than limit of %d", size, MAX_INTEGER))
            end
            return size
        end
        return SIZES[option] or 0
    end
    local state = {}
    function state.next()
        if at > #text then
            return nil
        end
        local option = sub(text, at, at)
        at = at + 1
        return option, size_of(option)
    end
    function state.padding(offset, option, size)
        if size == 0 or option == "c" then
            return 0
        end
        size = size < alignment and size or alignment
        return masked(size - masked(offset, size - 1), size - 1)
    end
    -- Options that set something, and those that mean nothing; whether this is one.
    function state.control(option, name)
        if option == ">" or option == "<" then
            little = option == "<"
        elseif option == "!" then
            alignment = number(NATURAL)
            if alignment == 0 or not find("1 2 4 8 16 32 64 128 256 512 1024 2048 4096", "%f[%d]" .. alignment .. "%f[%D]") then
                error(format("alignment %d is not a power of 2", alignment))
            end
        elseif option ~= " " then
            if name then
                bad_argument(1, name, "invalid format option '" .. option .. "'")
            end
        end
    end
    function state.ordered(bytes)
        return little and reverse(bytes) or bytes
    end
    return state
end

local INTEGERS = "[bBhHlLTiI]"

-- A number as C makes a 64-bit integer of it.
local function whole(number)
    if number ~= number or number <= -9223372036854775808 or number >= 18446744073709551616 then
        return -9223372036854775808
    end
    return number < 0 and -floor(-number) or floor(number)
end

local function pack(...)
    local count, given = select("#", ...), {...}
    local state = reader(text_argument("pack", 1, count, (...)))
    local parts, length, at = {}, 0, 1
    local function argument(check)
        at = at + 1
        return check("pack", at, at, given[at]) -- what is missing is nil
    end
    local function add(text)
        parts[#parts + 1] = text
        length = length + #text
    end
    for option, size in state.next do
        add(rep("\0", state.padding(length, option, size)))
        if option == "x" then
            add("\0")
        elseif find(option, INTEGERS) then
            add(state.ordered(numbers.from_integer(whole(argument(number_argument)), size)))
        elseif option == "f" or option == "d" then
            add(state.ordered(numbers.from_float(argument(number_argument), size)))
        elseif option == "c" or option == "s" then
            local text = argument(text_argument)
            local wanted = (option == "s" or size == 0) and #text or size
            if #text < wanted then
                bad_argument(at + 1, "pack", "string too short")
            end
            add(sub(text, 1, wanted))
            if option == "s" then
                add("\0")
            end
        else
            state.control(option, "pack")
        end
    end
    return concat(parts)
end

local function to_integer(option, bytes)
    if #bytes == 0 then
        return 0
    end
    bytes = sub(bytes, -8)
    return SIGNED[option] and numbers.to_signed(bytes) or numbers.to_unsigned(bytes)
end

local function struct_unpack(...)
    local count = select("#", ...)
    local state = reader(text_argument("unpack", 1, count, (...)))
    local data = text_argument("unpack", 2, count, (select(2, ...)))
    local at = select(3, ...)
    at = at == nil and 1 or number_argument("unpack", 3, count, at)
    if at == 0 then
        bad_argument(3, "unpack", "offset must be 1 or greater")
    end
    local values, length = {}, 0
    local position = at - 1 -- bytes before the next value
    local function take(size)
        if position < 0 or position + size > #data then
            bad_argument(2, "unpack", "data string too short")
        end
        position = position + size
        return sub(data, position - size + 1, position)
    end
    local function add(value)
        length = length + 1
        values[length] = value
    end
    local function counted()
        local size = length > 0 and tonumber(values[length])
        if not size then
            error("format 'c0' needs a previous size")
        end
        length = length - 1
        return take(size < 0 and #data + 1 or floor(size))
    end
    local function terminated()
        local stop = find(data, "\0", position + 1, true)
        if not stop then
            error("unfinished string in data")
        end
        return sub(take(stop - position), 1, -2)
    end
    for option, size in state.next do
        take(state.padding(position, option, size))
        if option == "x" then
            take(1)
        elseif find(option, INTEGERS) then
            add(to_integer(option, state.ordered(take(size))))
        elseif option == "f" or option == "d" then
            add(numbers.to_float(state.ordered(take(size))))
        elseif option == "c" then
            add(size == 0 and counted() or take(size))
        elseif option == "s" then
            add(terminated())
        else
            state.control(option, "unpack")
        end
    end
    values[length + 1] = position + 1
    return unpack(values, 1, length + 1)
end

local function size(...)
    local state = reader(text_argument("size", 1, select("#", ...), (...)))
    local total = 0
    for option, of_option in state.next do
        total = total + state.padding(total, option, of_option)
        if option == "s" then
            bad_argument(1, "size", "option 's' has no fixed size")
        elseif option == "c" and of_option == 0 then
            bad_argument(1, "size", "option 'c0' has no fixed size")
        elseif not SIZES[option] and option ~= "c" and option ~= "i" and option ~= "I" then
            state.control(option)
        end
        total = total + of_option
    end
    return total
end

box.base.struct = {pack = pack, unpack = struct_unpack, size = size}
