"""One rule of the custom resource in CEL, with a valid job and a change that breaks the rule.

Pure values; the rules themselves are in `rules`, rules that follow from the models in `derived`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from ferry_operator.job.models import API_VERSION, KIND

Document = dict[str, Any]
Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
"""With these reasons the API server shows the message; for a duplicate it shows the value alone."""

BASE: Document = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "rules"},
    "spec": {"pipeline": {"module": "jobs.rules"}},
}
"""The smallest job; patches are applied to it."""

DATA: list[Document] = [{"name": "data", "mountPath": "/data", "claim": "data"}]
HOST_PATH: Document = {"medium": "hostPath", "path": "/srv/ferry"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, with a valid and an invalid job."""

    name: str
    path: str
    """place of the rule: '' for the whole object, else a path such as 'spec.failure'; '[]' for the items of a list"""
    rule: str
    message: str
    broken: Document
    """merge patch for the job of `valid`; the result breaks this rule and no other rule"""
    valid: Document = field(default_factory=dict)
    """merge patch for BASE; the result is valid"""
    update: bool = False
    """the rule compares with the previous object: a test creates the job of `valid`, then changes it to `broken`"""
    reason: Reason = "FieldValueInvalid"
    field_path: str | None = None
    """relative to `path`, such as '.timeout'"""
    sees_status: bool = False
    """the rule stands at the root and `self` is the whole object; `path` is the checked part"""

    def valid_job(self) -> Document:
        """A job that obeys the rule."""
        return patched(BASE, self.valid)

    def broken_job(self) -> Document:
        """The same job, changed so that it breaks the rule."""
        return patched(self.valid_job(), self.broken)

    @property
    def node(self) -> str:
        """Place of the rule in the schema."""
        return "" if self.sees_status else self.path

    def to_schema(self) -> Document:
        """The rule in the form of the schema."""
        out: Document = {"rule": self.rule, "message": self.message, "reason": self.reason}
        where = f".{self.path}{self.field_path}" if self.sees_status else self.field_path
        return out if where is None else {**out, "fieldPath": where}


def patched(document: Document, patch: Document) -> Document:
    """A copy with a merge patch (RFC 7386) applied: null removes a key, a map is merged, other values replace."""
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
