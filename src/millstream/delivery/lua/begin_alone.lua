-- Note that a handler is about to begin on an entry and that nothing else runs in its process: if the delivery ends without
-- an answer, the entry has killed the process. The lease begins anew.
-- KEYS  stream, the group's records
-- ARGV  group, consumer, id, delivery number
-- Back  1, or 0 if the entry is somebody else's now

local stream, records, group, consumer, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local owner, deliveries = held(stream, group, id)
if owner ~= consumer or deliveries ~= tonumber(ARGV[4]) then return 0 end
redis.call('XCLAIM', stream, group, consumer, 0, id, 'JUSTID')
local fence, failures, crashes = record_of(records, id)
remember(records, id, fence, failures, crashes, ALONE)
return 1
