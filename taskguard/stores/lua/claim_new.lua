-- KEYS: entry, own receipt, [receipt of the twin to join]
-- ARGV: owner, attempt, state, lease, keep_for, label, where,
--       [copy_for, copy, payload, skip, reuse, owner of the twin, floor, replace_queued, stamp]
-- Answers the token if it is granted and nothing was known of the key: the usual answer, and the cheapest there is;
--      'token starts took_over' if it is granted otherwise;
--      else {'held', owner, attempt, token, state, since, remaining, payload, publish, stamp}
--      or {'completed', owner, how, token, at, outcome, twin, answered, payload}
--
-- Most claims find nothing. That case stands in front of all that the others need: a script defines its functions anew
-- in each call.
local owner, attempt, state = ARGV[1], ARGV[2], ARGV[3]
local lease, keep, payload, floor = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[10] or '', tonumber(ARGV[14] or '0')
local label, where = ARGV[6], ARGV[7]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if redis.call('EXISTS', unpack(KEYS)) == 0 then
    -- Seeded by the clock: the entry may be evicted or flushed whole, and tokens still only rise.
    local token, starts = math.max(floor + 1, now), state == 'running' and 1 or 0
    redis.call('SET', KEYS[1], cmsgpack.pack({
        state, owner, attempt, token, now, now + lease, keep, starts, false, payload, '', 0, 0, 0, '', {}, false, false,
        label, where,
    }), 'PX', math.max(1, math.ceil((lease + keep) / 1000)))
    return token
end
