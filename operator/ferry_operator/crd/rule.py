"""One rule of the custom resource in CEL, with a job that keeps it and a change that breaks it.

Pure values; the rules themselves are in `rules`, those that follow from the models in `derived`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from ferry_operator.job.models import API_VERSION, KIND

Document = dict[str, Any]
Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
"""Those with which the API server shows the message; of a duplicate it shows the value alone."""

BASE: Document = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "rules"},
    "spec": {"pipeline": {"module": "jobs.rules"}},
}
"""The smallest job; patches are put on it."""

DATA: list[Document] = [{"name": "data", "mountPath": "/data", "claim": "data"}]
HOST_PATH: Document = {"medium": "hostPath", "path": "/srv/ferry"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, and how to keep and break it."""

    name: str
    path: str
    """where it stands: '' for the whole object, else a path such as 'spec.failure'; '[]' for the items of a list"""
    rule: str
    message: str
    broken: Document
    """merge patch on the job of `valid` that breaks this rule and no other"""
    valid: Document = field(default_factory=dict)
    """merge patch on BASE that keeps it"""
    update: bool = False
    """it compares with the object before: the job of `valid` is made first, then changed to `broken`"""
    reason: Reason = "FieldValueInvalid"
    field_path: str | None = None
    """relative to `path`, such as '.timeout'"""
    sees_status: bool = False
    """it stands at the whole object, and `self` is that; `path` is what it is about"""

    def valid_job(self) -> Document:
        """A job that keeps the rule."""
        return patched(BASE, self.valid)

    def broken_job(self) -> Document:
        """The same job, with the rule broken."""
        return patched(self.valid_job(), self.broken)

    @property
    def node(self) -> str:
        """Where it stands in the schema."""
        return "" if self.sees_status else self.path

    def to_schema(self) -> Document:
        """The rule as the schema has it."""
        out: Document = {"rule": self.rule, "message": self.message, "reason": self.reason}
        where = f".{self.path}{self.field_path}" if self.sees_status else self.field_path
        return out if where is None else {**out, "fieldPath": where}


def patched(document: Document, patch: Document) -> Document:
    """A copy with a merge patch (RFC 7386) put in: null takes a key away, a map is merged, all else replaces."""
    out = copy.deepcopy(document)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            below = out.get(key)
            out[key] = patched(below if isinstance(below, dict) else {}, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def in_spec(**fields: Any) -> Document:
    """A patch of fields of the spec."""
    return {"spec": fields}


def in_kubernetes(**fields: Any) -> Document:
    """A patch of fields of `spec.kubernetes`."""
    return {"spec": {"kubernetes": fields}}
