-- Acknowledge all that a consumer has in a range of ids, a page at a time.
-- KEYS  stream, the group's retries, meta, holds, the group's records
-- ARGV  group, consumer, flags, first id, last id, how many at most
-- Back  how many were acknowledged; fewer than the most: these were all

local stream, retries, meta, group, consumer, flags = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local ids = {}
for i, row in ipairs(redis.call('XPENDING', stream, group, ARGV[4], ARGV[5], tonumber(ARGV[6]), consumer)) do
  ids[i] = row[1]
end
acknowledge(stream, group, flags, ids)
forget(KEYS[5], ids)
if #ids > 0 and redis.call('EXISTS', retries) == 1 then
  on_ids(ids, function(...) redis.pcall('ZREM', retries, ...) end)
end
count(meta, 'done:' .. group, #ids)
return #ids
