"""The custom resource definition: it equals the models, is structural, has rules that can be kept and broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ferry_operator.crd import schema
from ferry_operator.crd.rules import BASE, RULES, Rule, patched
from ferry_operator.job import spec
from ferry_operator.job.changes import TABLE, ChangeKind
from ferry_operator.job.models import Spec
from ferry_operator.job.models_base import CHANGE_EFFECT
from ferry_operator.job.status import JobStatus

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "crds" / "streamjobs.ferry.dev.yaml"
SCHEMA = schema.schema()


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of the resource with its path."""
    yield path, node
    for name, below in node.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}".removeprefix("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in node:
            yield from nodes(node[key], path + mark)


NODES = dict(nodes(SCHEMA))


def test_the_file_is_what_the_models_say() -> None:
    written = FILE.read_text("utf-8")
    assert written == schema.to_yaml(schema.definition()), "out of date: make crds"
    assert yaml.safe_load(written) == schema.definition()


KNOWN = set(schema._KEPT) | {
    "default", "properties", "items", "additionalProperties", "nullable", "x-kubernetes-validations",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip
"""Fields of a schema that Kubernetes knows."""


@pytest.mark.parametrize("file", sorted(FILE.parent.glob("*.yaml")), ids=lambda file: file.name)
def test_a_definition_has_only_fields_that_the_api_server_knows(file: Path) -> None:
    """A comma in a description without quotes begins another field, and `kubectl apply` refuses the definition."""
    for version in yaml.safe_load(file.read_text("utf-8"))["spec"]["versions"]:
        for path, node in nodes(version["schema"]["openAPIV3Schema"]):
            assert set(node) <= KNOWN, path


def test_the_schema_is_structural() -> None:
    """What Kubernetes demands of a schema, and nothing that only pydantic understands."""
    for path, node in NODES.items():
        assert set(node) <= KNOWN, (path, set(node) - KNOWN)
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert node.get("description") or path in ("apiVersion", "kind", "metadata") or path[-1] in "]}", path
        assert ("properties" in node) + ("additionalProperties" in node) + (
            "x-kubernetes-preserve-unknown-fields" in node
        ) == (node.get("type") == "object" and path != "metadata"), path
        assert ("items" in node) == (node.get("type") == "array"), path
    text = json.dumps(SCHEMA)
    assert CHANGE_EFFECT not in text and "$ref" not in text and "anyOf" not in text and '"title"' not in text


def test_only_maps_with_free_keys_take_any_field() -> None:
    free = [path for path, node in NODES.items() if node.get("x-kubernetes-preserve-unknown-fields")]
    assert free == [
        "spec.pipeline.args",
        *(
            f"spec.kubernetes.{name}"
            for name in ("tolerations[]", "affinity", "env[]", "driverPodTemplate", "workerPodTemplate")
        ),
    ]


def test_defaults_are_those_of_the_models() -> None:
    """The API server fills in what the models would, but for fields that an operator of a release refuses."""
    smallest = spec.check(BASE).spec
    for entry in TABLE:
        value: Any = smallest.model_dump(mode="json", by_alias=True)
        for part in entry.path.split(".")[1:]:
            value = value[part]
        expected = None if value in ([], {}) or entry.path in ("spec.pipeline.module", *schema.LATER) else value
        assert NODES[entry.path].get("default") == expected, entry.path
    for path, node in NODES.items():
        if node.get("type") == "object" and path.startswith("spec.") and "default" in node:
            below = {name: one["default"] for name, one in node["properties"].items() if "default" in one}
            assert node["default"] == below, path


def test_status_has_no_defaults() -> None:
    assert not [path for path, node in NODES.items() if path.startswith("status") and "default" in node]


def test_required_and_nullable() -> None:
    assert SCHEMA["required"] == ["spec"]
    assert NODES["spec"]["required"] == ["pipeline"]
    assert NODES["spec.kubernetes.volumes[]"]["required"] == ["name", "mountPath"]
    assert NODES["spec.handover.bandwidth"]["nullable"] and NODES["spec.output"]["nullable"]
    assert "nullable" not in NODES["spec.workers"]


def test_subresources_and_columns_name_fields_that_exist() -> None:
    version = schema.definition()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    assert set(version["subresources"]) == {"status", "scale"}
    for path in scale.values():
        assert path.removeprefix(".") in NODES
    assert NODES["spec.workers"]["type"] == NODES["status.workers"]["type"] == "integer"
    assert NODES["status.selector"]["type"] == "string"
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].removeprefix(".")
        is_date = path == "metadata.creationTimestamp" or NODES[path].get("format") == "date-time"
        assert column["type"] == ("date" if is_date else NODES[path]["type"]), column
    shown = [c["name"] for c in version["additionalPrinterColumns"] if not c.get("priority")]
    assert shown == ["Status", "Desired", "Current", "Moving", "Lag", "State", "Age"]
    names = schema.definition()["spec"]["names"]
    assert names["shortNames"] == ["sj"]


def test_what_a_model_bounds_the_schema_bounds() -> None:
    """Texts that rules look at have an end, or the API server would refuse the rules for their cost."""
    for path, node in NODES.items():
        if path.startswith("spec") and (node.get("type") == "string" or node.get("x-kubernetes-int-or-string")):
            assert "enum" in node or "maxLength" in node or path[-1] == "}", path
        if path.startswith("spec") and node.get("type") == "array":
            assert "maxItems" in node, path
    assert "maxProperties" in NODES["spec.spark"]


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_examples_fit_the_schema(file: Path) -> None:
    document = yaml.safe_load(file.read_text("utf-8"))
    spec.check(document)
    assert not list(strangers(document["spec"], NODES["spec"], "spec"))


def strangers(value: Any, node: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that the API server would not know."""
    if isinstance(value, dict) and "properties" in node:
        for name, below in value.items():
            if name not in node["properties"]:
                yield f"{path}.{name}"
            else:
                yield from strangers(below, node["properties"][name], f"{path}.{name}")
    elif isinstance(value, list) and "items" in node:
        for one in value:
            yield from strangers(one, node["items"], f"{path}[]")


# ---- rules

NOT_LOCAL = {
    "replicas-below-workers": "on one machine it is a warning",
    "instances-within-virtual-nodes": "on one machine it is a warning",
    "output-on-a-volume": "on one machine any directory will do",
    "dead-letter-on-a-volume": "on one machine any directory will do",
    "location-on-a-volume": "on one machine any directory will do",
    "pipeline-file-absolute": "on one machine it is relative to the job file",
    "no-state-directory": "on one machine it is where the state is",
    "no-standby": "it is for one machine",
    "rdma-has-a-device": "on one machine it need not be given to anybody",
}
"""Rules that the models do not check."""


def test_there_are_many_rules_and_each_has_its_name() -> None:
    assert len(RULES) >= 10
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert len({(rule.path, rule.message) for rule in RULES}) == len(RULES)
    assert all(len(rule.message) < 2048 and "\n" not in rule.message for rule in RULES)
    assert set(NOT_LOCAL) <= {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_in_the_schema_and_the_models_agree(rule: Rule) -> None:
    node = schema.node_at(SCHEMA, rule.node)
    assert rule.to_schema() in node["x-kubernetes-validations"]
    if rule.field_path is not None:
        assert f"{rule.path}{rule.field_path}".removeprefix(".") in NODES or "[]" in rule.path
    spec.check(rule.valid_job())
    for job in (rule.valid_job(), rule.broken_job()):
        assert not list(strangers(job["spec"], NODES["spec"], "spec"))
    if rule.update:
        assert spec.immutable_changes(spec.check(rule.valid_job()), spec.check(rule.broken_job()))
    elif rule.name in NOT_LOCAL:
        spec.check(rule.broken_job())
    else:
        with pytest.raises(spec.JobRefused) as refused:
            spec.check(rule.broken_job())
        assert len(refused.value.problems) == 1, refused.value.problems


def test_every_rule_of_the_schema_comes_from_the_table() -> None:
    written = sum(len(node.get("x-kubernetes-validations", ())) for node in NODES.values())
    assert written == len(RULES)


def test_what_may_not_change_has_a_rule() -> None:
    kept = {entry.path for entry in TABLE if entry.kind is ChangeKind.REFUSED and entry.used != "one machine"}
    rules = {
        rule.path if rule.field_path is None else rule.path + rule.field_path
        for rule in RULES
        if rule.update and "oldSelf" in rule.rule
    }
    assert rules == kept
    assert {"spec.state.virtualNodes", "spec.kubernetes.stateVolume.medium", "spec.kubernetes.checkpoint"} <= kept


def test_a_merge_patch() -> None:
    document = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert patched(document, {"a": {"b": None, "c": [2]}, "e": {"f": 3}}) == {"a": {"c": [2]}, "d": 2, "e": {"f": 3}}
    assert patched(document, {"d": {"x": 1}}) == {"a": {"b": 1, "c": [1]}, "d": {"x": 1}}
    assert document == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_both_models_are_in_the_schema() -> None:
    for model, part in ((Spec, "spec"), (JobStatus, "status")):
        aliases = {field.alias for field in model.model_fields.values()}
        assert set(NODES[part]["properties"]) == aliases
