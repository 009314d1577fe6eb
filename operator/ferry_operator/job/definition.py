"""Whether the definition that an API server has lacks fields of these models. Pure: one OpenAPI document in, paths out.

`helm upgrade` does not change definitions, so an operator may meet one of an older release. The API server drops the values
of fields that its definition lacks, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ferry_operator.job.fields import group_of, names_of
from ferry_operator.job.models import API_VERSION, KIND, Spec
from ferry_operator.job.status import JobStatus

_KINDS, _FREE = "x-kubernetes-group-version-kind", "x-kubernetes-preserve-unknown-fields"


def missing_fields(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the fields of spec and status that the definition lacks; empty if the document has no definition."""
    group, _, version = API_VERSION.partition("/")
    wanted = {"group": group, "version": version, "kind": KIND}
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        if wanted in schema.get(_KINDS, ()):
            parts = schema.get("properties") or {}
            return (*_missing(Spec, parts.get("spec"), "spec"), *_missing(JobStatus, parts.get("status"), "status"))
    return ()


def _missing(model: type[BaseModel], schema: Mapping[str, Any] | None, path: str) -> Iterator[str]:
    if schema is None:
        yield path
        return
    if schema.get(_FREE):
        return
    fields = schema.get("properties") or {}
    for alias, name in names_of(model).items():
        field, where = fields.get(alias), f"{path}.{alias}"
        inside = group_of(model.model_fields[name].annotation)
        if field is None or inside is None:
            yield from () if field is not None else (where,)
        else:
            yield from _missing(inside, field.get("items", field), where)
