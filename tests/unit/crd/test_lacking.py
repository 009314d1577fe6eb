"""Which of two definitions is older: versions, fields and values that one of them lacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ferry_operator.crd import schema
from ferry_operator.crd.lacking import lacking
from tests.released import make

Document = dict[str, Any]


def part(definition: Document, path: str) -> Document:
    node: Document = schema.node_at(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], path)
    return node


def without_field(definition: Document) -> None:
    del part(definition, "spec.epoch")["properties"]["maxRows"]


def without_field_of_items(definition: Document) -> None:
    del part(definition, "spec.kubernetes.volumes[]")["properties"]["claim"]


def without_value(definition: Document) -> None:
    part(definition, "spec.autoscale.mode")["enum"].remove("auto")


def without_scale(definition: Document) -> None:
    del definition["spec"]["versions"][0]["subresources"]["scale"]


def of_another_version(definition: Document) -> None:
    definition["spec"]["versions"][0]["name"] = "v1"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (without_field, "spec.epoch.maxRows"),
        (without_field_of_items, "spec.kubernetes.volumes[].claim"),
        (without_value, "spec.autoscale.mode=auto"),
        (without_scale, "scale"),
        (of_another_version, "version v1alpha1"),
    ],
)
def test_what_is_taken_away_is_named(change: Callable[[Document], None], path: str) -> None:
    whole = schema.definition()
    older = copy.deepcopy(whole)
    change(older)
    assert lacking(older, whole) == (path,)
    assert lacking(whole, older) == (("version v1",) if change is of_another_version else ())


def test_words_and_rules_make_no_definition_older() -> None:
    other = copy.deepcopy(schema.definition())
    part(other, "spec")["description"] = "other"
    part(other, "spec").pop("x-kubernetes-validations", None)
    assert lacking(other, schema.definition()) == lacking(schema.definition(), other) == ()


def test_a_free_map_lacks_nothing_that_is_below_it() -> None:
    free = copy.deepcopy(schema.definition())
    root = free["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["properties"]["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert lacking(free, schema.definition()) == ()


def test_the_first_release_is_older_and_has_nothing_more() -> None:
    file = make.HERE / "v0.1.0" / "crds" / "streamjobs.ferry.dev.yaml"
    old = yaml.safe_load(file.read_text("utf-8"))
    assert "spec.deploy" in lacking(old, schema.definition())
    assert lacking(schema.definition(), old) == ()
