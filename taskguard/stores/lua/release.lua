-- KEYS: entry, own receipt
-- ARGV: owner, attempt, token (0: not known), how, keep_for, outcome given?, outcome, linger, answered, anyway
-- Answers 1 if the key was freed (with anyway: if the job has ended), else 0.
local owner, attempt, anyway = ARGV[1], ARGV[2], ARGV[10] == '1'
local how = ending(4)
local now = clock()
local entry = load_entry(KEYS[1], now)
local queued_here = entry and anyway and entry[STATE] == 'queued' and entry[OWNER] == owner
if queued_here or (entry and is_claim(entry) and is_newest(entry, owner, attempt, tonumber(ARGV[3]))) then
    save_entry(KEYS[1], ended('free', entry, how, now), now)
    save_receipt(KEYS[2], receipt_of(attempt, entry, how, now), now)
    return 1
end
local own = load_receipt(KEYS[2], now)
if anyway then
    if not own or own[R_HOW] == 'released' then
        save_receipt(KEYS[2], receipt_of(attempt, nil, how, now), now)
    elseif how.answered and own[R_HOW] == how.how then  -- whoever it was that ended it
        own[R_ANSWERED] = true
        save_receipt(KEYS[2], own, now)
    end
    return 1
end
return told_before(KEYS[2], attempt, how, own, now)
