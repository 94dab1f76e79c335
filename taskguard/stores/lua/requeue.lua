-- KEYS: entry and own receipt of each job
-- ARGV: copy_for, keep_starts, 1 if it only marks and does not change a running entry, name of the republished message;
--       then for each job: owner, attempt, token (0: not known), seconds
-- Returns one digit per job: 1 if this attempt has queued it, else 0. Each job is a step of its own.
local copy_for, keep_starts, only_marks, copy = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3] == '1', ARGV[4]
local now = clock()

local function requeue(key, receipt_key, owner, attempt, token, seconds)
    local entry = load_entry(key, now)
    if not entry then
        return 0
    end
    if is_claim(entry) and is_newest(entry, owner, attempt, token) then
        if entry[STATE] == 'running' and only_marks then
            return 0
        end
        local own = load_receipt(receipt_key, now)
        if own and own[R_HOW] ~= 'released' then
            -- Another worker has revoked it in the meantime: nobody will run it, so nobody must wait for it.
            local how = {how = own[R_HOW], keep = entry[KEEP], outcome = false, linger = 0}
            local over = ended('free', entry, how, now)
            over[REQUEUED_BY] = attempt
            save_entry(key, over, now)
            own[R_UNTIL] = math.max(own[R_UNTIL], now + entry[KEEP])
            save_receipt(receipt_key, own, now)
            return 1
        end
        if entry[STATE] == 'running' then
            entry[SINCE] = now
            if not keep_starts then
                entry[STARTS] = 0
            end
        end
        entry[STATE], entry[ATTEMPT], entry[REQUEUED_BY] = 'queued', '', attempt
        entry[UNTIL] = now + seconds
        entry[COPY], entry[COPIES], entry[COPY_UNTIL] = copy ~= '' and AWAITED .. copy or '', 1, now + copy_for
        save_entry(key, entry, now)
        return 1
    end
    local mine = attempt ~= '' and entry[OWNER] == owner and entry[REQUEUED_BY] == attempt
    local named = entry[STATE] == 'queued' and string.sub(entry[COPY], 1, #AWAITED) == AWAITED
    if mine and named and copy == '' then  -- the named message was not published
        entry[COPY] = ''
        save_entry(key, entry, now)
    end
    return mine and 1 or 0
end

local answers = {}
for job = 1, #KEYS / 2 do
    local its = 4 * job
    answers[job] = requeue(
        KEYS[2 * job - 1], KEYS[2 * job], ARGV[its + 1], ARGV[its + 2], tonumber(ARGV[its + 3]), tonumber(ARGV[its + 4])
    )
end
return {ok = table.concat(answers)}
