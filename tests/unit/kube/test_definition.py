"""A definition in the cluster that is older than the operator: how it is noticed, and who is told."""

from __future__ import annotations

import copy

import pytest

from ferry_operator.crd import schema
from ferry_operator.kube.api.port import EVENTS, JOBS, ApiError, Kind
from ferry_operator.kube.observe.definition import Definition
from ferry_operator.kube.process.definition import AGAIN_SECONDS, SECONDS, DefinitionReading
from tests.unit.job.test_definition import published
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import World, job, settled


def test_an_older_definition_is_noticed_until_it_is_applied() -> None:
    api, definition = FakeApi(lambda: 0.0), Definition()
    reading, older = DefinitionReading(api, definition), copy.deepcopy(schema.schema())
    del older["properties"]["spec"]["properties"]["epoch"]["properties"]["maxRows"]
    api.published = published(older)
    assert reading.read() == AGAIN_SECONDS and definition.missing == ("spec.epoch.maxRows",)
    api.published = published(schema.schema())
    assert reading.read() == SECONDS and not definition.missing


def test_a_definition_that_cannot_be_read_changes_nothing() -> None:
    api, definition = FakeApi(lambda: 0.0), Definition(("spec.cores",))

    def refuse(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(403, "Forbidden", "no")

    api.before = refuse
    assert DefinitionReading(api, definition).read() == AGAIN_SECONDS and definition.missing == ("spec.cores",)
    api.before = lambda *_: None
    api.published = {"components": [1]}
    assert DefinitionReading(api, definition).read() == SECONDS and definition.missing == ("spec.cores",)


@pytest.mark.parametrize(("count", "more"), [(2, ""), (7, " and 2 more")])
def test_the_first_fields_are_named(count: int, more: str) -> None:
    text = Definition(tuple(f"spec.f{n}" for n in range(count))).problem
    assert text is not None and f"spec.f{min(count, 5) - 1}{more}. Apply" in text


def test_every_job_says_that_the_definition_is_older() -> None:
    world = World(3)
    world.api.create(JOBS, job())
    world.operator.definition.missing = ("spec.cores",)
    world.until(settled)
    found = world.condition("DefinitionOlder")
    assert found["status"] == "True" and "spec.cores" in found["message"]
    assert any(doc["reason"] == "DefinitionOlder" for (kind, _), doc in world.api.objects.items() if kind == EVENTS)
    assert world.status["phase"] == "Running", "the job itself is well"
    world.operator.definition.missing = ()
    world.rounds(3)
    assert all(one["type"] != "DefinitionOlder" for one in world.status["conditions"])
