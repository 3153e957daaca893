-- End deliveries, each only if it is still the caller's: owner and delivery number must be as they were given.
-- KEYS  stream, dead letters, the group's retries, meta, delayed entries, the group's records, the delayed entries' wake
--       list, with the flag l the lock of each item, and then the keys of what is published
-- ARGV  group, consumer (`spark-*`: all whose names begin so), flags, prefix, idle ms of what is due, then of each item: id,
--       delivery number ('' any), verb, arguments:
--         ack | release | pass (a release that says nothing about the entry, as nobody began on it) | discard |
--         retry <delay ms> | copy <retry count> | copy_later <retry count> <delay ms> |
--         reject <n> <n names and values; an empty consumer, retry_count or first_at is filled in here> |
--         publish <n> <n words: of each entry its stream, the delayed entries of that, their wake list, the dedupe key
--         (0 none), all as places in KEYS; dedupe window ms, delay ms, longest length ('' none), how many words, the words>, and then ack
-- Back  a code for each item: 1 settled, 0 no longer pending (settled before), -1 somebody else's, or an error text

local stream, dlq, retries, meta, delayed, records = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wake = KEYS[7]
local group, consumer, flags, prefix, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local codes, acked, is_gone, done, dead, discarded, copied, trimmed, released = {}, {}, {}, 0, 0, 0, 0, 0, 0
local was_retried = redis.call('EXISTS', retries) == 1
local now = now_ms()
local is_callers = owner_test(consumer)

-- Give an entry to nobody; on a server with XNACK it goes to the head of the line by itself. Elsewhere the time it was
-- delivered at becomes the number of the release: longer ago than any delivery, and in the order of the releases.
local function let_go(id, deliveries, mode)
  if has(flags, 'n') then
    redis.call('XNACK', stream, group, mode, 'IDS', 1, id)
    released = released + 1
    return
  end
  local place = redis.pcall('HINCRBY', meta, 'released:' .. group, 1)
  local words = {'TIME', failed(place) and 0 or whole(place), 'JUSTID'}
  if mode == 'SILENT' and deliveries > 0 and deliveries < 2 ^ 53 then
    words[4], words[5] = 'RETRYCOUNT', whole(deliveries - 1)
  end
  redis.call('XCLAIM', stream, group, RELEASED, 0, id, unpack(words))
end

-- Let an entry wait in its place. The idle time says when it is due, up to the idle time that a CLAIM read asks for; the
-- sorted set has the exact time. When memory is full the set may not be written: it is then due earlier.
local function put_off(id, delay)
  local since = now
  if delay <= lease then since = now + delay - lease end
  -- A blocked CLAIM read learns of a new due time only when it is woken, and of these two only XNACK wakes it.
  if has(flags, 'n') then redis.call('XNACK', stream, group, 'FAIL', 'IDS', 1, id) end
  redis.call('XCLAIM', stream, group, DELAYED, 0, id, 'TIME', whole(since), 'JUSTID')
  redis.pcall('ZADD', retries, whole(now + delay), id)
end

-- Let a copy wait beside the stream, as an entry that was published with a delay.
local function append_later(id, deliveries, words, delay)
  if #words > MOST_WORDS then return append(delayed, words) end -- the error now: when it is due nobody could have it
  local name = #group .. ':' .. group .. id .. ':' .. whole(deliveries)
  local member = waiting_member(tonumber(string.match(id, '^%d+')), tonumber(string.match(id, '%d+$')), name, words)
  return delay_until(delayed, wake, now, delay, member)
end

-- What a caller that has not seen the entry leaves out of a dead letter.
local function known_of(name, owner, deliveries, fields, id)
  if name == 'consumer' then return owner end
  if name == 'retry_count' then return whole(math.max(deliveries - 1, 0)) end
  if name == 'first_at' then
    local _, origin = lineage(fields, prefix, id)
    return string.match(origin.original_id, '^%d+') or ''
  end
  return ''
end

-- What a handler published, from the words of its item; or what is wrong with it.
local function publications(first, last)
  local entries, i, wrong = {}, first, nil
  while i <= last do
    local entry = {stream = KEYS[tonumber(ARGV[i])], delayed = KEYS[tonumber(ARGV[i + 1])],
      wake = KEYS[tonumber(ARGV[i + 2])], token = KEYS[tonumber(ARGV[i + 3])], window = ARGV[i + 4],
      delay = tonumber(ARGV[i + 5]), longest = ARGV[i + 6], words = {}}
    local n = tonumber(ARGV[i + 7])
    for k = i + 8, i + 7 + n do entry.words[#entry.words + 1] = ARGV[k] end
    wrong = wrong or wrong_type(entry.stream, 'stream') or (entry.token and wrong_type(entry.token, 'string'))
      or (entry.delay > 0 and wrong_type(entry.delayed, 'zset')) or ((n < 2 or n > MOST_WORDS) and MOST_FIELDS_TEXT)
    entries[#entries + 1] = entry
    i = i + 8 + n
  end
  return entries, wrong
end

-- Append what a handler published, all or none; an error text if it cannot be. When memory is full the first write is
-- refused, and behind a first write none is: what is left to go wrong (a stream whose ids are used up) is undone.
local function publish(id, deliveries, first, last)
  local entries, wrong = publications(first, last)
  if wrong then return wrong end
  local undo = {}
  for place, entry in ipairs(entries) do
    if not (entry.token and redis.call('EXISTS', entry.token) == 1) then
      local reply
      if entry.delay > 0 then
        local name = #group .. ':' .. group .. id .. ':' .. whole(deliveries) .. ':' .. place .. entry.stream
        local member = waiting_member(now, place, name, entry.words)
        reply = delay_until(entry.delayed, entry.wake, now, entry.delay, member)
        undo[#undo + 1] = {'ZREM', entry.delayed, member}
      else
        reply = append(entry.stream, entry.words)
        undo[#undo + 1] = {'XDEL', entry.stream, reply}
      end
      if failed(reply) then
        for k = 1, #undo - 1 do redis.call(unpack(undo[k])) end
        return reply.err
      end
      if entry.token then
        redis.call('SET', entry.token, entry.delay > 0 and '' or reply, 'PX', entry.window)
        undo[#undo + 1] = {'DEL', entry.token}
      end
    end
  end
  for _, entry in ipairs(entries) do
    if entry.longest ~= '' then trim(entry.stream, flags, entry.longest) end
  end
end

local i, item = 6, 0
while i <= #ARGV do
  item = item + 1
  local id, number, verb = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local first, last = i + 3, i + 2
  if verb == 'retry' or verb == 'copy' then
    last = first
  elseif verb == 'copy_later' then
    last = first + 1
  elseif verb == 'reject' or verb == 'publish' then
    first = i + 4
    last = i + 3 + tonumber(ARGV[i + 3])
  end
  local owner, deliveries = held(stream, group, id)
  local code = 1
  if owner == nil or is_gone[id] then  -- gone: named twice in this call
    code = 0
  elseif not is_callers(owner) or (number ~= '' and tonumber(number) ~= deliveries) then
    -- Given back by the caller's own first call, whose reply was lost? Then nobody has it, and as often delivered.
    local is_nobodys = owner == '' or owner == RELEASED or owner == DELAYED
    local before = (verb == 'release' or verb == 'pass') and deliveries + 1 or deliveries
    code = (is_nobodys and verb ~= 'ack' and verb ~= 'publish' and tonumber(number) == before) and 0 or -1
  elseif verb == 'ack' then
    acked[#acked + 1] = id
    done = done + 1
  elseif verb == 'publish' then
    local text = publish(id, deliveries, first, last)
    if text then
      code = text
    else
      acked[#acked + 1] = id
      done = done + 1
    end
  elseif verb == 'discard' then
    acked[#acked + 1] = id
    discarded = discarded + 1
  elseif (verb == 'release' or verb == 'pass' or verb == 'retry') and #redis.call('XRANGE', stream, id, id) == 0 then
    acked[#acked + 1] = id -- trimmed away meanwhile: there is nothing to give back, and a claim would drop it uncounted
    trimmed = trimmed + 1
  elseif verb == 'release' or verb == 'pass' then
    let_go(id, deliveries, 'SILENT')
    if verb == 'release' then answered(records, id) end
  elseif verb == 'retry' then
    local delay = tonumber(ARGV[first])
    if delay > 0 then put_off(id, delay) else let_go(id, deliveries, 'FAIL') end
    answered(records, id, true)
  else
    -- Both add an entry first and acknowledge last: an error in between leaves the entry where it was.
    local entry = redis.call('XRANGE', stream, id, id)[1]
    local fields = entry and entry[2] or {}
    local reply
    local is_copy = verb == 'copy' or verb == 'copy_later'
    if is_copy and entry then
      local words = copy_of(fields, prefix, id, ARGV[first])
      if verb == 'copy' then
        reply = append(stream, words)
      else
        reply = append_later(id, deliveries, words, tonumber(ARGV[last]))
      end
      if not failed(reply) then copied = copied + 1 end
    elseif is_copy then
      trimmed = trimmed + 1
    elseif verb == 'reject' then
      local about = {'dead_at', whole(now)}
      if ARGV[first] ~= 'attempts' then about[3], about[4] = 'attempts', whole(deliveries) end
      for k = first, last do about[#about + 1] = ARGV[k] end
      for k = 1, #about, 2 do
        if about[k + 1] == '' then about[k + 1] = known_of(about[k], owner, deliveries, fields, id) end
      end
      reply = bury(dlq, fields, prefix, id, about)
      if not failed(reply) then dead = dead + 1 end
    end
    if failed(reply) then
      code = reply.err
    else
      acked[#acked + 1] = id
    end
  end
  if acked[#acked] == id then is_gone[id] = true end
  codes[item] = code
  if has(flags, 'l') and (code == 0 or code == 1) then  -- with an error the entry is still ours, and so is its lock
    if redis.call('GET', KEYS[7 + item]) == consumer then redis.call('DEL', KEYS[7 + item]) end
  end
  i = last + 1
end
acknowledge(stream, group, flags, acked)
forget(records, acked)
if was_retried then on_ids(acked, function(...) redis.pcall('ZREM', retries, ...) end) end
count(meta, 'done:' .. group, done)
count(meta, 'dead:' .. group, dead)
count(meta, 'discarded:' .. group, discarded)
count(meta, 'copied:' .. group, copied)
count(meta, 'trimmed:' .. group, trimmed)
count(meta, 'released:' .. group, released)
return codes
