-- Keep deliveries ours: their idle time starts again, for those that still are.
-- KEYS  stream, meta, then with lock keys the lock of each item
-- ARGV  group, consumer, lock ms ('0' none), then of each item: id, delivery number ('' any)
-- Back  the server's time in ms, and the ids that are somebody else's now, or nobody's, or whose entry was trimmed away

local stream, meta, group, consumer, lock_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local ours, locks, lost = {}, {}, {}
for i = 4, #ARGV, 2 do
  local id, number = ARGV[i], ARGV[i + 1]
  local owner, deliveries = held(stream, group, id)
  if owner == consumer and (number == '' or tonumber(number) == deliveries) then
    ours[#ours + 1] = id
    locks[id] = KEYS[(i - 4) / 2 + 3]
  else
    lost[#lost + 1] = id
  end
end

-- The claim comes before the locks: it is allowed when memory is full, and behind it they are too.
local is_kept = {}
on_ids(ours, function(...)
  local words = {...}
  words[#words + 1] = 'JUSTID'
  for _, id in ipairs(redis.call('XCLAIM', stream, group, consumer, 0, unpack(words))) do is_kept[id] = true end
end)
local trimmed = 0
for _, id in ipairs(ours) do
  if not is_kept[id] then  -- the claim took it off the pending list: there is no entry any more
    lost[#lost + 1] = id
    trimmed = trimmed + 1
  elseif locks[id] and lock_ms > 0 then
    redis.pcall('SET', locks[id], consumer, 'PX', lock_ms)
  end
end
count(meta, 'trimmed:' .. group, trimmed)
return {whole(now_ms()), lost}
