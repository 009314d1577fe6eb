"""Atomic operations in Redis: Lua, with the reason of each. Every returned number is greater than all before it.

Numbers include the clock of Redis, so that they go on growing after a loss of its data. On Kubernetes the operator loads
the scripts: the user of a run may call loaded scripts only.
"""

SWAP = """
local now = redis.call('GET', KEYS[1])
if now then
  local doc = cjson.decode(now)
  local version = doc['version']
  if doc['writer'] == ARGV[6] and version[1] == tonumber(ARGV[3]) and version[2] == tonumber(ARGV[4]) then
    return 'done'
  end
  if ARGV[1] == '' or version[1] ~= tonumber(ARGV[1]) or version[2] ~= tonumber(ARGV[2]) then return now end
elseif ARGV[1] ~= '' then return 'lost' end
redis.call('SET', KEYS[1], ARGV[5])
return 'done'
"""
"""Swap the journal if its version is the expected one; a repeated write of the same writer succeeds.

The writer counts: two drivers that read the same journal both claim the next generation, and only one of them wins.
"""

RECORD = """
local now = redis.call('GET', KEYS[1])
if now and cjson.decode(now)['version'][1] > tonumber(ARGV[1]) then return now end
redis.call('SET', KEYS[2], ARGV[2])
return 'done'
"""
"""Replace the catalogue unless a driver of a higher generation has claimed the journal."""

ANNOUNCE = """
local now = redis.call('GET', KEYS[1])
if now == ARGV[3] then return 1 end
if now then
  local doc = cjson.decode(now)
  local mine = tonumber(ARGV[1])
  if doc['generation'] > mine then return 0 end
  if doc['generation'] == mine and doc['claimed'] and ARGV[2] == '0' then return 0 end
end
redis.call('SET', KEYS[1], ARGV[3])
return 1
"""
"""Announce the driver's address, unless a stronger claim exists: a newer generation, or the same and claimed."""

_NUMBER = """
local function number(last)
  local time = redis.call('TIME')
  return string.format('%.0f', math.max(time[1] * 1000 + math.floor(time[2] / 1000), (tonumber(last) or 0) + 1))
end
"""

_CHANGED = f"""
{_NUMBER}
local function changed(instance)
  local last = number(redis.call('GET', KEYS[3]))
  redis.call('SET', KEYS[3], last)
  redis.call('ZADD', KEYS[2], last, instance)
end
"""

REGISTER = f"""
{_CHANGED}
local now = redis.call('HGET', KEYS[1], ARGV[1])
if now and (now == ARGV[3] or cjson.decode(now)['incarnation'] > ARGV[2]) then return now end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
changed(ARGV[1])
return ARGV[3]
"""
"""Replace the registration of a former life; returns the present one."""

WITHDRAW = f"""
{_CHANGED}
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  changed(ARGV[1])
end
"""
"""Withdraw a registration, but never a successor's."""

CHANGES = """
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
local known = tonumber(ARGV[1])
local answer = {last}
if last < known then known = 0 end
for _, instance in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', known), '+inf')) do
  answer[#answer + 1] = instance
  answer[#answer + 1] = redis.call('HGET', KEYS[1], instance)
end
return answer
"""
"""The number of the last change, and all registrations that changed after the given number.

When Redis has lost changes that the caller knows: all registrations.
"""

CLAIM = f"""
{_NUMBER}
local now, places = redis.call('HGET', KEYS[1], ARGV[1]), {{ARGV[2]}}
local life
for word in string.gmatch(now or '', '%S+') do
  if not life then life = word
  elseif word == ARGV[2] then if #places > 1 then return '' end
  elseif #places < tonumber(ARGV[3]) then places[#places + 1] = word end
end
local line = number(life) .. ' ' .. table.concat(places, ' ')
redis.call('HSET', KEYS[1], ARGV[1], line)
return line
"""
"""A new life for a worker's parent; empty for a parent whose place (a pod, say) has lost the worker to another
place."""

BEAT = """
local now = redis.call('HGET', KEYS[1], ARGV[1])
local life = tonumber(string.match(now or '', '^%S+')) or 0
if life > tonumber(ARGV[2]) then return 0 end
if life < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[4]) end
redis.call('SET', string.gsub(KEYS[1], 'parents$', 'beat:') .. ARGV[1], ARGV[5], 'PX', ARGV[3])
return 1
"""
"""A worker is alive for some milliseconds, unless a later life of its parent owns it. The most frequent call, so it
computes the second key itself."""

HEARD = """
local heard = {}
for worker in string.gmatch(ARGV[1], '%d+') do
  local beat = redis.call('GET', KEYS[1] .. worker)
  if not beat then heard[#heard + 1] = tonumber(worker) elseif beat ~= ARGV[2] then heard[#heard + 1] = beat end
end
return heard
"""
"""The workers without a heartbeat, and heartbeats with content: a short answer, because it is polled often."""

ALL = (SWAP, RECORD, ANNOUNCE, REGISTER, WITHDRAW, CHANGES, CLAIM, BEAT, HEARD)
"""All scripts of the runtime."""
