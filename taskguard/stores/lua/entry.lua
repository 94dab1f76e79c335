-- Common to every script: the format of entries and receipts. A translation of taskguard/protocol/rules.py; the
-- contract suite compares the two by random walks. Times are microseconds of the server; all fit a Lua double.
--
-- Both are packed arrays in a string with a time to live, so a held entry is small and nothing outlives its retention.
-- "None" is false, because an array must not have holes.
local STATE, OWNER, ATTEMPT, TOKEN, SINCE, UNTIL, KEEP, STARTS, TOOK_OVER, PAYLOAD = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local COPY, COPIES, COPY_UNTIL, HELD_UNTIL, REQUEUED_BY, DEATHS, HOW, OUTCOME = 11, 12, 13, 14, 15, 16, 17, 18
local LABEL, WHERE = 19, 20  -- absent from an entry that an older version wrote
local AWAITED = 'awaited:'  -- prefix of the name of the one message from which a queued job may start
-- a receipt; its owner is part of its key
local R_ATTEMPT, R_HOW, R_TOKEN, R_AT, R_UNTIL, R_OUTCOME, R_TWIN, R_ANSWERED = 1, 2, 3, 4, 5, 6, 7, 8

local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local function is_claim(entry)
    return entry[STATE] == 'queued' or entry[STATE] == 'running'
end

local function gone_at(entry)
    return is_claim(entry) and entry[UNTIL] + entry[KEEP] or entry[UNTIL]
end

local function load(key)
    local packed = redis.call('GET', key)
    if not packed then
        return nil
    end
    local ours, value = pcall(cmsgpack.unpack, packed)
    if not ours or type(value) ~= 'table' then
        error('NOT_OURS ' .. key)
    end
    return value
end

local function load_entry(key, now)
    local entry = load(key)
    return entry and gone_at(entry) > now and entry or nil
end

local function load_receipt(key, now)
    local receipt = load(key)
    return receipt and receipt[R_UNTIL] > now and receipt or nil
end

local function save(key, value, ends, now)
    redis.call('SET', key, cmsgpack.pack(value), 'PX', math.max(1, math.ceil((ends - now) / 1000)))
end

local function save_entry(key, entry, now)
    save(key, entry, gone_at(entry), now)
end

local function save_receipt(key, receipt, now)
    save(key, receipt, receipt[R_UNTIL], now)
end

-- Compare the token too, if it is known: a late claim packet is granted again under its old attempt.
local function is_newest(entry, owner, attempt, token)
    return attempt ~= '' and entry[ATTEMPT] == attempt and entry[OWNER] == owner
        and (token == 0 or token == entry[TOKEN])
end

-- How a job ended: ARGV[base...] = how, keep_for, outcome given?, outcome, linger, answered, repeat_for
local function ending(base)
    return {
        how = ARGV[base],
        keep = tonumber(ARGV[base + 1]),
        outcome = ARGV[base + 2] == '1' and ARGV[base + 3] or false,
        linger = tonumber(ARGV[base + 4]),
        answered = ARGV[base + 5] == '1',
        repeat_for = tonumber(ARGV[base + 6]),
    }
end

local function ended(state, entry, how, now)
    return {
        state, entry[OWNER], '', entry[TOKEN], now, now + math.max(how.keep, how.linger), how.keep, 0, false,
        entry[PAYLOAD], '', 0, 0, how.linger > 0 and now + how.linger or 0, entry[REQUEUED_BY], entry[DEATHS],
        how.how, state == 'done' and how.outcome, entry[LABEL] or '', entry[WHERE] or '',
    }
end

-- The receipt of a plain release is kept for a minute, or as long as it may be repeated: a repeat gets the same answer.
local function receipt_of(attempt, entry, how, now)
    local keep = how.how == 'released' and math.max(math.min(how.keep, 60000000), how.repeat_for) or how.keep
    return {attempt, how.how, entry and entry[TOKEN] or 0, now, now + keep, how.outcome, '', how.answered}
end

-- The answer to a repeated verb that was carried out before and whose reply was lost.
local function told_before(key, attempt, how, receipt, now)
    local same = receipt and receipt[R_HOW] == how.how
    if not receipt or receipt[R_ATTEMPT] ~= attempt or not (same or how.how == 'released') then
        return 0
    end
    if how.answered and same and not receipt[R_ANSWERED] then
        receipt[R_ANSWERED] = true
        save_receipt(key, receipt, now)
    end
    return 1
end
