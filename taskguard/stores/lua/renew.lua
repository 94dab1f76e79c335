-- KEYS: entry
-- ARGV: owner, attempt, token, seconds
-- Returns 1, or 0 once that lease is no longer the newest.
local now = clock()
local entry = load_entry(KEYS[1], now)
if not entry or entry[STATE] ~= 'running' or not is_newest(entry, ARGV[1], ARGV[2], tonumber(ARGV[3])) then
    return 0
end
entry[UNTIL] = now + tonumber(ARGV[4])
save_entry(KEYS[1], entry, now)
return 1
