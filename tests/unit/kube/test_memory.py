"""What the operator remembers survives what users do to the object, and says what it cannot know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.observe import effective_spec
from tests.unit.kube.fakes.fake_world import RELEASE, World, job, settled
from tests.unit.kube.test_suspension import CHECKPOINTED, begun, edit, events, memory, suspended

MANIFEST = job(state=CHECKPOINTED)


def put(world: World, **changes: Any) -> None:
    """`kubectl replace` of the manifest: what it does not say is gone, but for the status, which is no user's."""
    old = world.api.objects[JOBS, "nbq5"]
    new = {**MANIFEST, "spec": {**MANIFEST["spec"], **changes}}
    metadata = {**{k: old["metadata"][k] for k in ("uid", "namespace", "creationTimestamp")}, "name": "nbq5"}
    metadata["generation"] = old["metadata"]["generation"] + (new["spec"] != old["spec"])
    world.api._store(JOBS, {**new, "metadata": metadata, "status": old.get("status")})


def make_again(world: World, status: Doc | None = None, **changes: Any) -> None:
    """The object is deleted, and made again as its manifest says; some tools give it the status that it had."""
    world.api.remove(JOBS, "nbq5")
    world.api.create(JOBS, {**MANIFEST, "spec": {**MANIFEST["spec"], **changes}})
    if status is not None:
        world.api.set_status(JOBS, "nbq5", **status)


def forget(world: World) -> None:
    """The status is lost."""
    world.api._store(JOBS, {**world.api.objects[JOBS, "nbq5"], "status": None})


def asks(world: World) -> bool:
    return world.condition("Degraded").get("reason") == "RestoreFromNeeded"


def going(world: World) -> None:
    world.no_checkpoint = True
    edit(world, suspend=True)
    world.until(lambda w: w.status["phase"] == "Suspending")


def ended(world: World) -> None:
    """The driver has ended with its checkpoint, and nobody has seen it."""
    edit(world, suspend=True)
    while not world.checkpoints:
        world.round()


def over(world: World) -> None:
    world.lingers = 5.0
    edit(world, suspend=True)
    world.until(lambda w: memory(w).get("over"))


def rests(world: World) -> None:
    edit(world, suspend=True)
    world.until(suspended)


def second(world: World) -> None:
    """It runs again, as its second run."""
    rests(world)
    edit(world, suspend=False)
    world.until(lambda w: settled(w) and "good" in memory(w))


STAGES = [going, ended, over, rests, second]


@pytest.mark.parametrize("stays", [True, False], ids=["suspended", "resumed"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_job_that_is_replaced_keeps_its_state(stage: Callable[[World], None], stays: bool) -> None:
    world = begun()
    stage(world)
    put(world, **({"suspend": True} if stays else {}))
    world.rounds(3)
    world.no_checkpoint = False
    if stays:
        world.until(suspended)
        put(world)
    kept = world.checkpoints[-1].epoch if world.checkpoints else -1
    world.until(settled)
    assert next(iter(world.runs.values())) is None and set(list(world.runs.values())[1:]) <= {"latest"}
    assert world.epoch >= kept and world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("foreign", [False, True], ids=["without its status", "with the status of the one before"])
def test_a_job_that_is_made_again_asks_where_it_begins(stage: Callable[[World], None], foreign: bool) -> None:
    world = begun()
    world.take_checkpoint(None)
    stage(world)
    world.no_checkpoint, runs = False, dict(world.runs)
    make_again(world, world.status if foreign else None)
    world.until(asks)
    assert {"latest", "none"} <= set(world.condition("Degraded")["message"].replace(";", " ").split())
    assert world.runs == runs and world.status["phase"] == "Failed"
    world.rounds(20)
    assert world.runs == runs, "nothing has begun"
    edit(world, restoreFrom="latest")
    world.until(settled)
    assert list(world.runs.values())[len(runs) :] == ["latest"] and world.epoch >= world.checkpoints[-1].epoch


@pytest.mark.parametrize("answer", ["latest", "none"])
def test_a_manifest_that_answers_is_not_asked(answer: str) -> None:
    world = begun()
    rests(world)
    make_again(world, restoreFrom=answer)
    world.until(settled)
    assert list(world.runs.values()) == [None, answer]


@pytest.mark.parametrize("stage", STAGES)
def test_a_status_that_is_lost_loses_no_state(stage: Callable[[World], None]) -> None:
    world = begun()
    stage(world)
    forget(world)
    world.rounds(3)
    world.no_checkpoint = False
    runs = dict(world.runs)
    edit(world, suspend=False)
    world.until(lambda w: settled(w) or asks(w))
    if asks(world):
        assert world.runs == runs
        edit(world, restoreFrom="latest")
        world.until(settled)
    assert world.epoch >= (world.checkpoints[-1].epoch if world.checkpoints else 0)
    assert set(list(world.runs.values())[1:]) <= {"latest"}


def test_a_run_whose_status_is_lost_goes_on_over_a_crash_of_its_driver() -> None:
    """Its pods say which run they belong to."""
    world = begun()
    second(world)
    runs, run = dict(world.runs), world.status["run"]
    forget(world)
    world.driver_ends(1)
    world.until(lambda w: settled(w) and memory(w).get("run") == 2)
    assert world.runs == runs and world.status["run"] == run


# --- what is kept


def test_a_kept_spec_that_somebody_has_altered_is_not_followed() -> None:
    world = begun()
    good = dict(memory(world)["good"])
    evil = {**json.loads(good["spec"]), "pipeline": {"module": "evil"}}
    for change in ({"spec": json.dumps(evil)}, {"generation": 7}, {"seal": "0" * 16}):
        world.api.set_status(JOBS, "nbq5", memory={**memory(world), "good": {**good, **change}})
        document = world.api.objects[JOBS, "nbq5"]
        bad = {**document, "spec": {**document["spec"], "workers": "many"}}
        assert effective_spec.in_force(bad, RELEASE).job is None
        assert effective_spec.in_force({**bad, "metadata": {**bad["metadata"], "uid": "x"}}, RELEASE).job is None


def test_a_kept_spec_is_bound_to_its_object() -> None:
    world = begun()
    document = world.api.objects[JOBS, "nbq5"]
    other = {**document, "metadata": {**document["metadata"], "uid": "another"}}
    assert JobMemory.of(other) == JobMemory(uid="another")
    forged = {**other, "status": {"memory": {**memory(world), "uid": "another"}}}
    assert JobMemory.of(forged).good is not None
    assert not effective_spec.in_force(forged, RELEASE).good, "its seal is that of the other one"


@pytest.mark.parametrize(
    "nonsense",
    [{"run": -5}, {"over": 1}, {"run": 10**400}, {"run": "3"}, {"over": "no"}, {"good": 7}, {"good": {}}, 7],
)
def test_a_memory_that_makes_no_sense_is_said_and_nothing_is_done(nonsense: Any) -> None:
    """No user can write it, and the schema refuses it: whoever did has the rights of an operator."""
    world = begun()
    pods, kept = world.pods(), memory(world)
    world.api.set_status(JOBS, "nbq5", memory={**kept, **nonsense} if isinstance(nonsense, dict) else nonsense)
    edit(world, workers=3)
    world.rounds(10)
    assert world.pods() == pods and world.condition("Degraded")["reason"] == "MemoryUnreadable"
    assert "status.memory" in world.condition("Degraded")["message"]
    world.api.set_status(JOBS, "nbq5", memory=kept)
    world.until(lambda w: settled(w) and w.status["workers"] == 3)


def test_a_spec_that_was_good_and_is_not_allowed_any_more_makes_no_pods() -> None:
    kept = spec.check({**MANIFEST, "spec": {**MANIFEST["spec"], "kubernetes": {"network": "host"}}})
    before = replace(RELEASE, allow=Allowed(host_network=True))
    document = {**MANIFEST, "metadata": {**MANIFEST["metadata"], "uid": "u", "namespace": "jobs"}}
    good = effective_spec.last_good(kept, "u", 1, before)
    document["status"] = {"memory": {"uid": "u", "good": good.model_dump(mode="json", by_alias=True)}}
    now = effective_spec.in_force(document, RELEASE)
    assert now.newest and now.fallback is None, "the spec as it is is followed, and nothing comes back"
    bad = effective_spec.in_force({**document, "spec": {**document["spec"], "workers": "many"}}, RELEASE)
    assert bad.job is not None
    with pytest.raises(SpecRefused, match="host's network"):
        effective_spec.revisions(bad.job, "u", RELEASE)


def test_no_user_can_answer_for_the_operator() -> None:
    world = begun()
    asked = {names.CHECKPOINT: '{"id": "1"}', "ferry.dev/checkpoint-answered": '{"id": "1", "number": 9}'}
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": asked}})
    world.until(lambda w: len(w.checkpoints) == 1)


def test_a_definition_that_keeps_no_memory_is_said() -> None:
    """Helm upgrades no definition: until an administrator does, the operator begins nothing that it has to remember."""
    world = begun()
    status = {key: one for key, one in world.status.items() if key != "memory"}
    world.api._store(JOBS, {**world.api.objects[JOBS, "nbq5"], "status": status})
    world.begin_operator()
    pods, patch = world.pods(), world.api.patch

    def prunes(kind: Any, name: str, document: Doc, subresource: str = "") -> Doc:
        kept = {key: one for key, one in (document.get("status") or {}).items() if key != "memory"}
        return patch(kind, name, {**document, "status": kept} if kind == JOBS else document, subresource)

    world.api.patch = prunes  # type: ignore[method-assign]
    world.rounds(10)
    assert "streamjobs.ferry.dev.yaml" in world.condition("Degraded")["message"] and world.pods() == pods
    world.api.patch = patch  # type: ignore[method-assign]
    world.until(lambda w: settled(w) and w.condition("Degraded")["status"] == "False")
    assert memory(world)["run"] == 1 and events(world, "ApiRefused")
