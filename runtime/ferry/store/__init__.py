"""State at rest: tables of aggregates, rows of joins, the log of prepared deltas, the commit record, the lock, the seal.

One directory per instance and operator holds all files. State changes by `apply` alone, and to apply a delta twice is
to apply it once. The room must never decide anything about epochs, terms or groups, and calls fsync at a clean end only
(replicas cover the loss of a node; no fsync covers the loss of all copies). One object is used by one thread at a time.
"""
