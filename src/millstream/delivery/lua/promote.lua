-- Let what waits go on: entries published with a delay into the stream when they are due, and, for servers whose
-- CLAIM read knows only idle times, long retries kept from looking forgotten until they are.
-- KEYS  stream, delayed entries, the group's retries
-- ARGV  group ('' none), flags, idle ms of what is due, how many, rank in the retries to go on from
-- Back  how many were appended, ms until the next (-1: none), next rank (0: all were seen), the server's time in ms

local stream, delayed, retries = KEYS[1], KEYS[2], KEYS[3]
local group, flags, lease, limit, rank = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()

-- An error, as when memory is full, leaves the rest where it is and must not keep the retries below from being seen to.
local appended, refused = 0, nil
for _, member in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', whole(now), 'LIMIT', 0, limit)) do
  local reply = append(stream, cmsgpack.unpack(string.sub(member, 37)))
  refused = failed(reply) and reply
  if refused then break end
  redis.call('ZREM', delayed, member)
  appended = appended + 1
end
local next_due = -1
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if first[2] then next_due = math.max(tonumber(first[2]) - now, 0) end

local next_rank = 0
if group ~= '' and has(flags, 'c') then
  local parked = redis.call('ZRANGE', retries, rank, rank + limit - 1, 'WITHSCORES')
  -- One look at all that is parked, since most of it is as it should be.
  local rows = #parked > 0 and redis.call('XPENDING', stream, group, '-', '+', limit, DELAYED) or {}
  local idle = {}
  for _, row in ipairs(rows) do idle[row[1]] = tonumber(row[3]) end
  for i = 1, #parked, 2 do
    local id, since = parked[i], math.min(tonumber(parked[i + 1]) - lease, now)
    local known = idle[id]
    if not known and #rows == limit then  -- there are more than one look shows
      local owner, _, waited = held(stream, group, id)
      known = owner == DELAYED and waited
    end
    if not known then
      redis.call('ZREM', retries, id)
    elseif math.abs(now - known - since) > 1 then
      redis.call('XCLAIM', stream, group, DELAYED, 0, id, 'TIME', whole(since), 'JUSTID')
    end
  end
  if #parked == limit * 2 then next_rank = rank + limit end
end
return refused or {appended, next_due, next_rank, whole(now)}
