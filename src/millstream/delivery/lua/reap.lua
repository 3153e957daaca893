-- Remove consumers that have nothing and have not been heard of: XGROUP DELCONSUMER drops what is pending without a
-- word, so that they have nothing is seen in the same step.
-- KEYS  stream
-- ARGV  group, silent for ms, the only one to remove ('' any)
-- Back  their names

local reaped = {}
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local found = as_table(row)
  local name = found['name']
  if tonumber(found['pending']) == 0 and tonumber(found['idle']) >= tonumber(ARGV[2]) and name ~= RELEASED
      and name ~= DELAYED and (ARGV[3] == '' or name == ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
    reaped[#reaped + 1] = name
  end
end
return reaped
