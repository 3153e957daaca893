-- A batch is over: its consumer goes, if it holds nothing, and so do the entries that nobody needs any more.
-- KEYS  stream, holds
-- ARGV  group, consumer ('' none), whose hold ends, trim ('1' or '0'), ms after which a hold counts no longer
-- Back  whether the consumer is gone (1 or 0), how many entries were removed
-- An entry is needed by every group that has it pending or has yet to read it, and by batches that are not over: a hold is
-- the first id of one. A batch that is run again must find its entries, those that it has settled among them.

local stream, holds, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
redis.call('HDEL', holds, ARGV[3], 'owed:' .. group .. ':' .. consumer)
if redis.call('EXISTS', stream) == 0 then return {1, 0} end

local is_gone = 1
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local found = as_table(row)
  if consumer ~= '' and found['name'] == consumer then
    if tonumber(found['pending']) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
    else
      is_gone = 0
    end
  end
end
if ARGV[4] ~= '1' then return {is_gone, 0} end

-- The lowest id that is needed, or the highest that is not: of both kinds the smallest.
local needed, read
local function need(id)
  if not needed or is_after(needed, id) then needed = id end
end
for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local found = as_table(row)
  if tonumber(found['pending']) > 0 then need(redis.call('XPENDING', stream, found['name'])[2]) end
  if not read or is_after(read, found['last-delivered-id']) then read = found['last-delivered-id'] end
end
local now, held_by = now_ms(), redis.call('HGETALL', holds)
for i = 1, #held_by, 2 do
  local id, at = string.match(held_by[i + 1], '^(%S+) (%d+)')
  if id and now - tonumber(at) <= tonumber(ARGV[5]) then need(id) end
end
if read then
  local unread = redis.call('XRANGE', stream, '(' .. read, '+', 'COUNT', 1)[1]
  if unread then need(unread[1]) end
end
if needed then return {is_gone, redis.call('XTRIM', stream, 'MINID', needed)} end
if read then return {is_gone, redis.call('XTRIM', stream, 'MAXLEN', 0)} end
return {is_gone, 0}
