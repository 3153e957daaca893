-- What every step uses. A step is this text and its own behind it; it touches only the keys it is given.
--
-- Two consumers are nobody: '~released' has what a server without XNACK cannot release, '~delayed' what waits for its
-- retry. An entry of theirs is in nobody's hands, so no lease of a worker can be on it.
-- Letters in `flags`: n XNACK, d XACKDEL, t trimming by ACKED, c XREADGROUP CLAIM, m MSETEX, k keep entries that are
-- done.

local RELEASED, DELAYED = '~released', '~delayed'

local function has(flags, letter)
  return string.find(flags, letter, 1, true) ~= nil
end

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Who has an entry: owner, deliveries, idle time; nil when it is not pending. Released entries have the owner ''.
local function held(stream, group, id)
  local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if row then
    return row[2] or '', tonumber(row[4]), tonumber(row[3])
  end
end

-- A test whether an owner is the consumer, or one of those whose names begin as `spark-*` says.
local function owner_test(consumer)
  if string.sub(consumer, -1) ~= '*' then
    return function(owner) return owner == consumer end
  end
  local start = string.sub(consumer, 1, -2)
  return function(owner) return string.sub(owner, 1, #start) == start end
end

-- What is remembered of an entry that was delivered before: `fence failures crashes state`. The state is of its latest
-- delivery: HANDED to a consumer, begun ALONE in its process, or ANSWERED by a release or a retry. An entry without a
-- record was handed out once.
local ANSWERED, HANDED, ALONE = 0, 1, 2

local function record_of(records, id)
  local fence, failures, crashes, state = string.match(redis.call('HGET', records, id) or '1 0 0 1',
    '^(%d+) (%d+) (%d+) (%d+)$')
  return tonumber(fence), tonumber(failures), tonumber(crashes), tonumber(state)
end

-- Write a record; after another write of the same step this works when memory is full too.
local function remember(records, id, fence, failures, crashes, state)
  redis.pcall('HSET', records, id, string.format('%.0f %.0f %.0f %.0f', fence, failures, crashes, state))
end

-- Note that the latest delivery of an entry was answered and did not end it.
local function answered(records, id, failed_too)
  local fence, failures, crashes = record_of(records, id)
  remember(records, id, fence, failures + (failed_too and 1 or 0), crashes, ANSWERED)
end

-- Names and values of an XINFO row as a table.
local function as_table(row)
  local found = {}
  for i = 1, #row, 2 do
    found[row[i]] = row[i + 1]
  end
  return found
end

-- Is the id a behind the id b? Compared as text: a Lua number cannot hold 64 bits.
local function is_after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if #a_ms ~= #b_ms then return #a_ms > #b_ms end
  if a_ms ~= b_ms then return a_ms > b_ms end
  if #a_seq ~= #b_seq then return #a_seq > #b_seq end
  return a_seq > b_seq
end

-- Run a command on ids, a thousand at a time: unpack has a limit.
local function on_ids(ids, run)
  for first = 1, #ids, 1000 do
    run(unpack(ids, first, math.min(first + 999, #ids)))
  end
end

-- Has an entry been read and acknowledged by all groups, as ACKED means it?
local function is_done(stream, groups, id)
  for _, row in ipairs(groups) do
    local found = as_table(row)
    if is_after(id, found['last-delivered-id']) or held(stream, found['name'], id) then return false end
  end
  return true
end

-- Delete those of the ids that every group has read and acknowledged, as XACKDEL ACKED does.
local function delete_if_done(stream, ids)
  local groups, done = redis.call('XINFO', 'GROUPS', stream), {}
  for _, id in ipairs(ids) do
    if is_done(stream, groups, id) then done[#done + 1] = id end
  end
  on_ids(done, function(...) redis.call('XDEL', stream, ...) end)
end

-- Forget the records of entries that have left the pending list.
local function forget(records, ids)
  if #ids == 0 or redis.call('EXISTS', records) == 0 then return end
  on_ids(ids, function(...) redis.pcall('HDEL', records, ...) end)
end

-- Take entries off the pending list, and out of the stream when no group needs them any more.
local function acknowledge(stream, group, flags, ids)
  if #ids == 0 then return end
  if has(flags, 'd') and not has(flags, 'k') then
    on_ids(ids, function(...)
      redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', select('#', ...), ...)
    end)
    return
  end
  on_ids(ids, function(...) redis.call('XACK', stream, group, ...) end)
  if not has(flags, 'k') then delete_if_done(stream, ids) end
end

-- Count something for the audit. After a write of this step memory limits no longer refuse it; if the key is of
-- another type the count is not worth an error.
local function count(meta, name, by)
  if by > 0 then redis.pcall('HINCRBY', meta, name, by) end
end

-- The fields of an entry without our own lineage, and the lineage: first id, retries so far, times redriven.
local function lineage(fields, prefix, id)
  local plain, found = {}, {original_id = id, retry_count = '0', redriven = '0'}
  for i = 1, #fields, 2 do
    local name = fields[i]
    if string.sub(name, 1, #prefix) == prefix and found[string.sub(name, #prefix + 1)] then
      found[string.sub(name, #prefix + 1)] = fields[i + 1]
    else
      plain[#plain + 1] = name
      plain[#plain + 1] = fields[i + 1]
    end
  end
  return plain, found
end

-- The words of a copy: the entry's own fields, then what is known of its past; a dead letter that was put back is known
-- as such by its copies too.
local function copy_of(fields, prefix, id, retries)
  local words, origin = lineage(fields, prefix, id)
  local past = {'retry_count', retries, 'original_id', origin.original_id}
  if origin.redriven ~= '0' then past[5], past[6] = 'redriven', origin.redriven end
  for i = 1, #past, 2 do
    words[#words + 1] = prefix .. past[i]
    words[#words + 1] = past[i + 1]
  end
  return words
end

-- Append an entry: its id, or an error reply. What unpack raises when there are too many words, no pcall would catch.
local MOST_WORDS = 7000
local function append(key, words)
  if #words > MOST_WORDS then
    return {err = 'ERR an entry with more than ' .. MOST_WORDS / 2 .. ' fields cannot be appended by a script'}
  end
  return redis.pcall('XADD', key, '*', unpack(words))
end

-- Append a dead letter: the entry's own fields, then what is known about its end; the last field says how many pairs
-- are ours, so that a redrive finds the entry's own again whatever they are called. An error reply if it cannot be.
local function bury(dlq, fields, prefix, id, about)
  local record, origin = lineage(fields, prefix, id)
  local first = #record
  local function add(name, value)
    record[#record + 1] = prefix .. name
    record[#record + 1] = value
  end
  add('original_id', origin.original_id)
  add('id', id)
  add('redriven', origin.redriven)
  for i = 1, #about, 2 do add(about[i], about[i + 1]) end
  add('meta', whole((#record - first) / 2 + 1))
  return append(dlq, record)
end

local function failed(reply)
  return type(reply) == 'table' and reply.err
end

-- What is wrong with a key of another type than the wanted one; nil when nothing is.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= wanted then
    return 'WRONGTYPE Operation against a key holding the wrong kind of value: ' .. key
  end
end

-- A member of a delayed set: 36 characters that make equal entries different and keep the order of those that are due at
-- the same moment, then the entry.
local function waiting_member(first, second, name, words)
  local order = string.format('%010.0f%06d', first % 1e10, second % 1e6)
  return order .. string.sub(redis.sha1hex(name), 1, 20) .. cmsgpack.pack(words)
end

-- Let an entry wait until it is due. Workers look for the next due time every few seconds; one that is first of all and
-- due before they look again wakes one of them, which waits for an element of the list `wake`.
local SOON_MS = 5000
local function delay_until(delayed, wake, now, delay, member)
  local reply = redis.pcall('ZADD', delayed, whole(now + delay), member)
  if failed(reply) or delay > SOON_MS or redis.call('ZRANGE', delayed, 0, 0)[1] ~= member then return reply end
  if redis.call('EXISTS', wake) == 0 then
    redis.pcall('RPUSH', wake, '1')
    redis.pcall('PEXPIRE', wake, SOON_MS)  -- nobody is there to take it: whoever starts later looks anyway
  end
  return reply
end

-- Remove the oldest of what all groups are done with until `longest` entries are left, as XTRIM ACKED does. Without that
-- it looks at a limited number: a stream that begins with thousands of pending entries is trimmed when these are done.
local function trim(stream, flags, longest)
  if has(flags, 't') then
    redis.call('XTRIM', stream, 'MAXLEN', longest, 'ACKED')
    return
  end
  if redis.call('EXISTS', stream) == 0 then return end
  local excess, done = redis.call('XLEN', stream) - tonumber(longest), {}
  if excess <= 0 then return end
  local groups = redis.call('XINFO', 'GROUPS', stream)
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', whole(math.min(excess, 4000) + 1000))) do
    if #done >= excess then break end
    if is_done(stream, groups, entry[1]) then done[#done + 1] = entry[1] end
  end
  on_ids(done, function(...) redis.call('XDEL', stream, ...) end)
end

local MOST_FIELDS_TEXT = 'ERR an entry has from 1 to ' .. MOST_WORDS / 2 .. ' fields'
