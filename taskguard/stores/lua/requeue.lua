-- KEYS: entry
-- ARGV: owner, attempt, token (0: not known), seconds, copy, copy_for, keep_starts
-- Answers 1 if the job is in the queue by this attempt, else 0.
local owner, attempt = ARGV[1], ARGV[2]
local now = clock()
local entry = load_entry(KEYS[1], now)
if not entry then
    return 0
end
if is_claim(entry) and is_newest(entry, owner, attempt, tonumber(ARGV[3])) then
    if entry[STATE] == 'running' then
        entry[SINCE] = now
        if ARGV[7] ~= '1' then
            entry[STARTS] = 0
        end
    end
    entry[STATE], entry[ATTEMPT], entry[REQUEUED_BY] = 'queued', '', attempt
    entry[UNTIL] = now + tonumber(ARGV[4])
    entry[COPY], entry[COPIES], entry[COPY_UNTIL] = ARGV[5], 1, now + tonumber(ARGV[6])
    save_entry(KEYS[1], entry, now)
    return 1
end
return attempt ~= '' and entry[OWNER] == owner and entry[REQUEUED_BY] == attempt and 1 or 0
