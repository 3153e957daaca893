-- Keep the entries of a batch from being removed before it is over; said again when it is run again.
-- KEYS  stream, holds
-- ARGV  group, whose, the batch's first id, its consumer, how many entries it has, what is retained afterwards (all, acked)
-- Back  whether its consumer has exactly these pending (1 or 0), without which `settle_acks` cannot be quick

local stream, holds, group, consumer, owed = KEYS[1], KEYS[2], ARGV[1], ARGV[4], ARGV[5]
redis.call('HSET', holds, ARGV[2], ARGV[3] .. ' ' .. whole(now_ms()) .. ' ' .. ARGV[6])
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local found = as_table(row)
  if found['name'] == consumer and tonumber(found['pending']) == tonumber(owed) then
    redis.call('HSET', holds, 'owed:' .. group .. ':' .. consumer, owed)
    return 1
  end
end
return 0
