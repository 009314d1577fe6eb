"""The chart is upgraded under a job that an operator of an older release looked after, which kept what it knew in annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS, PODS, ApiError
from ferry_operator.kube.observe import legacy_memory as older
from tests.unit.kube.fakes.fake_world import World, settled
from tests.unit.kube.test_memory import STAGES, second
from tests.unit.kube.test_suspension import begun, edit, events, memory, suspended


def annotate(world: World, **notes: Any) -> None:
    texts = {getattr(older, name): None if one is None else json.dumps(one) for name, one in notes.items()}
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": texts}})


def upgraded(world: World, **notes: Any) -> None:
    """All is as the older release has left it, and another operator begins."""
    kept, job = memory(world), world.api.objects[JOBS, "nbq5"]
    status = {key: one for key, one in job["status"].items() if key != "memory"}
    world.api._store(JOBS, {**job, "status": status})
    run = {"number": kept["run"], "over": kept["over"], "before": kept.get("before")}
    annotate(world, **{"RUN": run, "LAST_GOOD": json.loads(kept["good"]["spec"]) if "good" in kept else None, **notes})
    for name in world.pods():
        world.api.edit(PODS, name, {"metadata": {"annotations": {names.RUN: None}}})
    world.begin_operator()


@pytest.mark.parametrize("stripped", [False, True], ids=["with notes", "without notes"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_upgrade_at_any_stage_keeps_the_run_and_its_state(stage: Callable[[World], None], stripped: bool) -> None:
    world = begun()
    second(world)
    stage(world)
    upgraded(world, **({"RUN": None, "LAST_GOOD": None} if stripped else {}))
    world.rounds(3)
    world.no_checkpoint = False
    kept, runs = world.checkpoints[-1].epoch, dict(world.runs)
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert set(list(world.runs.values())[1:]) == {"latest"} and len(world.runs) == len(runs) + 1
    assert world.epoch >= kept and world.condition("Degraded")["status"] == "False"


def test_an_upgrade_restarts_nothing_and_a_crash_after_it_goes_on_with_the_same_run() -> None:
    world = begun()
    second(world)
    upgraded(world)
    pods, lives, runs, run = world.pods(), world.lives, dict(world.runs), world.status["run"]
    world.until(lambda w: "good" in memory(w))
    world.rounds(10)
    assert (world.pods(), world.lives, world.status["run"]) == (pods, lives, run)
    world.driver_ends(1)
    world.until(lambda w: w.lives == lives + 1 and settled(w))
    assert world.runs == runs and world.status["run"] == run


def test_a_restore_from_that_was_meant_for_the_first_run_is_not_followed_again() -> None:
    world = begun()
    edit(world, suspend=True, restoreFrom="1")
    world.until(suspended)
    edit(world, suspend=False)
    world.until(lambda w: settled(w) and "good" in memory(w))
    upgraded(world)
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == [None, "1", "latest"]


def test_the_last_good_spec_is_followed_while_the_newest_is_refused() -> None:
    world = begun()
    edit(world, pipeline={"module": "jobs.nbq5", "args": {"depth": {"of": "maps"}}}, workers=3)
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    pods, good = world.pods(), memory(world)["good"]["spec"]
    upgraded(world)
    world.rounds(10)
    assert world.pods() == pods and memory(world)["good"]["spec"] == good
    assert world.condition("Degraded")["reason"] == "SpecRefused"


def test_a_last_good_spec_that_the_api_server_refuses_is_not_followed() -> None:
    world = begun()
    edit(world, pipeline={"module": "jobs.nbq5", "args": {"depth": {"of": "maps"}}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    good = json.loads(memory(world)["good"]["spec"])

    def refuse(verb: str, kind: Any, name: str) -> None:
        if (verb, kind) == ("json_patch", JOBS):
            raise ApiError(403, "Forbidden", "a policy denies it")

    world.api.before = refuse
    upgraded(world, LAST_GOOD={**good, "workers": 4})
    world.rounds(10)
    assert "good" not in memory(world) and len(world.pods()) == 3


def test_a_last_good_spec_that_is_not_allowed_is_not_followed() -> None:
    world = begun()
    edit(world, pipeline={"module": "jobs.nbq5", "args": {"depth": {"of": "maps"}}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    good = json.loads(memory(world)["good"]["spec"])
    upgraded(world, LAST_GOOD={**good, "kubernetes": {**good["kubernetes"], "network": "host"}})
    world.rounds(10)
    assert "good" not in memory(world) and len(world.pods()) == 3


def test_notes_are_read_once() -> None:
    world = begun()
    second(world)
    upgraded(world)
    world.until(lambda w: memory(w).get("run") == 2)
    annotate(world, RUN={"number": 7, "over": True}, LAST_GOOD={"pipeline": {"module": "evil"}})
    world.rounds(10)
    assert memory(world)["run"] == 2 and settled(world) and "evil" not in memory(world)["good"]["spec"]


def test_notes_on_a_new_object_say_nothing() -> None:
    world = World()
    note = {"number": 1, "over": True, "before": None}
    metadata = {"name": "nbq5", "annotations": {older.RUN: json.dumps(note), older.LAST_GOOD: "{}"}}
    spec = {"pipeline": {"module": "jobs.nbq5"}, "workers": 2, "state": {"virtualNodes": 8}}
    world.api.create(
        JOBS, {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": metadata, "spec": spec}
    )
    world.until(settled)
    assert world.lives == 1 and memory(world)["run"] == 1 and not memory(world)["over"]


def test_an_answer_of_an_older_release_is_not_asked_for_again() -> None:
    world = begun()
    world.take_checkpoint("x")
    upgraded(world, ANSWERED={"id": "1", "number": 1, "refused": None})
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.CHECKPOINT: '{"id": "1", "name": "x"}'}}})
    world.rounds(10)
    assert len(world.checkpoints) == 1 and memory(world)["answered"]["number"] == 1


UID = "1234-5678"


def looked_after(number: int, **notes: Any) -> Doc:
    annotations = {getattr(older, name): one for name, one in notes.items()}
    metadata = {"name": "a", "uid": UID, "annotations": annotations}
    return {"metadata": metadata, "spec": {}, "status": {"run": names.run_name("a", UID, number)}}


@pytest.mark.parametrize(
    "note",
    ['{"number": 9}', '{"number": -5}', '{"number": 1e400}', '{"number": "3"}', "7", "[", "[" * 5000, '{"number": 3, "before": 7}', ""],
)  # fmt: skip
def test_a_note_that_the_status_does_not_bear_out_counts_for_nothing(note: str) -> None:
    found = older.legacy_memory(looked_after(3, RUN=note, ANSWERED=note, REFUSED=note))
    assert found is not None and found.memory == JobMemory(uid=UID, run=3)


def test_a_note_may_be_one_run_ahead_of_the_status() -> None:
    found = older.legacy_memory(looked_after(3, RUN='{"number": 4, "over": false, "before": "7"}'))
    assert found is not None and (found.memory.run, found.memory.before) == (4, "7")


def test_what_was_refused_is_kept() -> None:
    found = older.legacy_memory(looked_after(1, REFUSED='["a-b", "it crashed"]'))
    assert found is not None and found.memory.refused is not None and found.memory.refused.why == "it crashed"


def test_a_status_of_another_object_says_nothing() -> None:
    assert older.legacy_memory({**looked_after(2), "metadata": {"name": "a", "uid": "another"}}) is None
    assert older.legacy_memory({**looked_after(2), "status": {"run": "a-x", "memory": {}}}) is None
    assert older.legacy_memory({"metadata": {"name": "a", "uid": UID}}) is None


def test_a_definition_that_keeps_no_memory_is_said() -> None:
    """Helm upgrades no definition: until somebody does, nothing is begun that has to be known again."""
    world = begun()
    upgraded(world)
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
