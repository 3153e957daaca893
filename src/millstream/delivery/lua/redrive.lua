-- Put dead letters back into their stream, or throw them away; those that are gone already are passed over.
-- KEYS  stream, dead letters, meta
-- ARGV  verb (redrive | discard), prefix, the group that is to have them ('' all), ids
-- Back  of each id: the new id, '' when discarded, or 0 when there is no such dead letter (any more)

local stream, dlq, meta = KEYS[1], KEYS[2], KEYS[3]
local verb, prefix, group = ARGV[1], ARGV[2], ARGV[3]
local results, done = {}, {}
local reserved = {retry_count = true, original_id = true, expires_at = true, redriven = true, redrive_group = true}

-- The entry's own fields of a dead letter: those in front of ours. One that another library wrote has no count.
local function own_fields(record)
  local n = #record
  local ours = record[n - 1] == prefix .. 'meta' and tonumber(record[n]) or 0
  if ours >= 1 and 2 * ours <= n then n = n - 2 * ours end
  local fields = {}
  for i = 1, n, 2 do
    local name = record[i]
    if not (string.sub(name, 1, #prefix) == prefix and reserved[string.sub(name, #prefix + 1)]) then
      fields[#fields + 1] = name
      fields[#fields + 1] = record[i + 1]
    end
  end
  return fields
end

-- Counted by the group that gave them up: it is that one's account that they leave.
local function count_all()
  for owner, n in pairs(done) do
    count(meta, (verb == 'redrive' and 'redriven:' or 'dead_discarded:') .. owner, n)
  end
end

for k = 4, #ARGV do
  local entry = redis.call('XRANGE', dlq, ARGV[k], ARGV[k])[1]
  if not entry then
    results[#results + 1] = 0
  elseif verb == 'discard' then
    local owner = as_table(entry[2])[prefix .. 'group'] or ''
    redis.call('XDEL', dlq, ARGV[k])
    results[#results + 1] = ''
    done[owner] = (done[owner] or 0) + 1
  else
    local record = entry[2]
    local known = as_table(record)
    local fields = own_fields(record)
    local function add(name, value)
      fields[#fields + 1] = prefix .. name
      fields[#fields + 1] = value
    end
    add('original_id', known[prefix .. 'original_id'] or ARGV[k])
    add('redriven', whole((tonumber(known[prefix .. 'redriven'] or '0') or 0) + 1))
    if group ~= '' then add('redrive_group', group) end
    local reply = append(stream, fields)
    if failed(reply) then
      count_all()
      return reply
    end
    results[#results + 1] = reply
    redis.call('XDEL', dlq, ARGV[k])
    local owner = known[prefix .. 'group'] or ''
    done[owner] = (done[owner] or 0) + 1
  end
end
count_all()
return results
