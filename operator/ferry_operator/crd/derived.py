"""Rules of the custom resource that follow from the models: fields that keep their first value, bounds of texts.

Pure: read from the effects and validators of the fields, so the models and the CRD cannot contradict each other.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from ferry_operator.crd.rule import DATA, HOST_PATH, Document, Rule, in_kubernetes, in_spec
from ferry_operator.job.changes import RESTORE_FROM, TABLE, ChangeKind
from ferry_operator.job.fields import group_of, model_of, names_of
from ferry_operator.job.models import Spec
from ferry_operator.job.models_base import IMMUTABLE
from ferry_operator.job.quantities import Bounds, Cpus, Duration, Quantity

FIRST_VALUES: dict[str, tuple[Document, Document]] = {
    "spec.state.virtualNodes": ({}, in_spec(state={"virtualNodes": 128})),
    "spec.security.tls": ({}, in_spec(security={"tls": "off"})),
    "spec.kubernetes.stateVolume.medium": (
        in_kubernetes(stateVolume={"size": "256Mi"}),
        in_kubernetes(stateVolume={"medium": "memory"}),
    ),
    "spec.kubernetes.stateVolume.path": (
        in_kubernetes(stateVolume=HOST_PATH),
        in_kubernetes(stateVolume={"path": "/srv/other"}),
    ),
    "spec.kubernetes.stateVolume.size": ({}, in_kubernetes(stateVolume={"size": "1Gi"})),
    "spec.kubernetes.checkpoint": (
        in_kubernetes(volumes=DATA),
        in_kubernetes(checkpoint="/data/checkpoint"),
    ),
}
"""For every field that may not change: a job, and a change of the field that breaks no other rule."""

TOO_SHORT = ("spec.failure.heartbeat",)
"""Durations whose examples are below the bounds; other examples are above. A long heartbeat breaks a second rule."""


def immutables() -> Iterator[Rule]:
    """Fields whose change is refused. A field without a default may be absent, so its rule stands in the group around it."""
    marked = IMMUTABLE["x-kubernetes-validations"]
    assert isinstance(marked, list) and isinstance(marked[0], dict)
    same, message = str(marked[0]["rule"]), str(marked[0]["message"])
    for entry in TABLE:
        if entry.kind is not ChangeKind.REFUSED or entry.used == "one machine" or entry.path == RESTORE_FROM:
            continue
        valid, broken = FIRST_VALUES[entry.path]
        group, _, name = entry.path.rpartition(".")
        if entry.field.default is None:
            rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            path, field_path = group, f".{name}"
        else:
            rule, path, field_path = same, entry.path, None
        text = f"{name} {message}"
        yield Rule(_name(entry.path, "immutable"), path, rule, text, broken, valid, True, field_path=field_path)


def bounds(model: type[BaseModel] = Spec, path: str = "spec") -> Iterator[Rule]:
    """Bounds of durations, sizes and CPUs, which are text to a schema."""
    for alias, name in names_of(model).items():
        info, where = model.model_fields[name], f"{path}.{alias}"
        group = model_of(info.annotation)
        if group is not None:
            yield from bounds(group, where)
        elif (inside := group_of(info.annotation)) is not None:
            assert not list(bounds(inside, where)), f"{where}: rules for the items of lists are written by hand"
        else:
            for limits in bounds_of(info):
                rule, message = within(limits)
                yield Rule(
                    _name(where, "bounds"),
                    where,
                    rule,
                    message,
                    broken=_at(where, _beyond(limits, where in TOO_SHORT)),
                )


def bounds_of(info: FieldInfo) -> list[Bounds]:
    """The bounds among the validators of a field, also of a nullable field."""
    of_union = [m for part in typing.get_args(info.annotation) for m in getattr(part, "__metadata__", ())]
    validators = [each.func for each in (*info.metadata, *of_union) if isinstance(each, AfterValidator)]
    return [each for each in validators if isinstance(each, Bounds)]


def within(limits: Bounds) -> tuple[str, str]:
    """The rule and its message."""
    if limits.kind is Duration:
        is_zero, message = "duration(self) == duration('0s')", f"from {limits.low} to {limits.high}"
        rule = f"duration(self) >= duration('{limits.low}') && duration(self) <= duration('{limits.high}')"
    else:
        assert limits.high is None, "sizes have no upper bound yet"
        value, message = "quantity(string(self))", f"at least {limits.low}"
        is_zero, rule = f"{value}.compareTo(quantity('0')) == 0", f"{value}.compareTo(quantity('{limits.low}')) >= 0"
    return (f"{is_zero} || {rule}", f"must be 0 or {message}") if limits.or_zero else (rule, f"must be {message}")


def _beyond(limits: Bounds, below: bool) -> str:
    """A value out of bounds."""
    least = limits.kind(limits.low)
    if isinstance(least, Quantity):
        return str(least.bytes // 2)
    if isinstance(least, Cpus):
        return f"{least.millis // 2}m"
    return f"{least.seconds * 500:g}ms" if below else f"{2 * Duration(limits.high or '').seconds:g}s"


def _at(path: str, value: str) -> Document:
    """The patch that sets one field."""
    out: Document = {}
    at, parts = out, path.split(".")
    for part in parts[:-1]:
        at = at.setdefault(part, {})
    at[parts[-1]] = value
    return out


def _name(path: str, what: str) -> str:
    """'spec.state.virtualNodes' -> 'state-virtualNodes-immutable'."""
    return f"{path.removeprefix('spec.').replace('.', '-')}-{what}"
