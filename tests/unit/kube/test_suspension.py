"""A job is suspended, rests without pods, and goes on from its last checkpoint; and checkpoints that somebody asks for."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract import variables
from ferry.contract.status import ReportedProblem
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest, pending
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, JOURNALS
from ferry_operator.kube.observe.facts import Ended
from ferry_operator.kube.observe.lifecycle import lifecycle_of
from ferry_operator.kube.observe.suspension import Stage, asked, last_words, never_began, stage
from tests.unit.kube.fakes.fake_world import Killed, World, job, settled
from tests.unit.kube.test_decisions import driver, worker
from tests.unit.kube.test_passes import running

CHECKPOINTED = {"virtualNodes": 8, "checkpoint": {"location": "s3://bucket/ferry"}}


def begun(**spec: Any) -> World:
    world = running(state=CHECKPOINTED, **spec)
    world.until(lambda w: "good" in memory(w))
    return world


def memory(world: World) -> Doc:
    """What the operator keeps of the job."""
    return {key: one for key, one in (world.status.get("memory") or {}).items() if one is not None}


def driver_told(world: World, variable: str) -> Any:
    (main,) = world.pod("nbq5-driver")["spec"]["containers"]
    return next((one["value"] for one in main["env"] if one["name"] == variable), None)


def edit(world: World, **spec: Any) -> None:
    world.api.edit(JOBS, "nbq5", {"spec": spec})


def suspended(world: World) -> bool:
    return world.status.get("phase") == "Suspended"


def events(world: World, reason: str) -> list[str]:
    return [
        one["message"] for (kind, _), one in world.api.objects.items() if kind == EVENTS and one["reason"] == reason
    ]


# --- the way there and back


@pytest.mark.parametrize("wish", [{"suspend": True}, {"workers": 0}], ids=["suspend", "no workers"])
def test_a_job_rests_without_pods_and_goes_on_from_its_last_checkpoint(wish: Doc) -> None:
    world = begun(workers=3)
    run, epoch = world.status["run"], world.epoch
    edit(world, **wish)
    world.until(suspended)
    assert world.pods() == [] and world.epoch >= epoch
    assert (world.status["desired"], world.status["workers"]) == (0, 0)
    for kind, reason in (("Ready", "Suspended"), ("Progressing", "Suspended"), ("Handover", "Suspended")):
        assert (world.condition(kind)["status"], world.condition(kind)["reason"]) == ("False", reason)
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("ReplicasInSync")["status"] == "Unknown"
    assert events(world, "Suspended") == ["checkpoint 1; its pods are deleted, its checkpoints stay"]
    assert events(world, "NotReady") == []
    assert world.api.names(JOURNALS) == []
    kept = world.epoch
    world.rounds(20)
    assert world.pods() == [] and suspended(world)
    edit(world, suspend=False, workers=4)
    world.until(lambda w: settled(w) and w.status["workers"] == 4)
    assert len(world.runs) == 2 and list(world.runs.values()) == [None, "latest"]
    (journal,) = world.api.names(JOURNALS)
    assert journal.endswith("-2") and driver_told(world, variables.JOURNAL) == f"jobs/{journal}"
    assert driver_told(world, variables.BEGUN) is None, "a run that has not begun finds no journal, and begins"
    assert world.status["run"] != run and world.epoch > kept and world.lives == 2
    (said,) = events(world, "Restored")
    assert said.startswith("from latest; epoch ")


def test_a_driver_that_looks_what_the_job_has_done_takes_nothing_back() -> None:
    """Until then it says that no epoch is done, and neither the job begins nor is it restored by that."""
    world = begun()
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    told, epoch = events(world, "Restored"), world.status["epoch"]
    world.looks_back = 20
    for lives in (3, 4):
        world.driver_ends(1)
        world.until(lambda w: w.driver is not None and w.lives == lives)  # noqa: B023
        world.rounds(5)
        assert world.status["epoch"] >= epoch and world.status["progress"]["rows"] == 10
        assert driver_told(world, variables.BEGUN) == "yes"
    world.looks_back = 0
    world.until(lambda w: settled(w) and w.status["epoch"] > epoch)
    assert events(world, "Restored") == told


def test_a_job_is_suspended_again_and_again() -> None:
    world = begun()
    for _ in range(3):
        edit(world, suspend=True)
        world.until(suspended)
        edit(world, suspend=False)
        world.until(settled)
    assert list(world.runs.values()) == [None, "latest", "latest", "latest"] and len(set(world.runs)) == 4


def test_a_job_that_is_suspended_from_its_beginning_starts_nothing() -> None:
    world = World()
    world.api.create(JOBS, job(state=CHECKPOINTED, suspend=True, restoreFrom="7"))
    world.until(suspended)
    assert world.lives == 0 and memory(world)["run"] == 1
    world.take_checkpoint(None)
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == ["7"]


@pytest.mark.parametrize(
    ("first", "meanwhile", "expected"),
    [("7", "7", "latest"), ("7", "8", "8"), ("7", None, "latest"), ("7", "none", "none"), ("none", "none", "latest"), (None, "latest", "latest"), (None, "s3://x/1.json", "s3://x/1.json")],
)  # fmt: skip
def test_what_a_run_begins_from(first: str | None, meanwhile: str | None, expected: str) -> None:
    """What was meant for the run before is not meant for this one."""
    world = World()
    if first is not None:
        world.take_checkpoint(None)
    world.api.create(JOBS, job(state=CHECKPOINTED, restoreFrom=first))
    world.until(lambda w: "good" in memory(w))
    edit(world, suspend=True, restoreFrom=meanwhile)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == [first, expected]


def test_another_restore_from_is_refused_while_the_job_runs() -> None:
    """The rule of the API server says so before; one without it is told by the operator."""
    world = begun()
    edit(world, restoreFrom="7")
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    assert "suspend the job" in world.condition("Degraded")["message"]
    assert world.status["phase"] == "Degraded" and world.lives == 1


# --- on the way


def test_a_job_without_a_last_checkpoint_stays_and_says_so() -> None:
    world = begun()
    world.no_checkpoint = True
    world.problems = (ReportedProblem("CheckpointDelayed", "s3://bucket: no route to host", world.now),)
    edit(world, suspend=True)
    world.until(lambda w: w.condition("Progressing").get("reason") == "Suspending")
    world.rounds(60)
    assert world.driver is not None and world.driver.suspends == 1, "another request would begin another checkpoint"
    assert (
        len(world.pods()) == 3
        and world.status["phase"] == "Suspending"
        and world.condition("Ready")["status"] == "True"
    )
    assert "no route to host" in world.condition("Degraded")["message"]
    world.no_checkpoint, world.problems = False, ()
    world.until(suspended)
    assert world.pods() == []


def test_a_job_without_a_last_checkpoint_can_be_deleted() -> None:
    world = begun()
    world.no_checkpoint = True
    edit(world, suspend=True)
    world.rounds(10)
    world.api.objects[JOBS, "nbq5"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.until(lambda w: w.pods() == [])


def test_a_job_that_is_not_to_be_suspended_any_more_goes_on_as_it_is() -> None:
    world = begun()
    world.no_checkpoint = True
    edit(world, suspend=True)
    world.rounds(5)
    edit(world, suspend=False)
    world.no_checkpoint = False
    world.until(lambda w: w.lives == 2 and settled(w))
    assert len(world.runs) == 1, "the driver has ended, and the workers still have the state"


@pytest.mark.parametrize("args", [{"seed": 7}, {"depth": {"of": "maps"}}], ids=["fine", "wrong"])
def test_what_else_was_changed_holds_when_the_job_goes_on(args: Doc) -> None:
    """A spec that is wrong keeps nobody from suspending, and a driver that is lost on the way is the old one's."""
    world = begun(workers=3)
    world.no_checkpoint = True
    pods = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    edit(world, suspend=True, workers=1, kubernetes={"image": "ferry:2"}, pipeline={"args": args})
    world.rounds(30)
    assert {name: world.pod(name)["metadata"]["uid"] for name in world.pods()} == pods
    world.driver_ends(1, "it crashed")
    world.until(lambda w: w.lives == 2 and w.driver is not None and w.driver.suspends == 1)
    assert world.pod("nbq5-driver")["spec"]["containers"][0]["image"] == "ferry:1"
    world.no_checkpoint = False
    world.until(suspended)
    edit(world, suspend=False, pipeline={"args": None})
    world.until(lambda w: settled(w) and w.status["workers"] == 1)
    assert world.pod("nbq5-driver")["spec"]["containers"][0]["image"] == "ferry:2"


def test_a_driver_that_cannot_run_keeps_the_workers_and_says_so() -> None:
    world = begun()
    world.ends_with = (3, "StateUnavailable: nobody holds virtual node 3")
    world.driver_ends(*world.ends_with)
    edit(world, suspend=True)
    world.until(lambda w: any("no driver can take" in m for m in events(w, "CannotSuspend")))
    world.rounds(10)
    assert [name for name in world.pods() if "worker" in name] == ["nbq5-worker-0", "nbq5-worker-1"]
    assert world.condition("Ready")["status"] == "False"


def test_a_job_that_was_refused_before_it_began_is_suspended_at_once() -> None:
    """There is nothing to keep, and its question stays: it does not begin from a checkpoint that nobody has named."""
    world = World()
    world.take_checkpoint(None)
    world.api.create(JOBS, job(state=CHECKPOINTED))
    world.until(lambda w: w.condition("Degraded").get("reason") == "RestoreFromNeeded")
    edit(world, suspend=True)
    world.lingers = 5.0
    world.until(suspended, 20)
    assert world.pods() == [] and events(world, "CannotSuspend") == [] and world.lives == 0
    assert memory(world)["run"] == 1 and world.condition("Degraded")["status"] == "False"
    edit(world, suspend=False)
    world.until(lambda w: w.condition("Degraded").get("reason") == "RestoreFromNeeded")
    edit(world, suspend=True, restoreFrom="latest")
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == ["latest"]


def test_a_job_whose_driver_was_never_started_is_suspended_at_once() -> None:
    world = World()
    world.refuses_image = "ferry:1"
    world.api.create(JOBS, job(state=CHECKPOINTED))
    world.until(lambda w: "nbq5-driver" in w.pods())
    world.rounds(3)
    edit(world, suspend=True)
    world.until(suspended, 20)
    assert world.pods() == []


@pytest.mark.parametrize("known", [{names.EPOCH: "7"}, {names.FAILURES: "1"}, {}])
def test_a_driver_that_was_not_the_first_has_begun(known: dict[str, str]) -> None:
    refused = driver(
        Ended(2, "Error", "refused: x", 1.0), annotations={names.EPOCH: "-1", names.FAILURES: "0", **known}
    )
    assert never_began(refused, -1) == (not known) and not never_began(refused, 0)
    assert not never_began(driver(Ended(1, "Error", "", 1.0), annotations={names.EPOCH: "-1"}), None)


def test_an_operator_may_be_killed_at_any_step() -> None:
    """Whatever was done last, another one goes on; the pods go only after the driver has ended with its checkpoint."""
    for at in range(1, 200):
        if not suspended_and_resumed(at):
            return
    raise AssertionError("it never came to its end undisturbed")


def suspended_and_resumed(at: int) -> bool:
    """There and back, with an operator that is killed before or after the call of this number; whether there was one."""
    world, calls = begun(), 0

    def count(verb: str, kind: object, name: str) -> None:
        nonlocal calls
        assert verb != "delete" or world.checkpoints, "a pod went before the last checkpoint"
        if verb not in ("get", "list"):
            calls += 1
            if calls == at:
                raise Killed

    world.api.before = world.api.after = count
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == [None, "latest"], at
    return calls >= at


def test_a_paused_job_is_not_suspended() -> None:
    world = begun()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}})
    edit(world, suspend=True)
    world.rounds(20)
    assert len(world.pods()) == 3


def test_a_job_that_has_finished_stays_so() -> None:
    world = begun()
    world.driver_ends(0)
    world.until(lambda w: w.status["phase"] == "Finished")
    edit(world, suspend=True)
    world.rounds(20)
    assert world.status["phase"] == "Finished"


# --- stages


@pytest.mark.parametrize(
    ("spec", "kept", "pods", "epoch", "expected"),
    [
        ({}, JobMemory(), [], None, Stage.RUNS),
        ({"suspend": False, "workers": 2}, JobMemory(), [], 7, Stage.RUNS),
        ({"suspend": True}, JobMemory(), [driver()], None, Stage.GOING),
        ({"workers": 0}, JobMemory(), [worker(0)], 0, Stage.GOING),
        pytest.param(
            {"suspend": True}, JobMemory(), [], 7, Stage.GOING, id="all its pods were lost: they are made again"
        ),
        ({"suspend": True}, JobMemory(), [], None, Stage.SUSPENDED),
        ({"suspend": True}, JobMemory(), [], -1, Stage.SUSPENDED),
        pytest.param({}, JobMemory(over=True), [worker(0)], 7, Stage.OVER, id="a run that is over stays so"),
    ],
)
def test_stages(spec: Doc, kept: JobMemory, pods: list[Any], epoch: int | None, expected: Stage) -> None:
    assert stage({"spec": spec}, kept, pods, epoch) is expected
    assert asked({"spec": spec}) == (spec.get("suspend", False) or spec.get("workers") == 0)


def test_runs_have_names_of_their_own() -> None:
    uid = "0a1b2c3d-1111-2222-3333-444455556666"
    found = [names.run_name("a" * 52, uid, number) for number in range(1, 300)]
    assert found[0].endswith("-0a1b2c3d") and len(set(found)) == len(found) and max(map(len, found)) <= 63


def test_a_driver_that_is_at_rest_has_not_crashed() -> None:
    """Should the job not be suspended any more, another one follows at once, however often one had crashed before."""
    ended = driver(Ended(6, "Error", "", 999.9), annotations={names.FAILURES: "5"})
    found = lifecycle_of(ended, "r", -1, False, 1000.0)
    assert (found.may_start, found.failures, found.problem, found.end) == (True, 0, None, None)


def test_last_words() -> None:
    ended = driver(Ended(6, "Error", "x\nsuspended: checkpoint 4 as of epoch 9\n", 1.0))
    assert last_words(ended) == "checkpoint 4 as of epoch 9"
    assert last_words(driver(Ended(6, "Error", "", 1.0))) == "the last checkpoint is complete"


# --- checkpoints


def ask(world: World, **request: Any) -> None:
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.CHECKPOINT: CheckpointRequest(**request).text()}}})


def test_a_checkpoint_is_asked_for_once_and_answered() -> None:
    world = begun()
    ask(world, id="1", name="before-upgrade")
    world.until(lambda w: (w.status.get("checkpoint") or {}).get("name") == "before-upgrade")
    world.round()
    assert memory(world)["answered"] == {"id": "1", "number": 1}
    assert {"number", "epoch", "at", "bytes", "totalBytes"} <= set(world.status["checkpoint"])
    world.rounds(20)
    assert len(world.checkpoints) == 1
    ask(world, id="2")
    world.until(lambda w: w.status["checkpoint"]["number"] == 2)
    assert "name" not in world.status["checkpoint"]
    (said,) = events(world, "CheckpointComplete")
    assert said.startswith("1 (before-upgrade), as of epoch ")


def test_what_the_driver_refuses_is_the_answer() -> None:
    world = begun()
    world.no_checkpoint = True
    ask(world, id="1")
    world.until(lambda w: "answered" in memory(w))
    assert "no location" in memory(world)["answered"]["refused"]
    world.no_checkpoint = False
    world.rounds(10)
    assert world.checkpoints == []


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"id": 7}', '{"id": ""}', '{"id": "1", "name": ""}'])
def test_what_asks_for_nothing(text: str) -> None:
    assert pending({names.CHECKPOINT: text}, None) is None
    assert pending({names.CHECKPOINT: '{"id": "1", "more": 2}'}, None) == CheckpointRequest("1")
