"""Bounds that several rooms share, each with its name and its reason; a bound of one room stands in that room."""

KEY_GROUP_BITS = 15
"""2**15 slices of the key hash, the number that Rhino uses (section 5.1.3). It bounds `virtualNodes`; no stored file depends
on it (decision 0038)."""

VIRTUAL_NODES_MAX = 1 << KEY_GROUP_BITS
"""A virtual node holds at least one key group."""

WATERMARK_NONE = -(2**62)
"""The watermark before any input has been seen: below every event time."""

WATERMARK_END = 2**62
"""The watermark after a finite input has ended: above every event time, so every window fires."""

SLOT_BYTES = 64 * 1024
"""One credit of a channel, in bytes (Slash section 8.3: 32 to 64 KiB saturate a link)."""

SLOTS = 64
"""Credits a receiver grants per lane and sender: 4 MiB may be under way per lane."""

CHUNK_BYTES = 256 * 1024
"""Largest piece of a snapshot; moving S bytes needs chunks under credit, not S."""

ARCHIVE_BYTES_A_SECOND = 32 * 1024 * 1024
"""Read rate of an instance for durable checkpoints, unless the job sets one: no epoch waits for them."""

FRAGMENT_MEMORY_BYTES = 256 * 1024 * 1024
"""Staged fragments of one instance kept in memory; beyond this they go to files."""

HEARTBEAT_MS = 500
"""Interval of heartbeats, unless the job sets another."""

HEARTBEAT_TTL_MS = 2500
"""A member is lost when its key in Redis has expired and its connection is silent; unless the job sets another time."""

RETURN_DEADLINE_MS = 60_000
"""How long a driver waits for the only holder of a virtual node, unless the job sets another time."""

STANDSTILL_TIMEOUTS = 4
"""An instance is at a standstill after this many times `failure.timeout` without a message, even if its parent's
heartbeat goes on. More than one, because its signs of life share an interpreter with its work."""

HANG_SECONDS = 60.0
"""The parent kills an instance whose loop has not completed a pass for this long outside the user's code; the instance
restarts with its files.

A driver with such a loop is not healthy: `GET /healthz` says so, and its supervisor or the kubelet ends it.
"""

SLOW_MS = 60_000
"""User code that runs this long without a break is reported as slow (SlowCode), unless the job sets another time. It is
not interrupted."""

SYNC_SECONDS = 60.0
"""Time that an ended instance has for writing its files to the disk. A slower one is killed; its files then do not
count as a copy after a reboot. The system has usually written most of them before."""

GRACE_SECONDS = 0.2
"""A broken connection is dialled again within this time; after it the peer leaves its groups."""

WARM_DEADLINE_MS = 600_000
"""A move that receives no data for this long is abandoned for a while, with a reason; unless the job sets another
time."""

OFFSETS_BYTES_MAX = 64 * 1024
"""Packed size of Spark's checkpoint in the notes of an epoch; beyond it only its digest. Commit records hold it
twice."""

FLOWS_MAX = 1000
"""Flows of one input of an operator: the clock of each is committed with every epoch, about 50 bytes."""

FLOW_NAME_MAX = 100
"""Characters of a flow's name, for the same reason."""

TIMELINE_BYTES_MAX = 64 * 1024 * 1024
"""Size of one part of a timeline, about 150,000 epochs. The previous part is kept, older ones are deleted."""

DEAD_LETTER_BYTES_MAX = 1024 * 1024 * 1024
"""Size of all dead letters of a job: the oldest epochs are deleted first. Malformed records are counted regardless."""

EMIT_LOCAL_ROWS = 100_000
"""Up to this many fired rows become a local relation if Spark has to process them; tasks read more.

Spark's JVM needs about a kilobyte per such row, all copies together: 600,000 of them have filled its heap of 1 GB.
"""

EMIT_LOCAL_BYTES = 16 * 1024 * 1024
"""Most bytes of the fired rows that become a local relation."""

EMIT_DIRECT_ROWS = 2_000_000
"""Up to this many fired rows go from the instances through the driver to the sink if Spark has nothing to do with
them."""

EMIT_DIRECT_BYTES = 256 * 1024 * 1024
"""Most bytes of the fired rows that go through the driver, which holds them."""

SETS_OF_REPLICAS = 3
"""Sets of replicas per leader; more only to balance bytes, workers or nodes."""

assert VIRTUAL_NODES_MAX == 1 << KEY_GROUP_BITS
assert WATERMARK_NONE < 0 < WATERMARK_END
assert CHUNK_BYTES >= SLOT_BYTES
assert HEARTBEAT_TTL_MS > 2 * HEARTBEAT_MS
