"""Plan files: a user makes a plan for another size of a job in advance, inspects it, submits it and may cancel it.

A plan file has the size and the planned placements. Pure. Its steps are a preview: the steps are computed again, from the
groups of that time, when the plan begins.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from ferry.contract.errors import Refusal
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId, worker_of
from ferry_operator.control import handovers, placing
from ferry_operator.job.models_base import SpecPart
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.size import INSTANCES_MAX, WORKERS_MAX, Size
from ferry_operator.placement import planner
from ferry_operator.placement.strategies import HandoverPolicy, steps

TEXT_MAX = 128 * 1024
"""Characters of a plan in an annotation: all annotations of an object have 256 KiB."""

JSON_MAX = 3 * 1024 * 1024
"""Bytes of an unpacked plan: 32,768 virtual nodes of five members each, in 32,768 steps, take 2.2 MB. The bound is needed
because a user may write any annotation, and a few packed bytes may unpack to many."""

LISTS_MAX = 4 * VIRTUAL_NODES_MAX + 16
"""Lists and objects in a plan: one per placement, three per step."""

Instance = Annotated[str, Field(pattern=r"^[0-9]{1,6}\.[0-9]{1,6}$")]
Members = Annotated[list[Instance], Field(max_length=5, fail_fast=True)]
Vnode = Annotated[int, Field(ge=0, lt=VIRTUAL_NODES_MAX)]
Vnodes = Annotated[list[Vnode], Field(max_length=VIRTUAL_NODES_MAX, fail_fast=True)]


class _Part(SpecPart):
    model_config = ConfigDict(validate_by_name=True)


class PlanForecast(_Part):
    """The estimated cost of a plan."""

    switchovers: int = Field(default=0, ge=0)
    copies: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    """None: the job has moved no virtual node yet, so there is no measurement"""
    pause: float | None = Field(default=None, ge=0)
    """greatest delay of the end of an epoch, in seconds; None as above"""


class PlanFile(_Part):
    """A plan that `ferry plan -o` writes and `ferry submit` submits."""

    job: str = Field(min_length=1, max_length=253)
    size: Size
    """size of the job after the plan"""
    before: Size
    """size of the job before the plan, and after the plan is cancelled"""
    replicas: int = Field(ge=0)
    handover: Handover = Handover()
    usable: list[Instance] = Field(min_length=1, max_length=WORKERS_MAX * INSTANCES_MAX, fail_fast=True)
    """instances that hold state after the plan"""
    placements: list[Members] = Field(min_length=1, max_length=VIRTUAL_NODES_MAX, fail_fast=True)
    """by virtual node: the leader, then its replicas"""
    steps: list[tuple[Vnodes, Vnodes]] = Field(default_factory=list, max_length=VIRTUAL_NODES_MAX, fail_fast=True)
    """(copies, switchovers) of each step, as a preview"""
    forecast: PlanForecast = PlanForecast()

    @cached_property
    def name(self) -> str:
        """The name of the plan: its digest."""
        return hashlib.sha256(self.dump().encode()).hexdigest()[:10]

    def dump(self) -> str:
        """The plan as one line of JSON."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)

    @cached_property
    def instances(self) -> tuple[InstanceId, ...]:
        """Instances that hold state after the plan."""
        return tuple(map(InstanceId, self.usable))

    @cached_property
    def targets(self) -> placing.Placements:
        """The placements as tuples of `placing`."""
        return tuple(tuple(map(InstanceId, members)) for members in self.placements)

    @cached_property
    def policy(self) -> HandoverPolicy:
        """The policy by which the plan is cut into steps."""
        return handovers.policy_of(self.handover)

    def words(self) -> str:
        """The plan in one line."""
        cost, count = self.forecast, max(1, len(self.steps))
        moves = f"{cost.switchovers} new leaders and {cost.copies} copies in {count} step{'s' if count > 1 else ''}"
        return f"plan {self.name}: {self.size.words()}, {moves}"


def read(text: str) -> PlanFile:
    """Read a plan from JSON. Raises Refusal that names the wrong field."""
    _check_names(text)
    try:
        plan = PlanFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise Refusal(f"this is no plan: {where}: {first['msg']}") from None
    _check(plan)
    return plan


def _check_names(text: str) -> None:
    """Check the names of fields before pydantic does: its error about a name holds a copy of the whole document."""
    if text.count("[") + text.count("{") > LISTS_MAX:
        raise Refusal(f"this is no plan: it has more than {LISTS_MAX} lists and objects")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Refusal("this is no plan: it is not a JSON object")
    fields = PlanFile.model_fields
    required = {name for name, field in fields.items() if field.is_required()}
    wrong = ({*document} - {*fields}) | (required - {*document})
    if wrong:
        raise Refusal(f"this is no plan: {min(wrong)[:40]}: unknown, or missing")


def _check(plan: PlanFile) -> None:
    usable = set(plan.usable)
    if len(usable) != len(plan.usable):
        raise Refusal("this is no plan: usable names an instance twice")
    for instance in plan.usable:
        worker, index = map(int, instance.split("."))
        if not plan.size.has(worker, index):
            raise Refusal(f"this is no plan: usable: a job of this size has no instance {instance}")
    copies = 1 + min(plan.replicas, len({worker_of(InstanceId(i)) for i in usable}) - 1)
    for vnode, placement in enumerate(plan.placements):
        if not placement or not usable.issuperset(placement):
            raise Refusal(f"this is no plan: placements.{vnode}: must name usable instances only")
        if len({worker_of(InstanceId(i)) for i in placement}) < len(placement):
            raise Refusal(f"this is no plan: placements.{vnode}: its copies must be on different workers")
        if len(placement) != copies:
            raise Refusal(
                f"this is no plan: placements.{vnode}: must name {copies} instances: the leader and its replicas"
            )


def unfit(plan: PlanFile, job: str, virtual_nodes: int, replicas: int, drains: Sequence[int]) -> str:
    """Why a job cannot follow a plan (a plan of another job, or for another shape of the job); empty: it can."""
    if plan.job != job:
        return f"the plan is for the job {plan.job!r}"
    if len(plan.placements) != virtual_nodes:
        return f"the plan has {len(plan.placements)} virtual nodes, {job} has {virtual_nodes}"
    if plan.replicas != replicas:
        return f"the plan is for {plan.replicas} replicas, {job} has {replicas}"
    if plan.usable != (left := plan.size.instance_ids(drains)):
        return f"the plan is for the instances {', '.join(plan.usable)}; without drained workers these are {', '.join(left)}"
    return ""


def check_begin(plan: PlanFile, now: Size) -> None:
    """Raise Refusal if the present size of the job is not the size before the plan."""
    if plan.before != now:
        raise Refusal(f"the plan begins with {plan.before.words()}, but the job has {now.words()}: make another plan")


@dataclass(frozen=True, slots=True)
class Present:
    """The present state of a job that a plan depends on."""

    job: str
    size: Size
    replicas: int
    groups: Sequence[Sequence[str]]
    """by virtual node: in-sync members, the leader first"""
    loads: Sequence[tuple[float, float]] = ()
    """by virtual node: (records per second, bytes); empty if they are not known"""
    drains: Sequence[int] = ()
    pins: Mapping[int, InstanceId] | None = None
    nodes: Mapping[int, str] | None = None
    """by worker"""
    costs: tuple[float | None, float | None] = (None, None)
    """measured seconds per copied byte, and pause per new leader; None: not measured"""


def make(present: Present, size: Size, handover: Handover) -> PlanFile:
    """The plan that brings a job to this size. Raises Refusal if all workers are drained."""
    usable = tuple(size.instance_ids(present.drains))
    if not usable:
        raise Refusal("no worker is left: all are drained")
    pins = tuple((v, i) for v, i in sorted((present.pins or {}).items()) if i in usable)
    slots = placing.slots(usable, present.nodes or {})
    placements = placing.place(present.groups, present.loads, slots, present.replicas, pins)
    current = [tuple(map(InstanceId, group)) for group in present.groups]
    cut = steps(current, placements, handovers.policy_of(handover))
    loads = placing.weights(present.loads, len(current))
    before, after = ([placing.as_planned(group) for group in groups] for groups in (current, placements))
    moved = planner.movement(before, after, loads)
    return PlanFile(
        job=present.job,
        size=size,
        before=present.size,
        replicas=present.replicas,
        handover=handover,
        usable=list(usable),
        placements=[list(placement) for placement in placements],
        steps=[(list(copies), list(switched)) for copies, switched in cut],
        forecast=_forecast(present.costs, moved, max((len(switched) for _, switched in cut), default=0)),
    )


def _forecast(costs: tuple[float | None, float | None], moved: planner.Movement, at_once: int) -> PlanForecast:
    """The cost of a plan by the measurements of earlier moves. `at_once`: new leaders of the largest step."""
    per_byte, per_leader = costs
    known = per_byte is not None and per_leader is not None
    return PlanForecast(
        switchovers=moved.switchovers,
        copies=moved.copies,
        bytes=round(moved.bytes),
        seconds=moved.bytes * (per_byte or 0.0) + moved.switchovers * (per_leader or 0.0) if known else None,
        pause=None if per_leader is None else per_leader * at_once,
    )


def packed(plan: PlanFile) -> str:
    """The text of a plan in an annotation. Raises Refusal if the plan is too large."""
    text = b64encode(zlib.compress(plan.dump().encode(), 9)).decode()
    if len(text) > TEXT_MAX:
        raise Refusal(f"the plan has {len(text)} characters, and an annotation holds {TEXT_MAX}: plan in fewer steps")
    return text


@lru_cache(64)
def unpacked(text: str) -> PlanFile | None:
    """Inverse of packed; None when the text is no plan."""
    if len(text) > TEXT_MAX:
        return None
    try:
        return read(zlib.decompressobj().decompress(b64decode(text), JSON_MAX).decode())
    except (ValueError, zlib.error, Refusal):
        return None


def of_job(text: str, job: str) -> PlanFile | None:
    """The plan in an annotation of this job; None if the text is no plan, or a plan of another job."""
    file = unpacked(text)
    return file if file is not None and file.job == job else None


def dump(plan: PlanFile) -> str:
    """The text of a plan file, one placement or step a line."""
    document = json.loads(plan.dump())
    placements, cut = document.pop("placements"), document.pop("steps", [])
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    for name, entries in (("placements", placements), ("steps", cut)):
        lines.append(f' "{name}": [\n  ' + ",\n  ".join(json.dumps(entry) for entry in entries) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"
