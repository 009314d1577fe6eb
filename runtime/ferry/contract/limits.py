"""Bounds that several rooms share, each with its name and its reason; what one room needs alone stands there."""

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
"""What an instance reads for durable checkpoints, where the job does not say: nobody waits for them."""

FRAGMENT_MEMORY_BYTES = 256 * 1024 * 1024
"""Staged fragments of one instance kept in memory; beyond this they go to files."""

HEARTBEAT_MS = 500
"""Between two signs of life, unless the job says otherwise."""

HEARTBEAT_TTL_MS = 2500
"""A member whose key in Redis ran out, and whose connection is silent, is gone; unless the job says otherwise."""

RETURN_DEADLINE_MS = 60_000
"""How long a driver waits for the only holder of a virtual node, unless the job says otherwise."""

STANDSTILL_TIMEOUTS = 4
"""An instance that says nothing for this many times `failure.timeout` stands still, though its parent beats: more than one,
for its signs of life share an interpreter with its work."""

HANG_SECONDS = 60.0
"""An instance whose loop did not come round for this long, and which is not in the user's code, is killed by its parent, and
comes back to its files.

A driver whose loop did not is not well either: `GET /healthz` says so, and whoever looks after it ends it.
"""

SLOW_MS = 60_000
"""The user's code that runs for this long without a break is said to be slow (SlowCode), unless the job says otherwise. It
has the time that it needs."""

SYNC_SECONDS = 60.0
"""An instance that has ended may take so long to have its files on the disk. One that takes longer is killed: they are no
copy then in another boot of the machine. The system writes much of them by itself before."""

GRACE_SECONDS = 0.2
"""A connection that breaks is dialled again within this; only then the groups close over whoever was at its end."""

WARM_DEADLINE_MS = 600_000
"""A move to which nothing has come for this long is given up for a while, with a reason; unless the job says otherwise."""

OFFSETS_BYTES_MAX = 64 * 1024
"""What the notes of an epoch keep of Spark's checkpoint, packed; beyond it only its digest. Commit records hold it twice."""

FLOWS_MAX = 1000
"""Flows of one input of an operator: the clock of each is committed with every epoch, about 50 bytes."""

FLOW_NAME_MAX = 100
"""Characters of a flow's name, likewise."""

TIMELINE_BYTES_MAX = 64 * 1024 * 1024
"""Of one part of a timeline, about 150,000 epochs. The part before is kept, the one before that goes."""

DEAD_LETTER_BYTES_MAX = 1024 * 1024 * 1024
"""Of all dead letters of a job: the oldest epochs go first. Malformed records are counted all the same."""

EMIT_LOCAL_ROWS = 100_000
"""Fired rows up to this number become a local relation where Spark has something to do with them; more are read by tasks.

Spark's JVM holds such a row in about a kilobyte, all copies together: 600,000 of them have filled its heap of 1 GB.
"""

EMIT_LOCAL_BYTES = 16 * 1024 * 1024
"""And up to these bytes."""

EMIT_DIRECT_ROWS = 2_000_000
"""Fired rows up to this number go from the instances through the driver to the sink where Spark has nothing to do."""

EMIT_DIRECT_BYTES = 256 * 1024 * 1024
"""And up to these bytes, which the driver holds."""

SETS_OF_REPLICAS = 3
"""A leader's groups have so many sets of replicas; more only where bytes, workers or nodes want it."""

assert VIRTUAL_NODES_MAX == 1 << KEY_GROUP_BITS
assert WATERMARK_NONE < 0 < WATERMARK_END
assert CHUNK_BYTES >= SLOT_BYTES
assert HEARTBEAT_TTL_MS > 2 * HEARTBEAT_MS
