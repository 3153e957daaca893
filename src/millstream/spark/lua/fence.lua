-- Append rows of a batch once, however often they are sent.
-- KEYS  stream, fence
-- ARGV  partition, batch, number of the first row, seconds that the fence is kept, number of trimming words, these words,
--       then of each row: how many words follow, the id, names and values
-- Back  how many rows of this partition and batch the stream now has
local stream, fence = KEYS[1], KEYS[2]
local part, batch, row = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local trim = tonumber(ARGV[5])
local at = 6 + trim
local done = 0

local seen = redis.call('HGET', fence, part)
if seen then
  local last, rows = string.match(seen, '^(%d+):(%d+)$')
  last = tonumber(last)
  if last > batch then
    return redis.error_reply('STALE batch ' .. ARGV[2] .. ' came after batch ' .. last)
  end
  if last == batch then done = tonumber(rows) end
end
if done < row then
  return redis.error_reply('GAP row ' .. ARGV[3] .. ' came after ' .. done .. ' rows')
end

local failed
while ARGV[at] do
  local words = tonumber(ARGV[at])
  if row >= done then
    local reply
    if trim == 0 then
      reply = redis.pcall('XADD', stream, unpack(ARGV, at + 1, at + words))
    else
      reply = redis.pcall('XADD', stream, ARGV[6], ARGV[7], ARGV[8], unpack(ARGV, at + 1, at + words))
    end
    if type(reply) == 'table' and reply.err then
      failed = reply
      break
    end
  end
  row = row + 1
  at = at + words + 1
end
if row > done then
  redis.call('HSET', fence, part, ARGV[2] .. ':' .. string.format('%.0f', row))
  redis.call('EXPIRE', fence, ARGV[4])
end
if failed then return failed end
return row
