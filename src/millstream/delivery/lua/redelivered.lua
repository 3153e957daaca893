-- Begin the next delivery of entries that were delivered before: give each a greater fence, and say what is known of its
-- earlier deliveries. Its lease begins anew.
-- KEYS  stream, the group's records
-- ARGV  group, consumer, then of each entry: id, delivery number, 1 if the delivery is known not to have reached a handler
-- Back  of each entry: fence (0: it is somebody else's now), failures, deaths alone, 1 if the last delivery ended without
--       an answer
-- Sent twice it gives a still greater fence, counts a death once, and may call an entry suspect that is not.

local stream, records, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local found = {}
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local owner, deliveries = held(stream, group, id)
  if owner == consumer and deliveries == tonumber(ARGV[i + 1]) then
    local fence, failures, crashes, state = record_of(records, id)
    if state == ALONE then crashes = crashes + 1 end
    local is_unanswered = state ~= ANSWERED and (state == ALONE or ARGV[i + 2] ~= '1')
    -- first, since it is allowed when memory is full, and what comes after it is too
    redis.call('XCLAIM', stream, group, consumer, 0, id, 'JUSTID')
    remember(records, id, fence + 1, failures, crashes, HANDED)
    found[#found + 1] = {fence + 1, failures, crashes, (is_unanswered or crashes > 0) and 1 or 0}
  else
    found[#found + 1] = {0, 0, 0, 0}
  end
end
return found
