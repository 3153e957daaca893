-- Everything that an account of a stream and one of its groups needs, at one moment.
-- KEYS  stream, dead letters, delayed entries, the group's retries, meta
-- ARGV  group, '1' if undelivered entries are to be counted one by one where the server cannot say how many there are
--       (it cannot for long where entries are removed when they are done, and to count a long backlog holds it up), '0'
--       if our own counters will do
-- Back  entries, ever added (-1 unknown), pending, undelivered (-1 unknown), dead letters, delayed, parked retries,
--       released, the counters

local stream, dlq, delayed, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local added, pending, undelivered, released, parked = 0, 0, 0, 0, 0
if redis.call('EXISTS', stream) == 1 then
  added = tonumber(as_table(redis.call('XINFO', 'STREAM', stream))['entries-added']) or -1
  undelivered = redis.call('XLEN', stream)
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local found = as_table(row)
    if found['name'] == ARGV[1] then
      pending = tonumber(found['pending'])
      undelivered = tonumber(found['lag']) or -1
      if undelivered < 0 and added >= 0 and ARGV[2] ~= '1' then
        -- What the group was ever given and has no longer, by our own steps; what others settled is not among it.
        local left = added
        for _, name in ipairs({'done', 'dead', 'discarded', 'copied', 'trimmed'}) do
          left = left - tonumber(redis.call('HGET', meta, name .. ':' .. ARGV[1]) or 0)
        end
        undelivered = math.max(0, math.min(left, redis.call('XLEN', stream)) - pending)
      elseif undelivered < 0 then
        local after, page = found['last-delivered-id'], nil
        undelivered = 0
        repeat
          page = redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', 1000)
          undelivered = undelivered + #page
          if #page > 0 then after = page[#page][1] end
        until #page < 1000
      end
      -- what no consumer has was released by XNACK; where there is none, a consumer of ours stands for nobody
      released = pending
      for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', stream, ARGV[1])) do
        local consumer = as_table(each)
        if consumer['name'] ~= RELEASED then released = released - tonumber(consumer['pending']) end
        -- the set of retries is no measure: what a CLAIM read took stays in it until it is settled
        if consumer['name'] == DELAYED then parked = tonumber(consumer['pending']) end
      end
    end
  end
end
return {redis.call('XLEN', stream), added, pending, undelivered, redis.call('XLEN', dlq), redis.call('ZCARD', delayed),
  parked, released, redis.call('HGETALL', meta)}
