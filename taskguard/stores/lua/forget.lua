-- KEYS: entry
-- ARGV: token (0: any)
-- Returns 1 if the key is free now, 0 if that token is not the newest or there is no entry.
local token = tonumber(ARGV[1])
local now = clock()
local entry = load_entry(KEYS[1], now)
if not entry or (token ~= 0 and token ~= entry[TOKEN]) then
    return 0
end
local keep = entry[KEEP]
save_entry(KEYS[1], {
    'free', '', '', entry[TOKEN], now, now + keep, keep, 0, false, '', '', 0, 0, 0, '', {}, false, false,
    entry[LABEL] or '', entry[WHERE] or '',
}, now)
return 1
