"""Channels over RDMA verbs: rings in pinned memory, with TCP for liveness, the beginning and the end (docs/rdma.md).

`verbs` alone imports pyverbs, which need not be there. The room must never report the end of a connection while the peer
may still write to this side's memory.
"""
