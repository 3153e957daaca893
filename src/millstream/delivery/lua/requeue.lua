-- The recovery RFC's requeue: a copy at the end of the stream with a counter in it, in one step and in the order that
-- cannot lose it (add, then acknowledge). The lock is looked at again here: an expiry event is no proof of a death.
-- KEYS  stream, dead letters, meta, then the lock of each id
-- ARGV  group, flags, prefix, min idle ms, most retries, what to do beyond (dead | drop), the time it should be by the
--       caller's watch ('' unknown), and by how much it may differ, ids
-- Back  the server's time in ms, and a code for each id: 1 requeued, 0 not pending (somebody else's), 2 its owner lives,
--       3 too young, 4 dead-lettered, 5 trimmed, 6 dropped, or an error text; no code at all if the clock has jumped

local stream, dlq, meta = KEYS[1], KEYS[2], KEYS[3]
local group, flags, prefix = ARGV[1], ARGV[2], ARGV[3]
local min_idle, most, beyond = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local codes, acked, is_gone, copied, dead, trimmed, dropped = {}, {}, {}, 0, 0, 0, 0
local now = now_ms()

-- A clock that jumped, as after a failover, ends every lock and every idle time at once: take nothing, say the time.
if ARGV[7] ~= '' and math.abs(now - tonumber(ARGV[7])) > tonumber(ARGV[8]) then
  return {whole(now), {}}
end

-- What the entry's counter becomes. It stands in user data, so it may be anything: what is no number counts as none.
-- An entry that was given back uncounted (no deliveries, nobody's) has not failed once more.
local function retries_of(text, owner, deliveries)
  local before = string.match(text, '^%d+$') and tonumber(text) or 0
  local was_given_back = deliveries == 0 and (owner == '' or owner == RELEASED)
  return before + (was_given_back and 0 or 1)
end

local function epitaph(owner, attempts, retries, reason, text)
  return {'retry_count', whole(retries), 'attempts', whole(attempts), 'dead_at', whole(now), 'stream', stream, 'group',
    group, 'consumer', owner, 'reason', reason, 'error', text}
end

local function requeue(id, deliveries, owner, fields)
  local _, origin = lineage(fields, prefix, id)
  local retries = retries_of(origin.retry_count, owner, deliveries)
  if retries <= most then
    local reply = append(stream, copy_of(fields, prefix, id, whole(retries)))
    if failed(reply) then return reply.err end
    copied = copied + 1
    return 1
  elseif beyond == 'drop' then
    dropped = dropped + 1
    return 6
  end
  local reply = bury(dlq, fields, prefix, id,
    epitaph(owner, retries, retries - 1, 'retries', 'its consumers ended before they settled it'))
  if failed(reply) then return reply.err end
  dead = dead + 1
  return 4
end

local function report_trimmed(id, deliveries, owner)
  local reply = beyond == 'dead' and bury(dlq, {}, prefix, id, epitaph(owner, deliveries, math.max(deliveries - 1, 0),
    'trimmed', 'the entry was removed from the stream while it was pending'))
  if failed(reply) then return reply.err end
  trimmed = trimmed + 1
  return 5
end

for k = 9, #ARGV do
  local id = ARGV[k]
  local owner, deliveries, idle = held(stream, group, id)
  local code
  if owner == nil or is_gone[id] then  -- gone: named twice in this call
    code = 0
  elseif redis.call('EXISTS', KEYS[k - 5]) == 1 then
    code = 2
  elseif idle >= 0 and idle < min_idle then
    code = 3
  else
    local entry = redis.call('XRANGE', stream, id, id)[1]
    code = entry and requeue(id, deliveries, owner, entry[2]) or report_trimmed(id, deliveries, owner)
    if type(code) == 'number' then
      acked[#acked + 1] = id
      is_gone[id] = true
    end
  end
  codes[#codes + 1] = code
end
acknowledge(stream, group, flags, acked)
count(meta, 'copied:' .. group, copied)
count(meta, 'dead:' .. group, dead)
count(meta, 'trimmed:' .. group, trimmed)
if beyond == 'dead' then count(meta, 'tombstones:' .. group, trimmed) end
count(meta, 'discarded:' .. group, dropped)
return {whole(now), codes}
