-- KEYS: the log of ordinary lines, the log of notable ones; one hash tag for both, so both are in one slot
-- ARGV: elements to keep in each, seconds to keep them, how many of the following are ordinary, then all lines, the
--       ordinary ones first; each begins with its age in microseconds
-- A log is a list. The time of each call follows its lines, so that trimming from the other end never removes the time
-- of lines that stay.
local time = redis.call('TIME')
local now = string.format('@%.0f', time[1] * 1000000 + time[2])
local ordinary = tonumber(ARGV[3])

local function add(log, first, last)
    if first <= last then
        redis.call('RPUSH', log, unpack(ARGV, first, last))
        redis.call('RPUSH', log, now)
        redis.call('LTRIM', log, -ARGV[1], -1)
        redis.call('EXPIRE', log, ARGV[2])
    end
end

add(KEYS[1], 4, 3 + ordinary)
add(KEYS[2], 4 + ordinary, #ARGV)
return 1
