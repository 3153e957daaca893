-- Keep all that a consumer has its own, a page at a time: idle times start again.
-- KEYS  stream, meta
-- ARGV  group, consumer, the id to go on behind ('' from the start), how many
-- Back  the server's time in ms, the id to go on behind ('' all were seen), how many were renewed, how many were found to
--       be trimmed away

local stream, meta, group, consumer, after, most = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local rows = redis.call('XPENDING', stream, group, after == '' and '-' or '(' .. after, '+', most, consumer)
local ids, renewed = {}, 0
for i, row in ipairs(rows) do ids[i] = row[1] end
on_ids(ids, function(...)
  local words = {...}
  words[#words + 1] = 'JUSTID'
  renewed = renewed + #redis.call('XCLAIM', stream, group, consumer, 0, unpack(words))
end)
count(meta, 'trimmed:' .. group, #ids - renewed)  -- the claim took those off the pending list: their entries are gone
return {whole(now_ms()), #rows == most and ids[#ids] or '', renewed, #ids - renewed}
