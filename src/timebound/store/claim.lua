-- Who computes this request?
--
--   KEYS[1]  {ns}:r:{model}:{key}   string: the result, in the layout of store/value.py
--   KEYS[2]  {ns}:c:{model}:{key}   hash: o = owner, f = fingerprint, w = inboxes that wait, separated by spaces
--   KEYS[3]  {ns}:o                 only on a cluster: the table of leases, see lease.lua
--   ARGV     owner, fingerprint, inbox, prefix of leases ({ns}:o:), milliseconds a claim is kept, SHA1 of a value that
--            cannot be read and counts as not there, or '', the bytes of the longest value, prefix of inboxes ({ns}:i:),
--            milliseconds after which an owner that hears nothing is dead
--            {ns}:o:{owner}         string that expires: there is one lease per owner, renewed while it lives; its
--                                   text is the lease's length in milliseconds
--
-- On a cluster {ns} has a hash tag, so that all of these are in one slot.
-- -> {'r', milliseconds left of it, value} | {'o', 1 if taken over from the dead, else 0} | {'j', milliseconds left of the owner's lease} | {'c'}
-- What is no string, too long, or no hash, is nobody's of us: it goes too. An empty string is as nothing.
local function left_of(owner)
    if KEYS[3] then
        local time = redis.call('TIME')
        return (tonumber(redis.call('HGET', KEYS[3], owner)) or 0) - (time[1] * 1000 + math.floor(time[2] / 1000))
    end
    local left = redis.call('PTTL', ARGV[4] .. owner)
    local whole = left > 0 and tonumber(redis.call('GET', ARGV[4] .. owner)) or 0
    if whole > 1 then
        -- The inbox of a process that died is closed at once; a moment is left to one that only lost its connection.
        local listening = redis.pcall('PUBSUB', 'NUMSUB', ARGV[8] .. string.match(owner, '^[^.]*'))
        if listening[2] == 0 then
            left = math.min(left, ARGV[9] - (whole - left))
        end
    end
    return left
end
local length = redis.pcall('STRLEN', KEYS[1])
local value = false
if type(length) == 'number' and length > 0 and length <= tonumber(ARGV[7]) then
    value = redis.call('GET', KEYS[1])
end
if type(length) == 'table' or (length > 0 and not value) or (value and ARGV[6] ~= '' and redis.sha1hex(value) == ARGV[6]) then
    redis.call('UNLINK', KEYS[1])
    value = false
end
if value then
    return {'r', redis.call('PTTL', KEYS[1]), value}
end
local claim = redis.pcall('HMGET', KEYS[2], 'o', 'f', 'w')
if claim.err then
    redis.call('UNLINK', KEYS[2])
    claim = {}
end
local owner, fingerprint, waiting = claim[1], claim[2], claim[3]
local taken = 0
if owner and owner ~= ARGV[1] then
    local left = left_of(owner)
    if left > 0 then
        if fingerprint ~= ARGV[2] then
            return {'c'}
        end
        if not waiting or not string.find(waiting, ARGV[3], 1, true) then
            redis.call('HSET', KEYS[2], 'w', (waiting or '') .. ' ' .. ARGV[3])
        end
        return {'j', left}
    end
    taken = 1
end
-- Whoever waits goes on waiting, now for us.
redis.call('HSET', KEYS[2], 'o', ARGV[1], 'f', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'o', taken}
