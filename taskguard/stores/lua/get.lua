-- KEYS: entry
-- Returns {state, owner, attempt, token, since, remaining, starts, copies, payload, how, outcome, unended,
--      label, where} or nothing.
local now = clock()
local entry = load_entry(KEYS[1], now)
if not entry then
    return false
end
local unended = {}
for place, death in ipairs(entry[DEATHS]) do
    unended[place] = {death[1], death[3]}
end
return {
    entry[STATE], entry[OWNER], entry[ATTEMPT], entry[TOKEN], entry[SINCE], entry[UNTIL] - now, entry[STARTS],
    entry[COPIES], entry[PAYLOAD], entry[HOW], entry[OUTCOME], unended, entry[LABEL] or '', entry[WHERE] or '',
}
