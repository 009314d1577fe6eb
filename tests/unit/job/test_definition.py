"""Fields that the definition of the API server lacks, from its OpenAPI document."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ferry_operator.crd import schema
from ferry_operator.job.definition import missing_fields

KIND = {"group": "ferry.dev", "version": "v1alpha1", "kind": "StreamJob"}


def published(definition: dict[str, Any]) -> dict[str, Any]:
    """What an API server publishes of a definition."""
    lists = {"x-kubernetes-group-version-kind": [{**KIND, "kind": "StreamJobList"}]}
    mine = {**definition, "x-kubernetes-group-version-kind": [KIND]}
    return {"openapi": "3.0.0", "components": {"schemas": {"dev.List": lists, "dev.StreamJob": mine, "io.Meta": {}}}}


def test_the_present_definition_lacks_nothing() -> None:
    assert missing_fields(published(schema.schema())) == ()


@pytest.mark.parametrize(
    ("path", "lacks"),
    [
        ("spec.epoch.maxRows", ["spec.epoch.maxRows"]),
        ("spec.kubernetes.volumes[].claim", ["spec.kubernetes.volumes.claim"]),
        ("status.memory", ["status.memory"]),
        ("status.memory.good.seal", ["status.memory.good.seal"]),
        ("spec.deploy", ["spec.deploy"]),
    ],
)
def test_a_field_that_is_not_there_has_its_path(path: str, lacks: list[str]) -> None:
    older = copy.deepcopy(schema.schema())
    above, _, name = path.rpartition(".")
    del schema.node_at(older, above)["properties"][name]
    assert list(missing_fields(published(older))) == lacks


def test_fields_below_a_free_map_are_not_missing() -> None:
    free = copy.deepcopy(schema.schema())
    free["properties"]["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert missing_fields(published(free)) == ()


@pytest.mark.parametrize("document", [{}, {"components": None}, {"components": {"schemas": {"other": {}}}}])
def test_a_document_without_the_definition_says_nothing(document: dict[str, Any]) -> None:
    assert missing_fields(document) == ()
