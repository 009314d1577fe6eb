"""What annotations of a StreamJob ask for: workers to empty, virtual nodes to pin, a pause, a checkpoint, a plan. Pure.

Each annotation has one spelling, as `ferry` and `kubectl streamjob` write it. Another spelling is not followed, and
`nonsense` says so: a reader that takes the numbers out of '1-3' would empty the wrong workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ferry.contract.names import InstanceId, worker_of
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.notes import request
from ferry_operator.kube.observe.facts import Problem

IGNORED = "AnnotationIgnored"

SHOWN_MAX = 100
"""Characters of an annotation that a message repeats."""

_INDEX = "(?:0|[1-9][0-9]{0,4})"
_DRAINS = re.compile(rf"\s*{_INDEX}\s*(,\s*{_INDEX}\s*)*")
_PIN = re.compile(rf"({_INDEX})=({_INDEX}\.{_INDEX})({AT_WINDOW})?")


def asked_drains(text: str | None) -> tuple[int, ...]:
    """The workers of the annotation `DRAIN`: '1,3'; empty for another spelling."""
    if not text or _DRAINS.fullmatch(text) is None:
        return ()
    return tuple(sorted({int(k) for k in text.split(",")}))


def asked_pins(text: str | None, virtual_nodes: int) -> tuple[tuple[int, InstanceId], ...]:
    """The pairs of the annotation `PINS`: '3=1.0,7=0.0@window'; empty for another spelling."""
    pins = _pins(text)
    return tuple((v, i) for v, (i, _) in sorted(pins.items()) if v < virtual_nodes) if isinstance(pins, dict) else ()


def asked_windows(text: str | None) -> tuple[int, ...]:
    """Virtual nodes of the annotation `PINS` that get there at the boundary of a window: those with `@window`."""
    pins = _pins(text)
    return tuple(v for v, (_, waits) in sorted(pins.items()) if waits) if isinstance(pins, dict) else ()


def of_another_size(job: Doc) -> dict[str, str | None]:
    """Annotations that are for another size of the job, as they should be; None: without it."""
    annotations, forget = job["metadata"].get("annotations") or {}, dict[str, str | None]()
    size = Size.of(job["spec"])
    drained = asked_drains(annotations.get(names.DRAIN))
    if any(k >= size.workers for k in drained):
        forget[names.DRAIN] = ",".join(str(k) for k in drained if k < size.workers) or None
    one = plan_file.unpacked(text) if (text := annotations.get(names.PLAN)) else None
    if one is not None and one.size != size:
        forget[names.PLAN] = None
    return forget


def nonsense(annotations: Mapping[str, str], job: str, size: Size, virtual_nodes: int) -> Iterator[Problem]:
    """The annotations of this job that cannot be followed, and why."""
    for name, text in annotations.items():
        for why in _wrong(name, text, annotations, job, size, virtual_nodes):
            shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
            yield Problem(IGNORED, f"{name}: {shown!r}: {why}")


def _wrong(
    name: str, text: str, annotations: Mapping[str, str], job: str, size: Size, virtual_nodes: int
) -> Iterator[str]:
    match name:
        case names.PAUSED if text not in ("true", "false"):
            yield "neither 'true' nor 'false': the job is not paused"
        case names.DRAIN if text and _DRAINS.fullmatch(text) is None:
            yield "no list of workers such as '1,3': no worker is emptied"
        case names.DRAIN if size.workers and not size.holding(asked_drains(text)):
            yield f"all {size.workers} workers are named, and no other one can take their state: no worker is emptied"
        case names.PINS:
            yield from _wrong_pins(text, asked_drains(annotations.get(names.DRAIN)), size, virtual_nodes)
        case names.CHECKPOINT if text and request(annotations) is None:
            yield """no request such as {"id": "1", "name": "before-upgrade"}: no checkpoint is taken"""
        case names.PLAN if plan_file.of_job(text, job) is None:
            yield "no plan of this job, as `ferry plan` hands it in: it is not followed"


def _wrong_pins(text: str, drained: tuple[int, ...], size: Size, virtual_nodes: int) -> Iterator[str]:
    pins = _pins(text)
    if isinstance(pins, str):
        yield f"{pins}: no virtual node is pinned"
        return
    for vnode, (instance, _) in pins.items():
        worker, index = map(int, instance.split("."))
        if vnode >= virtual_nodes:
            yield f"there is no virtual node {vnode}, they are 0 to {virtual_nodes - 1}: its pin is not followed"
        elif not size.has(worker, index):
            there = f"{size.workers} workers with {size.instances} instances"
            yield f"there is no instance {instance} ({there}): virtual node {vnode} is not pinned"
        elif worker_of(instance) in drained:
            yield f"worker {worker} is to be emptied (ferry.dev/drain): virtual node {vnode} is not pinned"


def _pins(text: str | None) -> dict[int, tuple[InstanceId, bool]] | str:
    """For each virtual node the instance that is to lead it, and whether it waits for a window; or the mistake, in words."""
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
