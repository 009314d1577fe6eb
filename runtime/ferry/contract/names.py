"""The nouns of Ferry as types. The glossary in docs/concepts/words.md uses the same words."""

from __future__ import annotations

from typing import NamedTuple, NewType

Vnode = NewType("Vnode", int)
"""Index of a virtual node, 0 .. virtualNodes - 1: a contiguous range of key groups, hash >> (64 - log2(virtualNodes))."""

InstanceId = NewType("InstanceId", str)
"""'WORKER.INDEX', e.g. '2.0': one state process. The name survives a restart; each life has its own incarnation."""

Generation = NewType("Generation", int)
"""One life of the driver. Higher wins everywhere."""


class Step(NamedTuple):
    """One operator's part of one epoch; ordered."""

    epoch: int
    """Spark's batch id."""
    operator: int
    """Position of the stateful operator in the pipeline, from 0."""


class Attempt(NamedTuple):
    """One try of a step; ordered."""

    generation: int
    number: int


class Term(NamedTuple):
    """Version of one virtual node's group; ordered."""

    generation: int
    number: int


class CommitId(NamedTuple):
    """What identifies a delta for ever: the step and the attempt that produced it."""

    step: Step
    attempt: Attempt


class Fragment(NamedTuple):
    """Identifies one staged fragment for ever: task attempt ids alone start again with a new driver."""

    step: Step
    generation: int
    run: int
    task: int


def worker_of(instance: InstanceId) -> int:
    """Worker index of an instance: '2.0' -> 2."""
    return int(instance.split(".", 1)[0])


def driver_name(generation: int, life: str) -> str:
    """Peer name of one life of the driver on its channels."""
    return f"driver-{generation}-{life}"


def driver_generation(peer: str) -> int | None:
    """Generation of a peer that is a driver, None for an instance."""
    parts = peer.split("-")
    return int(parts[1]) if parts[0] == "driver" and len(parts) == 3 and parts[1].isdigit() else None


def vnode_shift(virtual_nodes: int) -> int:
    """Right shift that maps a 64-bit key hash to its virtual node (64 for one virtual node: handle apart)."""
    assert virtual_nodes > 0 and virtual_nodes & (virtual_nodes - 1) == 0, virtual_nodes
    return 64 - virtual_nodes.bit_length() + 1
