-- What a consumer holds, a page at a time, in few words: entries that follow each other in the stream and were delivered
-- once are a run.
-- KEYS  stream
-- ARGV  group, consumer, prefix, the id to go on behind ('' from the start), how many
-- Back  runs {first id, last id, how many}, others {id, deliveries}, those that must not be worked on {id, deliveries, when
--       they expired, or '' for what was redriven to another group}, the id to go on behind ('' all were seen)

local stream, group, consumer, prefix, after, most = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local now = now_ms()

local function condemned(fields)
  local expires, for_group
  for i = 1, #fields, 2 do
    if fields[i] == prefix .. 'redrive_group' then for_group = fields[i + 1] end
    if fields[i] == prefix .. 'expires_at' then expires = tonumber(fields[i + 1]) end
  end
  if for_group and for_group ~= group then return '' end
  if expires and expires <= now then return whole(expires) end
end

local runs, others, ended, run, last = {}, {}, {}, nil, nil
local rows = redis.call('XPENDING', stream, group, after == '' and '-' or '(' .. after, '+', most, consumer)
for _, row in ipairs(rows) do
  local id, deliveries = row[1], row[4]
  local entry = redis.call('XRANGE', stream, run and '(' .. last or id, '+', 'COUNT', 1)[1]
  local follows = run and entry and entry[1] == id
  if run and not follows then entry = redis.call('XRANGE', stream, id, id)[1] end
  if entry and entry[1] == id then -- else it is gone, which recovery finds
    local verdict = condemned(entry[2])
    if verdict then
      ended[#ended + 1] = {id, deliveries, verdict}
      run = nil
    elseif deliveries ~= 1 then
      others[#others + 1] = {id, deliveries}
      run = nil
    elseif follows then
      run[2], run[3] = id, run[3] + 1
    else
      run = {id, id, 1}
      runs[#runs + 1] = run
    end
    last = id
  end
end
return {runs, others, ended, #rows == most and rows[#rows][1] or ''}
