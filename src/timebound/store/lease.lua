-- Leases of the gateways that compute keys with one hash tag: on a cluster a script may touch only keys it was told.
--
--   KEYS[1]  {ns}:{tag}:o   hash: owner -> until when, milliseconds since 1970 by Redis's own clock
--   ARGV     come, stay, go or left; owner; milliseconds of the lease; milliseconds the table is kept
-- -> 1, and for left the milliseconds left of it
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] == 'go' then
    return redis.call('HDEL', KEYS[1], ARGV[2])
end
if ARGV[1] == 'left' then
    return math.max(0, (tonumber(redis.call('HGET', KEYS[1], ARGV[2])) or 0) - now)
end
if ARGV[1] == 'come' then
    local all = redis.call('HGETALL', KEYS[1])
    for place = 1, #all, 2 do
        if tonumber(all[place + 1]) < now then
            redis.call('HDEL', KEYS[1], all[place])
        end
    end
end
redis.call('HSET', KEYS[1], ARGV[2], string.format('%d', now + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
