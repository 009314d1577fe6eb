"""Channels over RDMA verbs: rings in pinned memory, with TCP for liveness, the beginning and the end (docs/rdma.md).

Only `verbs` imports pyverbs, which is optional. The room must never report the end of a connection while the peer may
still write to this side's memory.
"""
