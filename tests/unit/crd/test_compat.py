"""The check of two definitions sees every change that breaks objects which are there; what defaults were filled in is read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ferry_operator.crd import schema
from ferry_operator.job import spec
from ferry_operator.job.models import API_VERSION, KIND
from tests.unit.crd import compat

RELEASED = sorted((Path(__file__).resolve().parents[2] / "released").glob("*/crds/streamjobs.ferry.dev.yaml"))

Schema = dict[str, Any]


@pytest.mark.parametrize("file", RELEASED, ids=lambda file: file.parents[1].name)
def test_objects_that_a_released_definition_has_filled_are_read(file: Path) -> None:
    """The API server writes defaults into what it stores, also those of fields that are no more."""
    (version,) = yaml.safe_load(file.read_text("utf-8"))["spec"]["versions"]
    stored = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "nbq5"}}
    stored["spec"] = fill(version["schema"]["openAPIV3Schema"]["properties"]["spec"], {"pipeline": {"module": "m"}})
    assert spec.check(stored).spec.pipeline.module == "m"


def fill(schema: Schema, value: Schema) -> Schema:
    """With its defaults."""
    for name, field in schema.get("properties", {}).items():
        if name not in value and "default" in field:
            value[name] = copy.deepcopy(field["default"])
        if isinstance(value.get(name), dict):
            fill(field, value[name])
    return value


def at(definition: Schema, path: str) -> Schema:
    return schema.node_at(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], path)


def setting(path: str, **values: Any) -> Callable[[Schema], None]:
    return lambda definition: at(definition, path).update(values)


def without(path: str, key: str) -> Callable[[Schema], None]:
    def change(definition: Schema) -> None:
        del at(definition, path)[key]

    return change


def without_field(definition: Schema) -> None:
    del at(definition, "spec.epoch")["properties"]["maxRows"]


def without_scale(definition: Schema) -> None:
    del definition["spec"]["versions"][0]["subresources"]["scale"]


def without_column(definition: Schema) -> None:
    del definition["spec"]["versions"][0]["additionalPrinterColumns"][0]


def another_version(definition: Schema) -> None:
    definition["spec"]["versions"][0]["name"] = "v1"


def another_scope(definition: Schema) -> None:
    definition["spec"]["scope"] = "Cluster"


def another_short_name(definition: Schema) -> None:
    definition["spec"]["names"]["shortNames"] = ["job"]


def stricter_rule(definition: Schema) -> None:
    at(definition, "spec.failure")["x-kubernetes-validations"].append({"rule": "false", "message": "no"})


BREAKS: list[tuple[Callable[[Schema], None], str]] = [
    (without_field, "v1alpha1: spec.epoch.maxRows: is gone"),
    (setting("spec.workers", type="string"), "v1alpha1: spec.workers: was integer, is string"),
    (setting("spec.workers", maximum=100), "v1alpha1: spec.workers: maximum is 100 now"),
    (setting("spec.state.replicas", minimum=1), "v1alpha1: spec.state.replicas: minimum is 1 now"),
    (setting("spec.pipeline.module", maxLength=9), "v1alpha1: spec.pipeline.module: maxLength is 9 now"),
    (setting("spec.events", maximum=10), "v1alpha1: spec.events: maximum is 10 now"),
    (setting("spec.pipeline.module", pattern="^a"), "v1alpha1: spec.pipeline.module: pattern is ^a now"),
    (setting("spec.handover.strategy", enum=["fluid"]), "v1alpha1: spec.handover.strategy: allows only fluid now"),
    (setting("spec.pipeline.module", enum=["a"]), "v1alpha1: spec.pipeline.module: allows only a now"),
    (setting("spec.state", required=["memory"]), "v1alpha1: spec.state: memory is required now"),
    (without("spec.handover.bandwidth", "nullable"), "v1alpha1: spec.handover.bandwidth: may not be null any more"),
    (
        without("spec.kubernetes.affinity", "x-kubernetes-preserve-unknown-fields"),
        "v1alpha1: spec.kubernetes.affinity: does not take any field any more",
    ),
    (
        setting("spec.kubernetes.volumes[].name", maxLength=9),
        "v1alpha1: spec.kubernetes.volumes[].name: maxLength is 9 now",
    ),
    (
        setting("spec.kubernetes.nodeSelector", additionalProperties={"type": "integer"}),
        "v1alpha1: spec.kubernetes.nodeSelector{}: was string, is integer",
    ),
    (
        setting("spec.kubernetes.tolerations", **{"x-kubernetes-list-type": "set"}),
        "v1alpha1: spec.kubernetes.tolerations: x-kubernetes-list-type is set now",
    ),
    (setting("spec.workers", default=3), "v1alpha1: spec.workers: the default was 2, is 3"),
    (without("spec.workers", "default"), "v1alpha1: spec.workers: the default was 2, is none"),
    (setting("spec.output", default="out"), 'v1alpha1: spec.output: the default was none, is "out"'),
    (
        setting("spec.pipeline.args", default={"seed": 1}),
        'v1alpha1: spec.pipeline.args: the default was none, is {"seed": 1}',
    ),
    (
        lambda new: at(new, "spec")["properties"].update(more={"type": "string", "default": "a"}),
        "v1alpha1: spec.more: is new and has a default: an older operator refuses the field",
    ),
    (stricter_rule, "v1alpha1: spec.failure: a new rule: false"),
    (without_scale, "v1alpha1: the subresource scale is gone or has other paths"),
    (without_column, "v1alpha1: the column Status is gone"),
    (another_version, "v1alpha1 is no longer served"),
    (another_scope, "scope changed"),
    (another_short_name, "names.shortNames: sj is gone"),
]


@pytest.mark.parametrize(("change", "complaint"), BREAKS, ids=[complaint for _, complaint in BREAKS])
def test_what_breaks_is_seen(change: Callable[[Schema], None], complaint: str) -> None:
    old = schema.definition()
    new = copy.deepcopy(old)
    change(new)
    assert compat.breaks(old, new) == [complaint]


WIDENS: list[Callable[[Schema], None]] = [
    setting("spec.workers", maximum=1000),
    setting("spec.state.replicas", maximum=9, description="More of them."),
    setting("spec.handover.strategy", enum=["all-at-once", "batched", "fluid", "optimized", "guided"]),
    setting("spec.workers", **{"x-kubernetes-int-or-string": True}),
    setting("spec.output", pattern=None, minLength=0),
    setting("spec.cores", nullable=True),
    without("spec.failure", "x-kubernetes-validations"),
    lambda definition: at(definition, "spec.epoch")["properties"].update({"minRows": {"type": "integer"}}),
]


@pytest.mark.parametrize("change", WIDENS)
def test_what_widens_is_fine(change: Callable[[Schema], None]) -> None:
    old = schema.definition()
    new = copy.deepcopy(old)
    change(new)
    assert new != old
    assert compat.breaks(old, new) == []
