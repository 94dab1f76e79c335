-- KEYS: entry, own receipt, [receipt of the holder to join]
-- ARGV: owner, attempt, state, lease, keep_for, label, where,
--       [copy_for, copy, payload, skip, reuse, owner to join, floor, replace_queued, stamp]
-- Returns the token if the claim is granted and there was no entry: the usual answer, and the cheapest one;
--      'token starts took_over' if it is granted otherwise;
--      else {'held', owner, attempt, token, state, since, remaining, payload, publish, stamp}
--      or {'completed', owner, how, token, at, outcome, twin, answered, payload}
--
-- Most claims find no entry. That case comes before the code for all others, since each call of a script defines its
-- functions again.
local owner, attempt, state = ARGV[1], ARGV[2], ARGV[3]
local lease, keep, payload, floor = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[10] or '', tonumber(ARGV[14] or '0')
local label, where = ARGV[6], ARGV[7]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if redis.call('EXISTS', unpack(KEYS)) == 0 then
    -- Seeded by the clock: even if the entry is evicted or flushed, tokens only rise.
    local token, starts = math.max(floor + 1, now), state == 'running' and 1 or 0
    redis.call('SET', KEYS[1], cmsgpack.pack({
        state, owner, attempt, token, now, now + lease, keep, starts, false, payload, '', 0, 0, 0, '', {}, false, false,
        label, where,
    }), 'PX', math.max(1, math.ceil((lease + keep) / 1000)))
    return token
end
