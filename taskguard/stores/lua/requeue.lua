-- KEYS: entry, own receipt
-- ARGV: owner, attempt, token (0: not known), seconds, copy_for, keep_starts,
--       whether it only marks and leaves a running entry alone, [name of the message that goes on]
-- Answers 1 if the job is in the queue by this attempt, else 0.
local owner, attempt = ARGV[1], ARGV[2]
local now = clock()
local entry = load_entry(KEYS[1], now)
if not entry then
    return 0
end
if is_claim(entry) and is_newest(entry, owner, attempt, tonumber(ARGV[3])) then
    if entry[STATE] == 'running' and ARGV[7] == '1' then
        return 0
    end
    local own = load_receipt(KEYS[2], now)
    if own and own[R_HOW] ~= 'released' then
        -- It was revoked at another worker meanwhile: nobody will run it, so nobody is to wait for it.
        local how = {how = own[R_HOW], keep = entry[KEEP], outcome = false, linger = 0}
        local over = ended('free', entry, how, now)
        over[REQUEUED_BY] = attempt
        save_entry(KEYS[1], over, now)
        return 1
    end
    if entry[STATE] == 'running' then
        entry[SINCE] = now
        if ARGV[6] ~= '1' then
            entry[STARTS] = 0
        end
    end
    entry[STATE], entry[ATTEMPT], entry[REQUEUED_BY] = 'queued', '', attempt
    entry[UNTIL] = now + tonumber(ARGV[4])
    local copy = ARGV[8] or ''
    entry[COPY], entry[COPIES], entry[COPY_UNTIL] = copy ~= '' and AWAITED .. copy or '', 1, now + tonumber(ARGV[5])
    save_entry(KEYS[1], entry, now)
    return 1
end
local mine = attempt ~= '' and entry[OWNER] == owner and entry[REQUEUED_BY] == attempt
local named = entry[STATE] == 'queued' and string.sub(entry[COPY], 1, #AWAITED) == AWAITED
if mine and named and (ARGV[8] or '') == '' then  -- the message that was named did not leave
    entry[COPY] = ''
    save_entry(KEYS[1], entry, now)
end
return mine and 1 or 0
