-- Append entries, all or none, and once however often it is sent.
-- KEYS  stream, the producer's last call, delayed entries, their wake list, then the dedupe keys
-- ARGV  flags, number of the call, longest length ('' none), dedupe window ms, then of each entry: delay ms, which
--       dedupe key (0 none), how many words, the words (names and values)
-- Back  of each entry: its id ('' if it waits for its time) and 1, or the id of the first one with that dedupe key and 0

local stream, producer, delayed, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local flags, number, longest, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local last = redis.call('GET', producer)
if last then
  local known = cmsgpack.unpack(last)
  if known[1] == number then return known[2] end
end

-- Look at everything before the first change: an error behind it would leave a part of the batch in the stream.
local function require_type(key, wanted)
  local text = wrong_type(key, wanted)
  return text and redis.error_reply(text)
end
local entries, i = {}, 5
local wrong = window < 1 and redis.error_reply('ERR the dedupe window must be at least 1 ms')
  or require_type(stream, 'stream')
while i <= #ARGV do
  local entry = {delay = tonumber(ARGV[i]), n = tonumber(ARGV[i + 2]), at = i + 2}
  local dedupe = tonumber(ARGV[i + 1])
  if dedupe > 0 then entry.key = KEYS[4 + dedupe] end
  if entry.delay > 0 then wrong = wrong or require_type(delayed, 'zset') end
  if entry.n < 2 or entry.n > MOST_WORDS then
    wrong = wrong or redis.error_reply(MOST_FIELDS_TEXT)
  end
  entries[#entries + 1] = entry
  i = entry.at + entry.n + 1
end
-- All tokens at one look. A key of another type is none to MGET, and one to EXISTS.
local known = {}
for first = 5, #KEYS, 1000 do
  local last, absent = math.min(first + 999, #KEYS), {}
  local values = redis.call('MGET', unpack(KEYS, first, last))
  for k = first, last do
    local value = values[k - first + 1]
    if value then known[KEYS[k]] = value else absent[#absent + 1] = KEYS[k] end
  end
  if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then
    for _, key in ipairs(absent) do wrong = wrong or require_type(key, 'string') end
  end
end
if wrong then return wrong end

-- Tokens are kept at the end, all at once where the server can.
local tokens = {}
local function remember(key, id)
  known[key] = id
  tokens[#tokens + 1] = key
  tokens[#tokens + 1] = id
end
local function keep_tokens()
  local lifetime = whole(window)
  if not has(flags, 'm') then
    for k = 1, #tokens, 2 do redis.call('SET', tokens[k], tokens[k + 1], 'PX', lifetime) end
    return
  end
  for first = 1, #tokens, 2000 do
    local last = math.min(first + 1999, #tokens)
    local words = {unpack(tokens, first, last)}
    words[#words + 1], words[#words + 2] = 'PX', lifetime
    redis.call('MSETEX', (last - first + 1) / 2, unpack(words))
  end
end

local results, argv = {}, ARGV
for place, entry in ipairs(entries) do
  local before = entry.key and known[entry.key]
  if before then
    results[place] = {before, 0}
  else
    local id = ''
    if entry.delay > 0 then
      local words = {unpack(argv, entry.at + 1, entry.at + entry.n)}
      local name = #producer .. ':' .. producer .. number .. ':' .. place
      local member = waiting_member(tonumber(number) or 0, place, name, words)
      local reply = delay_until(delayed, wake, now_ms(), entry.delay, member)
      if failed(reply) then return reply end
    else
      id = redis.call('XADD', stream, '*', unpack(argv, entry.at + 1, entry.at + entry.n))
    end
    if entry.key then remember(entry.key, id) end
    results[place] = {id, 1}
  end
end
keep_tokens()
if longest ~= '' then trim(stream, flags, longest) end
redis.call('SET', producer, cmsgpack.pack({number, results}), 'PX', 600000)
return results
