-- Who computes this request?
--
--   KEYS[1]  {ns}:r:{model}:{key}   string: the result, in the layout of store/value.py
--   KEYS[2]  {ns}:c:{model}:{key}   hash: o = owner, f = fingerprint, w = inboxes that wait, separated by spaces
--   ARGV     owner, fingerprint, inbox, prefix of leases ({ns}:o:), milliseconds a claim is kept
--            {ns}:o:{owner}         string that expires: there is one lease per owner, renewed while it lives
--
-- -> {'r', milliseconds left of it, value} | {'o', 1 if taken over from the dead, else 0} | {'j', milliseconds left of the owner's lease} | {'c'}
local value = redis.call('GET', KEYS[1])
if value then
    return {'r', redis.call('PTTL', KEYS[1]), value}
end
local owner, fingerprint, waiting = unpack(redis.call('HMGET', KEYS[2], 'o', 'f', 'w'))
local taken = 0
if owner and owner ~= ARGV[1] then
    local left = redis.call('PTTL', ARGV[4] .. owner)
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
