-- A claim that finds an entry or a receipt; runs after claim_new.lua and uses its locals.
local copy_for, copy = tonumber(ARGV[8] or '0'), ARGV[9] or ''
local skip, reuse, join = ARGV[11] == '1', ARGV[12] or 'nothing', ARGV[13]
local replace_queued, stamp = ARGV[15] == '1', ARGV[16]

local entry = load_entry(KEYS[1], now)
local own = load_receipt(KEYS[2], now)

local function next_token(last)
    return math.max(last + 1, floor + 1, now)
end

local function leased(granted)
    return {ok = string.format('%.0f %d %d', granted[TOKEN], granted[STARTS], granted[TOOK_OVER] and 1 or 0)}
end

local function completed(by, receipt, twin)
    return {
        'completed', by, receipt[R_HOW], receipt[R_TOKEN], receipt[R_AT], receipt[R_OUTCOME], twin,
        receipt[R_ANSWERED] and 1 or 0, '',
    }
end

-- The job ends as the holder that it joined. Its receipt is for copies of its message that name no holder.
local function joined(twin)
    local receipt = {attempt, twin[R_HOW], twin[R_TOKEN], twin[R_AT], now + keep, twin[R_OUTCOME], join, false}
    save_receipt(KEYS[2], receipt, now)
    if entry and entry[OWNER] == owner and entry[STATE] == 'queued' then
        -- Nobody will run it, so nobody must wait for it.
        local how = {how = twin[R_HOW], keep = entry[KEEP], outcome = false, linger = 0}
        save_entry(KEYS[1], ended('free', entry, how, now), now)
    end
    return completed(join, receipt, '')
end

-- Owners that lost the key without an end keep their count of starts, at most eight of them.
local function deaths_after()
    local others = {}
    for _, death in ipairs(entry[DEATHS]) do
        if death[1] ~= owner and death[1] ~= entry[OWNER] then
            others[#others + 1] = death
        end
    end
    if is_claim(entry) and entry[OWNER] ~= owner and entry[STARTS] > 0 then
        others[#others + 1] = {entry[OWNER], entry[STARTS], entry[PAYLOAD]}
    end
    if #others > 8 then
        table.remove(others, 1)
    end
    return others
end

local function starts_before()
    if is_claim(entry) and entry[OWNER] == owner then
        return entry[STARTS]
    end
    for _, death in ipairs(entry[DEATHS]) do
        if death[1] == owner then
            return death[2]
        end
    end
    return 0
end

local function grant()
    local again = entry and is_claim(entry) and entry[OWNER] == owner
    local starts = entry and starts_before() or 0
    local granted = {
        state, owner, attempt,
        next_token(entry and entry[TOKEN] or 0),
        now, now + lease, keep, state == 'running' and starts + 1 or starts,
        entry ~= nil and entry[STATE] == 'running', payload, '', 0, 0, 0, again and entry[REQUEUED_BY] or '',
        entry and deaths_after() or {}, false, false, label ~= '' and label or entry and entry[LABEL] or '', where,
    }
    save_entry(KEYS[1], granted, now)
    return leased(granted)
end

-- Changes with each grant of the key and each named copy.
local function stamp_of_entry()
    return string.format('%.0f:%.0f', entry[TOKEN], entry[COPY_UNTIL])
end

-- Whether the caller must publish the holder's message: the one that changes the stamp must.
local function note_copy()
    local overdue = entry[COPY_UNTIL] <= now
    if entry[OWNER] == owner then
        if entry[STATE] == 'queued' then
            return 1
        end
        if copy == '' or not (overdue or entry[COPY] == copy) then
            return 0
        end
        -- Else it is not published yet: if the worker died before publishing, the name would stay. Or published, and
        -- perhaps already dropped in favour of a copy that was named in the meantime.
        if copy_for > 0 and stamp == stamp_of_entry() then
            entry[COPY], entry[COPY_UNTIL] = copy, now + copy_for
            save_entry(KEYS[1], entry, now)
        end
        return 1
    end
    if entry[STATE] ~= 'queued' or copy_for <= 0 then
        return 0
    end
    -- Not published yet; or repeated after a lost reply.
    if entry[COPY_UNTIL] == 0 or entry[COPY] == attempt then
        return 1
    end
    if overdue and entry[COPIES] <= 3 then
        entry[COPY_UNTIL] = now + copy_for * 2 ^ entry[COPIES]
        entry[COPY], entry[COPIES] = attempt, entry[COPIES] + 1
        save_entry(KEYS[1], entry, now)
        return 1
    end
    return 0
end

local function held_by_entry(publish)
    local ends = is_claim(entry) and entry[UNTIL] or entry[HELD_UNTIL]
    -- A caller that finds a queued entry may mark it. With a running entry's attempt it could end that lease.
    local seen = entry[STATE] == 'queued' and entry[ATTEMPT] or ''
    local goes_on = publish == 1 and entry[OWNER] == owner and entry[STATE] == 'running'
    return {
        'held', entry[OWNER], seen, entry[TOKEN], entry[STATE], entry[SINCE], ends - now, entry[PAYLOAD], publish,
        goes_on and stamp_of_entry() or '',
    }
end

local function held()
    local publish = note_copy()
    if skip and entry[OWNER] ~= owner and entry[STATE] ~= 'queued' then
        local ends = now + keep
        save_receipt(KEYS[2], {attempt, 'skipped', entry[TOKEN], now, ends, false, entry[OWNER], false}, now)
    end
    return held_by_entry(publish)
end

-- Repeated after a lost reply: the same lease, unless it expired and another copy of the job's message has ended it.
local has_ended = own and own[R_HOW] ~= 'released' and entry and entry[UNTIL] <= now
if entry and entry[ATTEMPT] == attempt and entry[OWNER] == owner and entry[STATE] == state and not has_ended then
    entry[UNTIL] = now + lease
    save_entry(KEYS[1], entry, now)
    return leased(entry)
end

-- The job has ended. A claim repeated after a lost reply gets the same answer again.
if own and (own[R_HOW] ~= 'released' or own[R_ATTEMPT] == attempt) then
    if own[R_HOW] == 'skipped' and own[R_ATTEMPT] == attempt then
        if entry and entry[TOKEN] == own[R_TOKEN] and entry[STATE] == 'running' then
            return held_by_entry(0)
        end
        return {'held', own[R_TWIN], '', own[R_TOKEN], 'running', own[R_AT], 0, '', 0, ''}
    end
    if own[R_TWIN] ~= '' and own[R_ATTEMPT] == attempt then
        return completed(own[R_TWIN], own, '')
    end
    return completed(owner, own, own[R_TWIN])
end

local twin = KEYS[3] and load_receipt(KEYS[3], now)
-- A job that runs elsewhere ends as that run does, not as the holder it joins.
local runs = entry and entry[OWNER] == owner and entry[STATE] == 'running' and entry[UNTIL] > now
if twin and not runs and (twin[R_HOW] == 'succeeded' or twin[R_HOW] == 'failed') then
    return joined(twin)
end

if not entry then
    return grant()
end

if is_claim(entry) and entry[UNTIL] > now then
    if entry[STATE] == 'queued' then
        -- A requeued attempt is over: a late packet of its claim must not start the job again.
        local mine = entry[OWNER] == owner and entry[REQUEUED_BY] ~= attempt
        -- Nor does a job start from another message than the awaited one, while that is on its way.
        local named = string.sub(entry[COPY], 1, #AWAITED) == AWAITED and entry[COPY_UNTIL] > now
        local waits = named and entry[COPY] ~= AWAITED .. copy
        if (mine and state == 'running' and not waits) or (replace_queued and entry[OWNER] ~= owner) then
            return grant()
        end
    end
    return held()
end

if entry[STATE] == 'done' then
    local reused = reuse == 'anything' or (reuse == 'success' and entry[HOW] == 'succeeded')
    if reused or entry[OWNER] == owner then
        return {
            'completed', entry[OWNER], entry[HOW], entry[TOKEN], entry[SINCE], entry[OUTCOME], '', 0, entry[PAYLOAD],
        }
    end
end
if entry[HELD_UNTIL] > now and entry[OWNER] ~= owner then
    return held()
end
return grant()
