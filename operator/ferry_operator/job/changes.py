"""The effect of a change of a field of the spec on a running job: one table, read from the fields of the models.

Pure: the operator acts on `classify`, `plan` prints it, and `crd.fields_page` writes the table as
docs/fields.md. A field without an effect is an error when this module is imported, so no change is ignored in silence.

| kind | what happens |
|---|---|
| live | the change takes effect; nothing is restarted and no state moves |
| handover | state moves between instances; the query, the driver and the other workers go on |
| switch | the program is deployed while the job runs, from an epoch on; nothing restarts, and a refusal changes nothing |
| restart | the driver is restarted and goes on from the warm state; workers stay |
| rolling | worker pods are emptied by handovers and replaced one after another; some fields also restart the driver |
| refused | nothing happens: the field keeps its first value, and the rest of the old spec stays in force |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ferry_operator.job.fields import model_of, names_of
from ferry_operator.job.models import Spec
from ferry_operator.job.models_base import CHANGE_EFFECT
from ferry_operator.job.quantities import Cpus, Duration, Quantity, amount

RESTORE_FROM = "spec.restoreFrom"
"""A change is refused while the job has state; it is allowed while the job is suspended."""


class ChangeKind(StrEnum):
    """The effect of a change, from the smallest to the largest."""

    LIVE = "live"
    HANDOVER = "handover"
    SWITCH = "switch"
    RESTART = "restart"
    ROLLING = "rolling"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """One field of the spec."""

    path: str
    """with 'spec.' in front"""
    kind: ChangeKind
    what: str
    """the effect, in one line"""
    used: str
    """'both', 'kubernetes' or 'one machine'"""
    driver: bool
    """a change restarts the driver"""
    names: tuple[str, ...]
    """names in Python, from the spec down"""
    field: FieldInfo

    @property
    def workers(self) -> bool:
        """A change replaces worker pods."""
        return self.kind is ChangeKind.ROLLING


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs between two specs."""

    entry: FieldEntry
    before: Any
    after: Any

    @property
    def path(self) -> str:
        """Where, with 'spec.' in front."""
        return self.entry.path

    @property
    def kind(self) -> ChangeKind:
        """The effect of the change."""
        return self.entry.kind

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.before)} -> {_text(self.after)} ({self.kind}: {self.entry.what})"


def classify(old: Spec, new: Spec) -> list[Change]:
    """The changed fields, in their order; another spelling of a value ('1s', '1000ms') is no change."""
    changed = []
    for entry in TABLE:
        before, after = _value(old, entry.names), _value(new, entry.names)
        if not _same(before, after):
            changed.append(Change(entry, before, after))
    return changed


def refusals(old: Spec, new: Spec) -> list[Change]:
    """Changed fields that may not change."""
    suspended = old.suspended or new.suspended
    refused = [change for change in classify(old, new) if change.kind is ChangeKind.REFUSED]
    return [change for change in refused if not (suspended and change.path == RESTORE_FROM)]


def entries(model: type[BaseModel], path: str = "spec") -> Iterator[FieldEntry]:
    """All fields below a model that have no fields of their own, with the effect of the field or of a group around it."""
    return _entries(model, path, (), None)


def _entries(model: type[BaseModel], path: str, names: tuple[str, ...], around: Any) -> Iterator[FieldEntry]:
    for alias, name in names_of(model).items():
        field, where = model.model_fields[name], f"{path}.{alias}"
        extra = field.json_schema_extra
        effect = extra.get(CHANGE_EFFECT, around) if isinstance(extra, dict) else around
        group = model_of(field.annotation)
        if group is not None:
            yield from _entries(group, where, (*names, name), effect)
        else:
            assert effect is not None, f"{where} does not say what a change of it does"
            yield FieldEntry(
                where,
                ChangeKind(effect["kind"]),
                effect["what"],
                effect["used"],
                effect["driver"],
                (*names, name),
                field,
            )


def _value(spec: Spec, names: tuple[str, ...]) -> Any:
    value: Any = spec
    for name in names:
        value = getattr(value, name)
    return value


def _same(before: Any, after: Any) -> bool:
    measured = Duration | Quantity | Cpus
    if isinstance(before, measured) and isinstance(after, measured):
        return amount(before) == amount(after)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_same(value, after[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(_same(*both) for both in zip(before, after))
    # True == 1 and 1 == 1.0 in Python; to a pipeline that reads its arguments they differ.
    return type(before) is type(after) and bool(before == after)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


TABLE: tuple[FieldEntry, ...] = tuple(entries(Spec))
"""Every field of the spec, in the order of the models."""
