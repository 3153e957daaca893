-- Append entries, all or none, and once however often it is sent.
-- KEYS  stream, the producer's last call, delayed entries, then the dedupe keys
-- ARGV  flags, number of the call, longest length ('' none), dedupe window ms, then of each entry: delay ms, which
--       dedupe key (0 none), how many words, the words (names and values)
-- Back  of each entry: its id ('' if it waits for its time) and 1, or the id of the first one with that dedupe key and 0

local stream, producer, delayed = KEYS[1], KEYS[2], KEYS[3]
local flags, number, longest, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local last = redis.call('GET', producer)
if last then
  local known = cmsgpack.unpack(last)
  if known[1] == number then return known[2] end
end

-- Look at everything before the first change: an error behind it would leave a part of the batch in the stream.
local function require_type(key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= wanted then
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value: ' .. key)
  end
end
local entries, i = {}, 5
local wrong = window < 1 and redis.error_reply('ERR the dedupe window must be at least 1 ms')
  or require_type(stream, 'stream')
while i <= #ARGV do
  local entry = {delay = tonumber(ARGV[i]), n = tonumber(ARGV[i + 2]), at = i + 2}
  local dedupe = tonumber(ARGV[i + 1])
  if dedupe > 0 then
    entry.key = KEYS[3 + dedupe]
    wrong = wrong or require_type(entry.key, 'string')
  end
  if entry.delay > 0 then wrong = wrong or require_type(delayed, 'zset') end
  if entry.n < 2 or entry.n > MOST_WORDS then
    wrong = wrong or redis.error_reply('ERR an entry has from 1 to ' .. MOST_WORDS / 2 .. ' fields')
  end
  entries[#entries + 1] = entry
  i = entry.at + entry.n + 1
end
if wrong then return wrong end

-- Remove the oldest of what all groups are done with until `keep` entries are left, as XTRIM ACKED does. It looks at a
-- limited number: a stream that begins with thousands of pending entries is trimmed when these are done.
local function trim_done(keep)
  local excess, done = redis.call('XLEN', stream) - keep, {}
  if excess <= 0 then return end
  local groups = redis.call('XINFO', 'GROUPS', stream)
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', whole(math.min(excess, 4000) + 1000))) do
    if #done >= excess then break end
    if is_done(stream, groups, entry[1]) then done[#done + 1] = entry[1] end
  end
  on_ids(done, function(...) redis.call('XDEL', stream, ...) end)
end

-- A member of the delayed set: 36 characters that make equal entries different and keep the order of a producer's
-- entries that are due at the same moment, then the entry.
local function waiting_member(place, words)
  local order = string.format('%010.0f%06d', (tonumber(number) or 0) % 1e10, place % 1e6)
  local name = redis.sha1hex(#producer .. ':' .. producer .. number .. ':' .. place)
  return order .. string.sub(name, 1, 20) .. cmsgpack.pack(words)
end

local results = {}
for place, entry in ipairs(entries) do
  local known = entry.key and redis.call('GET', entry.key)
  if known then
    results[place] = {known, 0}
  else
    local words = {}
    for k = entry.at + 1, entry.at + entry.n do words[#words + 1] = ARGV[k] end
    local id = ''
    if entry.delay > 0 then
      redis.call('ZADD', delayed, whole(now_ms() + entry.delay), waiting_member(place, words))
    else
      id = redis.call('XADD', stream, '*', unpack(words))
    end
    if entry.key then redis.call('SET', entry.key, id, 'PX', whole(window)) end
    results[place] = {id, 1}
  end
end
if longest ~= '' then
  if has(flags, 't') then
    redis.call('XTRIM', stream, 'MAXLEN', longest, 'ACKED')
  elseif redis.call('EXISTS', stream) == 1 then
    trim_done(tonumber(longest))
  end
end
redis.call('SET', producer, cmsgpack.pack({number, results}), 'PX', 600000)
return results
