"""Whether pods of a changed spec fit into the places of the pods of the last good spec. Pure.

A pod with smaller requests, or another image, fits into the place of its predecessor. A pod with larger requests, or for
other nodes, needs a place before its predecessor ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ferry_operator.job.models import Spec, StreamJob
from ferry_operator.job.models_kubernetes import Resources
from ferry_operator.job.template_grammar import Template

DOES_NOT_FIT = "no node has a place for it: "
"""Prefix of the reason of a refused spec whose pods fit on no node."""

SCHEDULED = (
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName", "runtimeClassName",
    "schedulerName",
)  # fmt: skip
"""Fields of a template that decide which nodes have a place for a pod."""

OF_NODES = {"persistentVolumeClaim", "ephemeral", "hostPath", "csi"}
"""Volumes that not every node has."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Whether a new pod fits into the place of a pod of the last good spec."""

    driver: bool = True
    worker: bool = True


def in_place_of(old: StreamJob | None, new: StreamJob | None) -> InPlace:
    """Compare a spec with the last good spec. Without a last good spec no pod that works is at risk: all fit."""
    if old is None or new is None:
        return InPlace()
    return InPlace(driver_fits(old.spec, new.spec), worker_fits(old.spec, new.spec))


def driver_fits(old: Spec, new: Spec) -> bool:
    """Whether a driver of the new spec fits into the place of a driver of the old spec."""
    before, now = old.kubernetes, new.kubernetes
    same = needs_of(before.driver_pod_template) == needs_of(now.driver_pod_template)
    return same and _requests_no_more(before.driver, now.driver) and _fits_same_nodes(old, new)


def worker_fits(old: Spec, new: Spec) -> bool:
    """Whether a worker of the new spec fits into the place of a worker of the old spec."""
    before, now = old.kubernetes, new.kubernetes
    sizes = _requests_no_more(before.executor, now.executor) and _requests_no_more(before.sidecar, now.sidecar)
    same = needs_of(before.worker_pod_template) == needs_of(now.worker_pod_template)
    sizes &= now.sidecar.huge_pages.bytes <= before.sidecar.huge_pages.bytes
    return sizes and same and _device(new) in (None, _device(old)) and _fits_same_nodes(old, new)


def needs_of(template: Template | None) -> Template:
    """What a template asks of a node: fields for the scheduler, resources, and volumes that not every node has."""
    fields = (template or {}).get("spec") or {}
    containers = fields.get("containers") or []
    further = {c["name"]: c.get("resources") for c in fields.get("initContainers") or []}
    volumes = [v for v in fields.get("volumes") or [] if v.keys() & OF_NODES]
    resources = {**{c["name"]: c["resources"] for c in containers if c.get("resources")}, **further}
    return {
        **{name: fields[name] for name in SCHEDULED if fields.get(name)},
        "volumes": volumes,
        "resources": resources,
    }


def _requests_no_more(old: Resources, new: Resources) -> bool:
    return new.cpu.millis <= old.cpu.millis and new.memory.bytes <= old.memory.bytes


def _device(spec: Spec) -> str | None:
    rdma = spec.transport.rdma
    return None if rdma.mode == "off" else rdma.resource


def _fits_same_nodes(old: Spec, new: Spec) -> bool:
    """Whether every node that allows a pod of the old spec also allows a pod of the new spec."""
    before, now = old.kubernetes, new.kubernetes
    return (
        now.node_selector.items() <= before.node_selector.items()
        and all(toleration in now.tolerations for toleration in before.tolerations)
        and now.affinity in (None, before.affinity)
        and now.network in ("pod", before.network)
        and _all_in(((v.claim, v.host_path) for v in now.volumes), [(v.claim, v.host_path) for v in before.volumes])
    )


def _all_in(part: Iterable[Any], whole: list[Any]) -> bool:
    return all(item in whole for item in part)
