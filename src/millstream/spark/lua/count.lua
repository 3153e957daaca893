-- Note down that rows were appended. Called twice in a transaction: before the rows with a partition only, and behind.
-- KEYS  stream, fence
-- ARGV  partition [, batch, rows of the batch that were there before, seconds that the fence is kept]
-- Back  how many rows of this partition and batch the stream now has
local stream, fence, part = KEYS[1], KEYS[2], ARGV[1]
local before = part .. ':from'

-- How many entries the stream has ever had. Counted, as a row that is refused does not end a transaction.
local function added()
  local about = redis.pcall('XINFO', 'STREAM', stream)
  if about.err then
    if string.find(about.err, 'no such key', 1, true) then return 0 end
    error(about)
  end
  for at = 1, #about, 2 do
    if about[at] == 'entries-added' then return about[at + 1] end
  end
end

if #ARGV == 1 then
  redis.call('HSET', fence, before, string.format('%.0f', added()))
  return 0
end
local rows = tonumber(ARGV[3]) + added() - tonumber(redis.call('HGET', fence, before))
redis.call('HSET', fence, part, ARGV[2] .. ':' .. string.format('%.0f', rows))
redis.call('EXPIRE', fence, ARGV[4])
return rows
