-- One or more writes under one comparison of tokens; or only the comparison, if there are none.
-- KEYS  the marks; the memory of `once`, if it is asked for; the keys that are written
-- ARGV  token, how many marks, milliseconds that marks and memory are kept, the call's random id,
--       for `once` the milliseconds that it counts for other owners, else 0, the owner,
--       then for each command the number of its words, and its words
local token, marks, keep, call = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local counts, owner = tonumber(ARGV[5]), ARGV[6]
local once, memory = counts > 0, KEYS[marks + 1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for number = 1, marks do
    local mark = redis.call('HGET', KEYS[number], 'token')
    if mark and tonumber(mark) > tonumber(token) then
        return {'stale', number, mark}
    end
end

-- A driver that lost the reply sends the same call again: it gets the reply, and nothing is written twice.
local last = redis.call('HMGET', KEYS[1], 'call', 'answer')
if last[1] == call then
    return cmsgpack.unpack(last[2])
end
local kept = once and redis.call('HMGET', memory, 'owner', 'until', 'answer')
if kept and kept[3] and (kept[1] == owner or now <= tonumber(kept[2])) then
    return cmsgpack.unpack(kept[3])
end

for number = 1, marks do
    redis.call('HSET', KEYS[number], 'token', token)
    if redis.call('PTTL', KEYS[number]) < keep then
        redis.call('PEXPIRE', KEYS[number], keep)
    end
end

local answer, at = {'done'}, 7
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
    if type(reply) == 'table' and reply.err then
        answer[1] = 'failed'
        answer[#answer + 1] = reply.err
        break
    end
    answer[#answer + 1] = reply
    at = at + words + 1
end

local packed = cmsgpack.pack(answer)
redis.call('HSET', KEYS[1], 'call', call, 'answer', packed)
-- What failed at its first command has changed nothing, and may be tried again.
if once and (answer[1] == 'done' or #answer > 2) then
    redis.call('HSET', memory, 'owner', owner, 'until', string.format('%.0f', now + counts), 'answer', packed)
    redis.call('PEXPIRE', memory, math.max(keep, counts))
end
return answer
