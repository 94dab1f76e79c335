-- Compares the token with the high-water marks, raises them, and runs the writes; without writes it only does the first two.
-- KEYS  the high-water marks; the record of `once`, if there is one; the keys to write
-- ARGV  token, number of marks, milliseconds until marks and record expire, the call's random id,
--       for `once` the milliseconds for which the record holds for other owners, else 0, the owner,
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

-- If a driver lost the reply and repeats the call, it gets the same reply, and nothing is written twice.
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
-- If the first command failed, nothing was written, and a retry may run.
if once and (answer[1] == 'done' or #answer > 2) then
    redis.call('HSET', memory, 'owner', owner, 'until', string.format('%.0f', now + counts), 'answer', packed)
    redis.call('PEXPIRE', memory, math.max(keep, counts))
end
return answer
