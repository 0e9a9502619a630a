-- Nothing came of a claim: free it and tell who waits; the first of them to claim it computes it.
--
--   KEYS[1]  the claim, as in claim.lua; ARGV: owner. The message is complete.lua's without a value, to be kept for no time.
if redis.call('HGET', KEYS[1], 'o') ~= ARGV[1] then
    return 0
end
local waiting = redis.call('HGET', KEYS[1], 'w')
redis.call('DEL', KEYS[1])
if waiting then
    for inbox in string.gmatch(waiting, '%S+') do
        redis.call('PUBLISH', inbox, string.format('%08d%012d', #KEYS[1], 0) .. KEYS[1])
    end
end
return 1
