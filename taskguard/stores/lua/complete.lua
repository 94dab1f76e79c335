-- KEYS: entry, own receipt
-- ARGV: owner, attempt, token (0: not known), how, keep_for, outcome given?, outcome, linger, answered, repeat_for
-- Returns 1 if this attempt has completed the work, else 0.
local owner, attempt = ARGV[1], ARGV[2]
local how = ending(4)
local now = clock()
local entry = load_entry(KEYS[1], now)
if entry and entry[STATE] == 'running' and is_newest(entry, owner, attempt, tonumber(ARGV[3])) then
    save_entry(KEYS[1], ended('done', entry, how, now), now)
    save_receipt(KEYS[2], receipt_of(attempt, entry, how, now), now)
    return 1
end
return told_before(KEYS[2], attempt, how, load_receipt(KEYS[2], now), now)
