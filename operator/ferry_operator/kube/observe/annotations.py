"""Requests in annotations of a StreamJob: drains of workers, pins of virtual nodes, a pause, a checkpoint, a plan. Pure.

Each annotation has one syntax, which `ferry` and `kubectl streamjob` write. An annotation with another syntax has no effect,
and `invalid_annotations` reports it: a lenient parser would read '1-3' as workers 1 and 3, and drain the wrong workers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from ferry.contract.names import InstanceId, worker_of
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import request
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.facts import Problem

IGNORED = "AnnotationIgnored"

SHOWN_MAX = 100
"""Characters of an annotation that a message quotes."""

_INDEX = "(?:0|[1-9][0-9]{0,4})"
_DRAINS = re.compile(rf"\s*{_INDEX}\s*(,\s*{_INDEX}\s*)*")
_PIN = re.compile(rf"({_INDEX})=({_INDEX}\.{_INDEX})({AT_WINDOW})?")


def requested_drains(text: str | None) -> tuple[int, ...]:
    """The workers of the annotation `DRAIN`: '1,3'; empty for another syntax."""
    if not text or _DRAINS.fullmatch(text) is None:
        return ()
    return tuple(sorted({int(k) for k in text.split(",")}))


def requested_pins(text: str | None, virtual_nodes: int) -> tuple[tuple[int, InstanceId], ...]:
    """The pairs of the annotation `PINS`: '3=1.0,7=0.0@window'; empty for another syntax."""
    pins = _pins(text)
    return tuple((v, i) for v, (i, _) in sorted(pins.items()) if v < virtual_nodes) if isinstance(pins, dict) else ()


def requested_windows(text: str | None) -> tuple[int, ...]:
    """Virtual nodes of the annotation `PINS` with `@window`: they move at the boundary of a window."""
    pins = _pins(text)
    return tuple(v for v, (_, waits) in sorted(pins.items()) if waits) if isinstance(pins, dict) else ()


def stale_annotations(job: Doc, gaps: Collection[int] = ()) -> dict[str, str | None]:
    """New values of annotations for other workers of the job; None: to be removed."""
    annotations, changes = job["metadata"].get("annotations") or {}, dict[str, str | None]()
    size = Size.of(job["spec"])
    drained = requested_drains(annotations.get(names.DRAIN))
    kept = [k for k in drained if size.has(k, 0, gaps)]
    if len(kept) < len(drained):
        changes[names.DRAIN] = ",".join(map(str, kept)) or None
    plan = plan_file.unpacked(text) if (text := annotations.get(names.PLAN)) else None
    if plan is not None and plan.size != size:
        changes[names.PLAN] = None
    return changes


def invalid_annotations(
    annotations: Mapping[str, str], job: str, size: Size, virtual_nodes: int, gaps: Collection[int] = ()
) -> Iterator[Problem]:
    """The invalid annotations of this job, with reasons."""
    for name, text in annotations.items():
        for why in _wrong(name, text, annotations, job, size, virtual_nodes, gaps):
            shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
            yield Problem(IGNORED, f"{name}: {shown!r}: {why}")


def _wrong(
    name: str,
    text: str,
    annotations: Mapping[str, str],
    job: str,
    size: Size,
    virtual_nodes: int,
    gaps: Collection[int],
) -> Iterator[str]:
    match name:
        case names.PAUSED if text not in ("true", "false"):
            yield "neither 'true' nor 'false': the job is not paused"
        case names.DRAIN if text and _DRAINS.fullmatch(text) is None:
            yield "no list of workers such as '1,3': no worker is drained"
        case names.DRAIN if size.workers and not size.holding(requested_drains(text), gaps):
            yield f"all {size.workers} workers are named, and no other worker can take their state: no worker is drained"
        case names.PINS:
            yield from _wrong_pins(text, requested_drains(annotations.get(names.DRAIN)), size, virtual_nodes, gaps)
        case names.CHECKPOINT if text and request(annotations) is None:
            yield """no request such as {"id": "1", "name": "before-upgrade"}: no checkpoint is taken"""
        case names.PLAN if plan_file.of_job(text, job) is None:
            yield "no plan of this job in the format of `ferry plan`: it has no effect"


def _wrong_pins(
    text: str, drained: tuple[int, ...], size: Size, virtual_nodes: int, gaps: Collection[int]
) -> Iterator[str]:
    pins = _pins(text)
    if isinstance(pins, str):
        yield f"{pins}: no virtual node is pinned"
        return
    for vnode, (instance, _) in pins.items():
        worker, index = map(int, instance.split("."))
        if vnode >= virtual_nodes:
            yield f"there is no virtual node {vnode}, only 0 to {virtual_nodes - 1}: its pin has no effect"
        elif not size.has(worker, index, gaps):
            which = f" ({size.numbers(gaps)})" if gaps else ""
            there = f"{size.workers} workers{which} with {size.instances} instances"
            yield f"there is no instance {instance} ({there}): virtual node {vnode} is not pinned"
        elif worker_of(instance) in drained:
            yield f"worker {worker} is drained (ferry.dev/drain): virtual node {vnode} is not pinned"


def _pins(text: str | None) -> dict[int, tuple[InstanceId, bool]] | str:
    """For each virtual node its wanted leader, and whether it moves at a window; or the text of the mistake."""
    pins: dict[int, tuple[InstanceId, bool]] = {}
    for word in text.split(",") if text else ():
        parts = _PIN.fullmatch(word.strip())
        if parts is None:
            return f"{word.strip()!r} is no pin such as '3=1.0' or '3=1.0{AT_WINDOW}'"
        vnode, instance, waits = parts.groups()
        if int(vnode) in pins:
            return f"virtual node {vnode} is named twice"
        pins[int(vnode)] = InstanceId(instance), waits is not None
    return pins
