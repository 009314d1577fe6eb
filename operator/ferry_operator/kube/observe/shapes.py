"""Whether pods of a changed spec find room wherever the pods of the last good spec did. Pure.

A pod with a smaller size, or another image, takes the place of the pod that it replaces. A pod that asks for more, or for
other nodes, needs a place before the old pod is ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ferry_operator.job.models import Spec, StreamJob
from ferry_operator.job.models_kubernetes import Resources

DOES_NOT_FIT = "no node has a place for it: "
"""Beginning of the reason for which a spec is refused that no node has room for."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Whether a new pod has room where a pod of the last good spec is."""

    driver: bool = True
    worker: bool = True


def in_place_of(old: StreamJob | None, new: StreamJob | None) -> InPlace:
    """The places of a spec's pods beside the last good spec; without a last good spec, nothing is at risk."""
    if old is None or new is None:
        return InPlace()
    return InPlace(driver_takes_its_place(old.spec, new.spec), worker_takes_its_place(old.spec, new.spec))


def driver_takes_its_place(old: Spec, new: Spec) -> bool:
    """Whether a driver of the new spec has room where one of the old spec runs."""
    return _asks_no_more(old.kubernetes.driver, new.kubernetes.driver) and _goes_there(old, new)


def worker_takes_its_place(old: Spec, new: Spec) -> bool:
    """Whether a worker of the new spec has room where one of the old spec runs."""
    before, now = old.kubernetes, new.kubernetes
    sizes = _asks_no_more(before.executor, now.executor) and _asks_no_more(before.sidecar, now.sidecar)
    return sizes and _device(new) in (None, _device(old)) and _goes_there(old, new)


def _asks_no_more(old: Resources, new: Resources) -> bool:
    return new.cpu.millis <= old.cpu.millis and new.memory.bytes <= old.memory.bytes


def _device(spec: Spec) -> str | None:
    rdma = spec.transport.rdma
    return None if rdma.mode == "off" else rdma.resource


def _goes_there(old: Spec, new: Spec) -> bool:
    """Every node that took a pod of the old spec may take one of the new spec."""
    before, now = old.kubernetes, new.kubernetes
    return (
        now.node_selector.items() <= before.node_selector.items()
        and all(one in now.tolerations for one in before.tolerations)
        and now.affinity in (None, before.affinity)
        and now.network in ("pod", before.network)
        and _all_in(((v.claim, v.host_path) for v in now.volumes), [(v.claim, v.host_path) for v in before.volumes])
    )


def _all_in(some: Iterable[Any], many: list[Any]) -> bool:
    return all(one in many for one in some)
