-- Take over what nobody works on: due retries, released entries, what dead consumers left. The limit is on what is
-- taken, not on what is looked at; what is looked at beyond the sure candidates goes on from a cursor.
-- KEYS  stream, dead letters, the group's retries, meta, the group's records
-- ARGV  group, consumer, flags, prefix, min idle ms, how many to take (0: only look for ghosts), cursor, how many to
--       look at, write tombstones ('1' or '0'), the time it should be by the caller's watch ('' unknown), and by how
--       much it may differ
-- Back  entries taken {id, fields, delivery number, idle ms, owner before}, next cursor, ms until the next one is due
--       (-1: none known), ids whose entry was trimmed away, the server's time in ms, 1 if others who live have entries
-- On a server with CLAIM the blocking read does all this; only ghosts, which that read leaves, are looked for here.

local stream, dlq, retries, meta, records = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, flags, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local min_idle, credit, cursor, look = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local now = now_ms()

-- A clock that jumped, as after a failover, makes everything look forgotten at once: take nothing, say the time.
if ARGV[10] ~= '' and math.abs(now - tonumber(ARGV[10])) > tonumber(ARGV[11]) then
  return {{}, cursor, -1, {}, whole(now), 0}
end

local about, ghosts, candidates = {}, {}, {}
local next_due, is_busy = -1, 0

local function due_in(ms)
  if ms > 0 and (next_due < 0 or ms < next_due) then next_due = ms end
end

local function propose(id, owner, idle, deliveries)
  if about[id] then return end
  about[id] = {owner, deliveries, idle}
  candidates[#candidates + 1] = id
end

-- Retries whose time has come; what is no longer parked was settled or taken without this set knowing. They count as
-- idle since a lease before, as a CLAIM read sees them.
local waiting = redis.call('ZRANGEBYSCORE', retries, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, math.max(credit, 100))
for i = 1, #waiting, 2 do
  local owner, deliveries = held(stream, group, waiting[i])
  if owner == DELAYED then
    propose(waiting[i], owner, min_idle + now - tonumber(waiting[i + 1]), deliveries)
  else
    redis.call('ZREM', retries, waiting[i])
  end
end
local first = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')
if first[2] then due_in(math.max(tonumber(first[2]) - now, 1)) end

local function propose_from(name, idle, most)
  for _, row in ipairs(redis.call('XPENDING', stream, group, 'IDLE', idle, '-', '+', most, name)) do
    propose(row[1], name, tonumber(row[3]), tonumber(row[4]))
  end
end

-- A worker that lives renews its leases, and that is a sign of life of its consumer: only the lists of silent ones
-- are searched, however much the living have pending.
if credit > 0 then
  local silent_ones = 0
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local found = as_table(row)
    local name, silent = found['name'], tonumber(found['idle'])
    if tonumber(found['pending']) > 0 and name ~= DELAYED then
      if name == RELEASED then
        propose_from(name, 0, math.max(credit, 1000)) -- more than can be taken: they are to go in the order of release
      elseif name == consumer or silent >= min_idle then
        -- of our own those of a read whose reply was lost: what is known is renewed, and not idle
        local before = #candidates
        if silent_ones < credit then propose_from(name, min_idle, credit) end
        silent_ones = silent_ones + #candidates - before
      else
        due_in(min_idle - silent)
        is_busy = 1
      end
    end
  end
end

-- A consumer can live and yet have forgotten an entry: walk the list slowly too.
local rows = redis.call('XPENDING', stream, group, cursor == '0-0' and '-' or '(' .. cursor, '+', look)
for _, row in ipairs(rows) do
  local id, owner, idle = row[1], row[2] or '', tonumber(row[3])
  if owner == '' or idle >= min_idle then
    local is_parked = owner == DELAYED and redis.call('ZSCORE', retries, id)
    if credit > 0 and not is_parked then
      propose(id, owner, idle, tonumber(row[4]))
    elseif #redis.call('XRANGE', stream, id, id) == 0 then
      ghosts[#ghosts + 1] = {id, tonumber(row[4])}
    end
  end
end
-- Nothing is pending: what is remembered is of entries that left the list without us.
if cursor == '0-0' and #rows == 0 then redis.call('DEL', records) end
cursor = (#rows == 0 or #rows < look) and '0-0' or rows[#rows][1]

-- In the order of a CLAIM read: what was released, the first release first, then what has been idle longest.
local function goes_before(a, b)
  local one, other = about[a], about[b]
  local is_free, is_other_free = one[1] == '' or one[1] == RELEASED, other[1] == '' or other[1] == RELEASED
  if is_free ~= is_other_free then return is_free end
  if one[3] ~= other[3] then return one[3] > other[3] end
  return is_after(b, a)
end
table.sort(candidates, goes_before)
-- What turns out to be a ghost does not count: the next in line is taken for it.
local taken, at = {}, 1
while #taken < credit and at <= #candidates do
  local ids, is_there = {}, {}
  for i = at, math.min(at + credit - #taken - 1, #candidates) do ids[#ids + 1] = candidates[i] end
  at = at + #ids
  on_ids(ids, function(...)
    for _, entry in ipairs(redis.call('XCLAIM', stream, group, consumer, 0, ...)) do
      if entry and entry[2] then
        local known = about[entry[1]]
        is_there[entry[1]] = true
        taken[#taken + 1] = {entry[1], entry[2], known[2] + 1, known[3] or -1, known[1]}
      end
    end
  end)
  for _, id in ipairs(ids) do
    if not is_there[id] then ghosts[#ghosts + 1] = {id, about[id][2]} end
  end
  on_ids(ids, function(...) redis.call('ZREM', retries, ...) end)
end

local trimmed, tombstones = {}, 0
for _, ghost in ipairs(ghosts) do
  local reply
  if ARGV[9] == '1' then
    reply = bury(dlq, {}, prefix, ghost[1], {'attempts', whole(ghost[2]), 'dead_at', whole(now), 'group', group,
      'stream', stream, 'consumer', '', 'retry_count', whole(math.max(ghost[2] - 1, 0)), 'reason', 'trimmed',
      'error', 'the entry was removed from the stream while it was pending'})
    if not failed(reply) then tombstones = tombstones + 1 end
  end
  -- where the claim above took it off the list already, there is nothing to keep for want of a tombstone
  if not failed(reply) or not held(stream, group, ghost[1]) then
    redis.call('XACK', stream, group, ghost[1])
    trimmed[#trimmed + 1] = ghost[1]
  end
end
forget(records, trimmed)
count(meta, 'trimmed:' .. group, #trimmed)
count(meta, 'tombstones:' .. group, tombstones)
return {taken, cursor, next_due, trimmed, whole(now), is_busy}
