-- Append a chunk of rows if the partition's fence is where the writer believes it to be.
-- KEYS  stream, fence, digests of the rows written so far
-- ARGV  partition, batch, expected token, next token, seconds that the fence is kept, digests of the rows (8 bytes each),
--       words of each row (0: they differ), number of trimming words, these words, then of each row: how many words follow
--       (if they differ), the id, names and values
-- Back  how many rows of this partition and batch the stream now has
-- The token changes with every chunk and is never used twice, so a chunk lands only after exactly those that its writer knows.
local stream, fence, digests = KEYS[1], KEYS[2], KEYS[3]
local part, batch = ARGV[1], tonumber(ARGV[2])
local same, trim = tonumber(ARGV[7]), tonumber(ARGV[8])
local at = 9 + trim
local done, token = 0, ''

local seen = redis.call('HGET', fence, part)
if seen then
  local last, rows, held = string.match(seen, '^(%d+):(%d+):?(.*)$')
  last = tonumber(last)
  if last > batch then
    return redis.error_reply('STALE batch ' .. ARGV[2] .. ' came after batch ' .. last)
  end
  if last == batch then done, token = tonumber(rows), held end
end
if token ~= ARGV[3] then
  return redis.error_reply('BEHIND another attempt has written, or the fence is gone: ' .. done .. ' rows')
end
if done > 0 and redis.call('STRLEN', digests) ~= 8 * done then
  return redis.error_reply('GAP the digests of ' .. done .. ' rows are incomplete')
end

local failed
local row = 0
-- Locals and one count for all rows: this loop is what a row costs the server beyond its XADD.
local argv, last, pcall, unpack, type, words = ARGV, #ARGV, redis.pcall, unpack, type, same
while at <= last do
  if same == 0 then
    words = tonumber(argv[at])
    at = at + 1
  end
  local reply
  if trim == 0 and words == 3 then
    reply = pcall('XADD', stream, argv[at], argv[at + 1], argv[at + 2])
  elseif trim == 0 then
    reply = pcall('XADD', stream, unpack(argv, at, at + words - 1))
  else
    reply = pcall('XADD', stream, argv[9], argv[10], argv[11], unpack(argv, at, at + words - 1))
  end
  if type(reply) == 'table' and reply.err then
    failed = reply
    break
  end
  row = row + 1
  at = at + words
end
if row > 0 then
  local next = ARGV[4]
  if failed then next = next .. '-' .. row end
  -- After the rows: a server that is full refuses a script only until its first write.
  redis.call(done > 0 and 'APPEND' or 'SET', digests, string.sub(ARGV[6], 1, 8 * row))
  redis.call('HSET', fence, part, ARGV[2] .. ':' .. string.format('%.0f', done + row) .. ':' .. next)
  redis.call('EXPIRE', fence, ARGV[5])
  redis.call('EXPIRE', digests, ARGV[5])
end
if failed then return failed end
return done + row
