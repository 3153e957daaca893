-- Find what a read delivered whose reply was lost: what a consumer has pending and does not know of. No delivery is
-- counted for it, and its lease begins anew; sent twice it finds the same.
-- KEYS  stream
-- ARGV  group, consumer, how many at most, then of each delivery that the consumer knows of: id, delivery number
-- Back  entries {id, fields, delivery number}

local stream, group, consumer, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local is_known = {}
for i = 4, #ARGV, 2 do is_known[ARGV[i] .. ':' .. ARGV[i + 1]] = true end

local found, ids, after, rows = {}, {}, '-', nil
repeat
  rows = redis.call('XPENDING', stream, group, after, '+', 1000, consumer)
  for _, row in ipairs(rows) do
    if #found < most and not is_known[row[1] .. ':' .. whole(tonumber(row[4]))] then
      local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
      if entry then -- one that was trimmed away is left to the sweep, which counts it
        found[#found + 1] = {row[1], entry[2], tonumber(row[4])}
        ids[#ids + 1] = row[1]
      end
    end
  end
  if #rows > 0 then after = '(' .. rows[#rows][1] end
until #rows < 1000 or #found >= most

on_ids(ids, function(...)
  local words = {...}
  words[#words + 1] = 'JUSTID'
  redis.call('XCLAIM', stream, group, consumer, 0, unpack(words))
end)
return found
