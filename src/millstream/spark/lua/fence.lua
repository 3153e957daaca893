-- Append rows of a batch once, however often they are sent.
-- KEYS  stream, fence
-- ARGV  partition, batch, number of the first row, seconds that the fence is kept, words of each row (0: they differ),
--       number of trimming words, these words, then of each row: how many words follow (if they differ), the id, names
--       and values
-- Back  how many rows of this partition and batch the stream now has
local stream, fence = KEYS[1], KEYS[2]
local part, batch, row = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local same, trim = tonumber(ARGV[5]), tonumber(ARGV[6])
local at = 7 + trim
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
-- Locals and one count for all rows: this loop is what a row costs the server beyond its XADD.
local argv, last, pcall, unpack, type, words = ARGV, #ARGV, redis.pcall, unpack, type, same
while at <= last do
  if same == 0 then
    words = tonumber(argv[at])
    at = at + 1
  end
  if row >= done then
    local reply
    if trim == 0 and words == 3 then
      reply = pcall('XADD', stream, argv[at], argv[at + 1], argv[at + 2])
    elseif trim == 0 then
      reply = pcall('XADD', stream, unpack(argv, at, at + words - 1))
    else
      reply = pcall('XADD', stream, argv[7], argv[8], argv[9], unpack(argv, at, at + words - 1))
    end
    if type(reply) == 'table' and reply.err then
      failed = reply
      break
    end
  end
  row = row + 1
  at = at + words
end
if row > done then
  redis.call('HSET', fence, part, ARGV[2] .. ':' .. string.format('%.0f', row))
  redis.call('EXPIRE', fence, ARGV[4])
end
if failed then return failed end
return row
