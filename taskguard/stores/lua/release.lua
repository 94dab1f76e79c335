-- KEYS: entry, own receipt
-- ARGV: owner, attempt, token (0: not known), how, keep_for, outcome given?, outcome, linger, answered, repeat_for, anyway
-- Returns 1 if the key was freed (with anyway: if the job has ended), else 0.
local owner, attempt, anyway = ARGV[1], ARGV[2], ARGV[11] == '1'
local how = ending(4)
local now = clock()
local entry = load_entry(KEYS[1], now)
local own = load_receipt(KEYS[2], now)
local queued_here = entry and anyway and entry[STATE] == 'queued' and entry[OWNER] == owner
local frees = queued_here or (entry and is_claim(entry) and is_newest(entry, owner, attempt, tonumber(ARGV[3])))
if not frees and not anyway then
    return told_before(KEYS[2], attempt, how, own, now)
end
if frees then
    save_entry(KEYS[1], ended('free', entry, how, now), now)
end
if own and own[R_HOW] ~= 'released' and (anyway or how.how == 'released') then
    -- The end that the job already has stays. If a run of it lasted until now, its retention starts again now.
    local answers = how.answered and own[R_HOW] == how.how  -- whoever ended it
    if frees then
        own[R_UNTIL] = math.max(own[R_UNTIL], now + how.keep)
        own[R_ATTEMPT] = anyway and own[R_ATTEMPT] or attempt  -- a repeated call gets the same answer
    end
    if answers then
        own[R_ANSWERED] = true
    end
    if frees or answers then
        save_receipt(KEYS[2], own, now)
    end
    return 1
end
-- The earlier attempt may repeat its plain release; a release "anyway" returns the same answer in any case.
local by = anyway and own and own[R_ATTEMPT] or attempt
save_receipt(KEYS[2], receipt_of(by, frees and entry or nil, how, now), now)
return 1
