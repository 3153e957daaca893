-- Acknowledge a page of deliveries that are all of one owner and number: as `settle` does, but without a look at each.
-- KEYS  stream, the group's retries, meta, holds, the group's records
-- ARGV  group, consumer (`spark-*`: all whose names begin so), flags, delivery number ('' any), ids, each once, in rising
--       order
-- Back  how many were acknowledged, how many were no longer pending, how many are somebody else's
--
-- A batch's consumer takes nothing but the batch. If it has as many entries pending as the batch had less those that this
-- step took off, none was lost to anybody, and all that is still pending of the batch is its own. Only when the numbers
-- differ are the deliveries looked at: with one call for all of them, or one by one if they lie far apart.

local stream, retries, meta, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, flags, number = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first, total = 5, #ARGV - 4
local owed_field = 'owed:' .. group .. ':' .. consumer
local is_callers, is_one = owner_test(consumer), string.sub(consumer, -1) ~= '*'

local function pending_of(name)
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local found = as_table(row)
    if found['name'] == name then return tonumber(found['pending']) end
  end
end

-- What a CLAIM read took stays among the retries until it is settled; what was delivered once has never been there.
local function forget_retries(ids, from)
  if number == 1 or redis.call('EXISTS', retries) == 0 then return end
  for at = from, #ids, 1000 do redis.pcall('ZREM', retries, unpack(ids, at, math.min(at + 999, #ids))) end
end

local function finish(done, before, lost)
  if done > 0 and is_one and redis.call('HEXISTS', holds, owed_field) == 1 then
    redis.pcall('HINCRBY', holds, owed_field, -done)
  end
  count(meta, 'done:' .. group, done)
  if redis.call('EXISTS', KEYS[5]) == 1 then
    for at = first, #ARGV, 1000 do redis.pcall('HDEL', KEYS[5], unpack(ARGV, at, math.min(at + 999, #ARGV))) end
  end
  return {done, before, lost}
end

local owed = is_one and tonumber(redis.call('HGET', holds, owed_field) or '')
if owed and has(flags, 'k') and pending_of(consumer) == owed then
  local done = 0
  forget_retries(ARGV, first)
  for from = first, #ARGV, 1000 do
    done = done + redis.call('XACK', stream, group, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
  return finish(done, total - done, 0)
end

local most, rows = total * 2 + 20, nil
if is_one then
  rows = redis.call('XPENDING', stream, group, ARGV[first], ARGV[#ARGV], most, consumer)
else
  rows = redis.call('XPENDING', stream, group, ARGV[first], ARGV[#ARGV], most)
end
local is_whole = #rows < most  -- else there may be more of them between the ids than one look shows

-- Mostly the two lists are the same and are gone through side by side; the table is for when they are not.
local acked, before, lost, at, place = {}, 0, 0, 1, nil
local function row_of(id)
  if not place then
    place = {}
    for i, row in ipairs(rows) do place[row[1]] = i end
  end
  return place[id]
end
local function judge(id, owner, deliveries)
  if owner == nil then
    before = before + 1
  elseif is_callers(owner) and (number == nil or number == deliveries) then
    acked[#acked + 1] = id
  else
    lost = lost + 1
  end
end
for k = first, #ARGV do
  local id = ARGV[k]
  local found = rows[at] and rows[at][1] == id and at or row_of(id)
  if found then
    at = found + 1
    judge(id, rows[found][2] or '', rows[found][4])
  elseif is_whole and not is_one then
    before = before + 1
  else
    judge(id, held(stream, group, id))
  end
end
acknowledge(stream, group, flags, acked)
forget_retries(acked, 1)
return finish(#acked, before, lost)
