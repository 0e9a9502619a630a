-- A request is finished: keep its result and tell who waits.
--
--   KEYS as in claim.lua; ARGV: value, milliseconds to keep it, 1 if the message brings the value
--   Message to each inbox: length of the claim's key in eight digits, milliseconds to keep the value in twelve, that
--   key, the value. Without it, whoever waits asks: on a cluster every node gets every message.
--
-- The first answer stays, unless it was partial and this one is full (byte 2 of the layout), or it is none.
-- -> 1, the value that stays if it is another one, or the error if it could not be kept (memory full): then those who wait get it all the same.
local kept = 1
local known = redis.pcall('GETRANGE', KEYS[1], 0, 1)
local kind = type(known) == 'string' and string.sub(known, 2, 2)
if (kind ~= 'f' and kind ~= 'p') or (kind == 'p' and string.sub(ARGV[1], 2, 2) == 'f') then
    kept = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local value = ARGV[1]
if kept == 1 then
    value = redis.call('GET', KEYS[1])
end
local waiting = redis.pcall('HGET', KEYS[2], 'w')
redis.call('UNLINK', KEYS[2])
if type(waiting) == 'string' then
    local message = string.format('%08d%012d', #KEYS[2], ARGV[2]) .. KEYS[2]
    if ARGV[3] == '1' then
        message = message .. value
    end
    for inbox in string.gmatch(waiting, '%S+') do
        redis.call('PUBLISH', inbox, message)
    end
end
if type(kept) == 'table' and kept.err then
    return kept
end
if value ~= ARGV[1] then
    return value
end
return 1
