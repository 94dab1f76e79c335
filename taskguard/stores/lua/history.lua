-- KEYS: the log of ordinary lines, the log of notable ones; one hash tag for both, so both are in one slot
-- ARGV: lines to keep in each, seconds to keep them, then of each line its age, whether it is notable, and its text
-- Answers how many lines were added.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = 3, #ARGV, 3 do
    local log = ARGV[i + 1] == '1' and KEYS[2] or KEYS[1]
    local at = string.format('%.0f', now - ARGV[i])
    redis.call('XADD', log, 'MAXLEN', '~', ARGV[1], '*', 'at', at, 'text', ARGV[i + 2])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return (#ARGV - 2) / 3
