"""Plans that people make beforehand, look at, hand in and take back: a file with another size of the job and the placements
that were worked out for it.

Pure. The steps in it are as they would be cut at that moment; they are cut anew when it begins, from where all is then.
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
"""Bytes of it once it is unpacked: 32,768 virtual nodes with five members each, in as many steps, take 2.2 MB. A user
may write any annotation, and few bytes unpack to many."""

LISTS_MAX = 4 * VIRTUAL_NODES_MAX + 16
"""Lists and objects in it: one for each placement, three for each step."""

Instance = Annotated[str, Field(pattern=r"^[0-9]{1,6}\.[0-9]{1,6}$")]
Members = Annotated[list[Instance], Field(max_length=5, fail_fast=True)]
Vnode = Annotated[int, Field(ge=0, lt=VIRTUAL_NODES_MAX)]
Vnodes = Annotated[list[Vnode], Field(max_length=VIRTUAL_NODES_MAX, fail_fast=True)]


class _Part(SpecPart):
    model_config = ConfigDict(validate_by_name=True)


class PlanForecast(_Part):
    """The cost of a plan, as far as it was known when the plan was made."""

    switchovers: int = Field(default=0, ge=0)
    copies: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    """None: the job has moved no virtual node yet, so there is no measurement"""
    pause: float | None = Field(default=None, ge=0)
    """by how much the distance of two ends of epochs will grow at most, in seconds; None as above"""


class PlanFile(_Part):
    """What `ferry plan -o` writes and `ferry submit` hands in."""

    job: str = Field(min_length=1, max_length=253)
    size: Size
    """what the job is to be when it is over"""
    before: Size
    """and what it goes back to when it is taken back"""
    replicas: int = Field(ge=0)
    handover: Handover = Handover()
    usable: list[Instance] = Field(min_length=1, max_length=WORKERS_MAX * INSTANCES_MAX, fail_fast=True)
    """instances that are to hold state"""
    placements: list[Members] = Field(min_length=1, max_length=VIRTUAL_NODES_MAX, fail_fast=True)
    """by virtual node: the leader, then its replicas"""
    steps: list[tuple[Vnodes, Vnodes]] = Field(default_factory=list, max_length=VIRTUAL_NODES_MAX, fail_fast=True)
    """(copies, switchovers) of each: to look at"""
    forecast: PlanForecast = PlanForecast()

    @cached_property
    def name(self) -> str:
        """Its name: a digest of the plan."""
        return hashlib.sha256(self.dump().encode()).hexdigest()[:10]

    def dump(self) -> str:
        """As JSON, in one line."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)

    @cached_property
    def instances(self) -> tuple[InstanceId, ...]:
        """Instances that are to hold state."""
        return tuple(map(InstanceId, self.usable))

    @cached_property
    def targets(self) -> placing.Placements:
        """The placements, as `placing` has them."""
        return tuple(tuple(map(InstanceId, members)) for members in self.placements)

    @cached_property
    def policy(self) -> HandoverPolicy:
        """How the plan is cut into steps."""
        return handovers.policy_of(self.handover)

    def words(self) -> str:
        """The plan in one line."""
        one, many = self.forecast, max(1, len(self.steps))
        moves = f"{one.switchovers} new leaders and {one.copies} copies in {many} step{'s' if many > 1 else ''}"
        return f"plan {self.name}: {self.size.words()}, {moves}"


def read(text: str) -> PlanFile:
    """From JSON. Raises Refusal that says what is wrong, and where."""
    _check_names(text)
    try:
        found = PlanFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise Refusal(f"this is no plan: {where}: {first['msg']}") from None
    _check(found)
    return found


def _check_names(text: str) -> None:
    """Before the rest is checked: an error of pydantic about a name holds a copy of the whole document."""
    if text.count("[") + text.count("{") > LISTS_MAX:
        raise Refusal(f"this is no plan: it has more than {LISTS_MAX} lists and objects")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Refusal("this is no plan: it is no JSON object")
    fields = PlanFile.model_fields.items()
    wrong = {*document} - {name for name, _ in fields} | {n for n, one in fields if one.is_required()} - {*document}
    if wrong:
        raise Refusal(f"this is no plan: {min(wrong)[:40]}: unknown, or missing")


def _check(one: PlanFile) -> None:
    usable = set(one.usable)
    if len(usable) != len(one.usable):
        raise Refusal("this is no plan: usable names an instance twice")
    for instance in one.usable:
        if not one.size.has(*map(int, instance.split("."))):
            raise Refusal(f"this is no plan: usable: a job of this size has no instance {instance}")
    copies = 1 + min(one.replicas, len({worker_of(InstanceId(i)) for i in usable}) - 1)
    for vnode, placement in enumerate(one.placements):
        if not placement or not usable.issuperset(placement):
            raise Refusal(f"this is no plan: placements.{vnode}: has to name instances that are usable")
        if len({worker_of(InstanceId(i)) for i in placement}) < len(placement):
            raise Refusal(f"this is no plan: placements.{vnode}: its copies have to be on different workers")
        if len(placement) != copies:
            raise Refusal(f"this is no plan: placements.{vnode}: has to name {copies} instances, as there are replicas")


def unfit(one: PlanFile, job: str, virtual_nodes: int, replicas: int, drains: Sequence[int]) -> str:
    """Why a plan cannot be followed: it is of another job, or of another shape of this one; empty: it can."""
    if one.job != job:
        return f"the plan is of the job {one.job!r}"
    if len(one.placements) != virtual_nodes:
        return f"the plan has {len(one.placements)} virtual nodes, {job} has {virtual_nodes}"
    if one.replicas != replicas:
        return f"the plan is for {one.replicas} replicas, {job} has {replicas}"
    if one.usable != (there := one.size.instance_ids(drains)):
        return f"the plan is for the instances {', '.join(one.usable)}; as workers are drained these are {', '.join(there)}"
    return ""


def check_begin(one: PlanFile, now: Size) -> None:
    """Raise Refusal when the job has another size than the plan begins with."""
    if one.before != now:
        raise Refusal(f"the plan begins with {one.before.words()}, and there are {now.words()}: make another one")


@dataclass(frozen=True, slots=True)
class Present:
    """A job as it is, as far as a plan depends on it."""

    job: str
    size: Size
    replicas: int
    groups: Sequence[Sequence[str]]
    """by virtual node: in-sync members, the leader first"""
    loads: Sequence[tuple[float, float]] = ()
    """by virtual node: (records per second, bytes); none where they are not known"""
    drains: Sequence[int] = ()
    pins: Mapping[int, InstanceId] | None = None
    nodes: Mapping[int, str] | None = None
    """by worker"""
    costs: tuple[float | None, float | None] = (None, None)
    """seconds per byte that is copied, and of pause per new leader, as moves went so far"""


def made(present: Present, size: Size, handover: Handover) -> PlanFile:
    """The plan that leads a job to this size. Raises Refusal when no worker would be left."""
    usable = tuple(size.instance_ids(present.drains))
    if not usable:
        raise Refusal("no worker is left: all are drained")
    pins = tuple((v, i) for v, i in sorted((present.pins or {}).items()) if i in usable)
    slots = placing.slots(usable, present.nodes or {})
    placements = placing.place(present.groups, present.loads, slots, present.replicas, pins)
    current = [tuple(map(InstanceId, group)) for group in present.groups]
    cut = steps(current, placements, handovers.policy_of(handover))
    loads = placing.weights(present.loads, len(current))
    was, is_to_be = ([placing.as_planned(one) for one in every] for every in (current, placements))
    moved = planner.movement(was, is_to_be, loads)
    return PlanFile(
        job=present.job,
        size=size,
        before=present.size,
        replicas=present.replicas,
        handover=handover,
        usable=list(usable),
        placements=[list(one) for one in placements],
        steps=[(list(copies), list(switched)) for copies, switched in cut],
        forecast=_forecast(present.costs, moved, max((len(switched) for _, switched in cut), default=0)),
    )


def _forecast(costs: tuple[float | None, float | None], moved: planner.Movement, at_once: int) -> PlanForecast:
    """As moves went so far. `at_once`: new leaders of the largest step."""
    per_byte, per_leader = costs
    known = per_byte is not None and per_leader is not None
    return PlanForecast(
        switchovers=moved.switchovers,
        copies=moved.copies,
        bytes=round(moved.bytes),
        seconds=moved.bytes * (per_byte or 0.0) + moved.switchovers * (per_leader or 0.0) if known else None,
        pause=None if per_leader is None else per_leader * at_once,
    )


def packed(one: PlanFile) -> str:
    """As an annotation holds it. Raises Refusal when it is too large for one."""
    text = b64encode(zlib.compress(one.dump().encode(), 9)).decode()
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
    """The plan in an annotation of this job; None: the text is no plan, or a plan of another job."""
    file = unpacked(text)
    return file if file is not None and file.job == job else None


def dump(one: PlanFile) -> str:
    """As a file, for people."""
    document = json.loads(one.dump())
    placements, cut = document.pop("placements"), document.pop("steps", [])
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    for name, many in (("placements", placements), ("steps", cut)):
        lines.append(f' "{name}": [\n  ' + ",\n  ".join(json.dumps(one) for one in many) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"
