-- Numbers as bytes, most significant first: what cmsgpack and struct share.

local box = ...
local byte, char, floor, frexp, ldexp = string.byte, string.char, math.floor, math.frexp, math.ldexp
local huge, sub, tostring = math.huge, string.sub, tostring
local concat = table.concat

local numbers = {}

-- Not a number, with its sign bit clear; what a division gives differs between processors.
local nan = 0 / 0
if sub(tostring(nan), 1, 1) == "-" then
    nan = -nan
end
numbers.nan = nan

-- The low bytes of a whole number, negative ones in two's complement. Beyond eight bytes there are zeros.
function numbers.from_integer(number, size)
    local parts = {}
    local high, low = floor(number / 4294967296), number % 4294967296
    high = high % 4294967296
    for at = size, 1, -1 do
        parts[at] = char(low % 256)
        low = floor(low / 256) + high % 256 * 16777216
        high = floor(high / 256)
    end
    return concat(parts)
end

-- The number in a string of at most eight bytes, as two halves: exact where a double is not.
local function halves(text)
    local high, low = 0, 0
    for at = 1, #text do
        high = (high * 256 + floor(low / 16777216)) % 4294967296
        low = low % 16777216 * 256 + byte(text, at)
    end
    return high, low
end

function numbers.to_unsigned(text)
    local high, low = halves(text)
    return high * 4294967296 + low
end

function numbers.to_signed(text)
    if byte(text, 1) < 128 then
        return numbers.to_unsigned(text)
    elseif #text > 4 then
        local high, low = halves(text)
        return (high - 256 ^ (#text - 4)) * 4294967296 + low
    end
    return numbers.to_unsigned(text) - 256 ^ #text
end

-- The layouts of IEEE 754: bits of the fraction, offset and largest value of the exponent.
local LAYOUTS = {[4] = {23, 127, 255}, [8] = {52, 1023, 2047}}

local function is_negative(number)
    return number < 0 or number == 0 and 1 / number < 0 or number ~= number and sub(tostring(number), 1, 1) == "-"
end

-- Rounded to a whole number, a half to the even one; for numbers below 2^52.
local function rounded(number)
    return number + 4503599627370496 - 4503599627370496
end

-- Exponent and fraction of a positive finite number.
local function fields(number, bits, offset)
    local fraction, exponent = frexp(number)
    exponent = exponent + offset - 1
    if exponent <= 0 then
        fraction, exponent = ldexp(fraction, bits + exponent), 0 -- not normalised
    else
        fraction = ldexp(fraction, bits + 1) - ldexp(1, bits)
    end
    if bits == 23 then
        fraction = rounded(fraction)
    end
    if fraction == ldexp(1, bits) then
        return exponent + 1, 0
    end
    return exponent, fraction
end

function numbers.from_float(number, size)
    local layout = LAYOUTS[size]
    local bits, offset, most = layout[1], layout[2], layout[3]
    local sign, exponent, fraction = is_negative(number) and 1 or 0, 0, 0
    number = number < 0 and -number or number
    if number ~= number then
        exponent, fraction = most, ldexp(1, bits - 1)
    elseif number == huge then
        exponent = most
    elseif number > 0 then
        exponent, fraction = fields(number, bits, offset)
        if exponent >= most then
            exponent, fraction = most, 0
        end
    end
    local parts = {}
    for at = size, 3, -1 do
        parts[at] = char(fraction % 256)
        fraction = floor(fraction / 256)
    end
    local top = (sign * (most + 1) + exponent) * 2 ^ (bits - size * 8 + 16) + fraction
    parts[1], parts[2] = char(floor(top / 256)), char(top % 256)
    return concat(parts)
end

function numbers.to_float(text)
    local layout = LAYOUTS[#text]
    local bits, offset, most = layout[1], layout[2], layout[3]
    local high, low = halves(text)
    if #text == 4 then
        high, low = low, 0
    end
    local sign = high >= 2147483648 and -1 or 1
    local top = 2 ^ (bits == 23 and 23 or 20) -- where the fraction ends in the upper half
    local exponent, fraction = floor(high % 2147483648 / top), high % top
    fraction = bits == 23 and fraction or fraction * 4294967296 + low
    if exponent == most then
        if fraction ~= 0 then
            return sign > 0 and nan or -nan
        end
        return sign * huge
    elseif exponent == 0 then
        return sign * ldexp(fraction, 1 - offset - bits)
    end
    return sign * ldexp(fraction + ldexp(1, bits), exponent - offset - bits)
end

box.numbers = numbers
