-- The library `bit`: 32-bit integers in doubles.

local box = ...
local number_argument, floor, frexp, select = box.number_argument, math.floor, math.frexp, select
local format, sub, upper = string.format, string.sub, string.upper

local TWO_31, TWO_32, TWO_53 = 2147483648, 4294967296, 9007199254740992
local MAGIC = 6755399441055744 -- 2^52 + 2^51: added to a number, it rounds it and leaves its low bits at the end

-- The low 32 bits of the sum, as C finds them in memory; beyond 2^51 they are what is there.
local function unsigned(number)
    local sum = number + MAGIC
    if sum >= 4503599627370496 and sum < TWO_53 then
        return sum % TWO_32
    elseif sum ~= sum or sum - sum ~= 0 then
        return 0
    end
    local fraction = frexp(sum < 0 and -sum or sum)
    return fraction * TWO_53 % TWO_32
end

local function signed(bits)
    return bits >= TWO_31 and bits - TWO_32 or bits
end

local function argument(name, at, ...)
    return unsigned(number_argument(name, at, select("#", ...), (select(at, ...))))
end

-- Results for pairs of half bytes.
local both, either, one = {}, {}, {}
for a = 0, 15 do
    for b = 0, 15 do
        local n_both, n_either, place = 0, 0, 1
        for bit = 0, 3 do
            local in_a, in_b = floor(a / place) % 2, floor(b / place) % 2
            n_both = n_both + in_a * in_b * place
            n_either = n_either + (in_a + in_b > 0 and place or 0)
            place = place * 2
        end
        both[a * 16 + b], either[a * 16 + b], one[a * 16 + b] = n_both, n_either, n_either - n_both
    end
end

local function combined(results, a, b)
    local bits, place = 0, 1
    for _ = 1, 8 do
        local low_a, low_b = a % 16, b % 16
        bits = bits + results[low_a * 16 + low_b] * place
        a, b, place = (a - low_a) / 16, (b - low_b) / 16, place * 16
    end
    return bits
end

local function combiner(name, results)
    return function(...)
        local bits = argument(name, 1, ...)
        for at = 2, select("#", ...) do
            bits = combined(results, bits, argument(name, at, ...))
        end
        return signed(bits)
    end
end

local function left(bits, count)
    return bits % 2 ^ (32 - count) * 2 ^ count
end

local function right(bits, count)
    return floor(bits / 2 ^ count)
end

local function shifter(name, shift)
    return function(...)
        local bits, count = argument(name, 1, ...), argument(name, 2, ...) % 32
        return signed(shift(bits, count) % TWO_32)
    end
end

local bit = {band = combiner("band", both), bor = combiner("bor", either), bxor = combiner("bxor", one)}

function bit.tobit(...)
    return signed(argument("tobit", 1, ...))
end

function bit.bnot(...)
    return signed(TWO_32 - 1 - argument("bnot", 1, ...))
end

bit.lshift = shifter("lshift", left)
bit.rshift = shifter("rshift", right)
bit.arshift = shifter("arshift", function(bits, count)
    return floor(signed(bits) / 2 ^ count)
end)
bit.rol = shifter("rol", function(bits, count)
    return left(bits, count) + right(bits, 32 - count)
end)
bit.ror = shifter("ror", function(bits, count)
    return right(bits, count) + left(bits, (32 - count) % 32) * (count > 0 and 1 or 0)
end)

function bit.bswap(...)
    local bits = argument("bswap", 1, ...)
    local a, b, c, d = bits % 256, right(bits, 8) % 256, right(bits, 16) % 256, right(bits, 24)
    return signed(a * 16777216 + b * 65536 + c * 256 + d)
end

function bit.tohex(...)
    local bits = argument("tohex", 1, ...)
    local count = select("#", ...) > 1 and signed(argument("tohex", 2, ...)) or 8
    local text = format("%08x", bits)
    if count < 0 then
        count, text = -count, upper(text)
    end
    return sub(text, -(count < 8 and count or 8), count == 0 and 0 or -1)
end

box.base.bit = bit
