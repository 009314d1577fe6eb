"""When a changed spec counts as good, when it is refused and the last good one put back, and what is only waited for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.status import Status
from ferry_operator.job import spec
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import JOBS, NODES
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.facts import Pod, Problem
from ferry_operator.kube.observe.readiness import proven
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.view import look
from ferry_operator.kube.plan import blocking_problem, plan
from ferry_operator.kube.steps import RecordGoodSpec, RefuseSpec
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_decisions import NODES as ALL_NODES
from tests.unit.kube.test_decisions import NOW, RELEASE, document, driver, revise, status, worker
from tests.unit.kube.test_passes import running
from tests.unit.statuses import with_fields

GOOD = document()
CHANGED = {"pipeline": {"module": "jobs.changed"}, "cores": 3}
ROOM = Problem("Unschedulable", "0/3 nodes: no room")
IMAGE = Problem("ImagePull", "no such image")
SECRET = Problem("ContainerRefused", 'secret "x" not found')


def good(world: World) -> str:
    """The last good spec that is kept, as JSON; '': none is."""
    return str(((world.status.get("memory") or {}).get("good") or {}).get("spec", ""))


def kept(world: World) -> Any:
    text = good(world)
    return json.loads(text)["pipeline"]["module"] if text else None


# --- good


def test_a_spec_under_which_every_epoch_fails_is_taken_back() -> None:
    world = running()
    world.rounds(5)
    assert kept(world) == "jobs.nbq5"
    world.fails_epochs = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.lives == 2 and w.condition("Ready").get("status") == "True")
    world.rounds(2)
    assert kept(world) == "jobs.nbq5", "its driver is ready, and has finished nothing"
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    assert "a record says nonsense" in world.condition("Degraded")["message"]
    world.fails_epochs = False
    world.until(lambda w: w.condition("Ready").get("status") == "True")
    world.rounds(10)
    assert kept(world) == "jobs.nbq5" and world.condition("Degraded")["reason"] == "SpecRefused"


def test_a_refused_spec_is_tried_again_with_another_nonce() -> None:
    world = running()
    world.rounds(5)
    world.fails_epochs = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    assert "spec.restartNonce" in world.condition("Degraded")["message"]
    assert world.condition("SpecInForce")["status"] == "False"
    world.fails_epochs = False
    world.api.edit(JOBS, "nbq5", {"spec": {"restartNonce": 1}})
    world.until(lambda w: kept(w) == "jobs.changed" and settled(w))
    assert world.condition("SpecInForce")["status"] == "True"
    assert world.condition("Degraded")["status"] == "False"


def test_a_condition_names_the_generation_in_force() -> None:
    world = running()
    world.until(lambda w: w.condition("SpecInForce").get("reason") == "Proven")
    first = int(world.api.get(JOBS, "nbq5")["metadata"]["generation"])
    assert world.condition("SpecInForce")["message"] == f"generation {first} is in force"
    world.fails_epochs = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.rounds(2)
    now = world.condition("SpecInForce")
    assert (now["status"], now["reason"]) == ("True", "Unproven") and f"generation {first + 1} is in force" in now[
        "message"
    ]
    world.until(lambda w: w.condition("SpecInForce").get("status") == "False")
    refused = world.condition("SpecInForce")
    assert refused["reason"] == "SpecRefused" and refused["observedGeneration"] == first + 1
    assert refused["message"].startswith(f"generation {first} is in force, not generation {first + 1}: ")
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"args": {"depth": {"of": "maps"}}}}})
    world.until(lambda w: f"not generation {first + 2}" in w.condition("SpecInForce")["message"])


def test_without_any_valid_spec_the_condition_says_so() -> None:
    world = World()
    world.api.create(JOBS, job(pipeline={"module": "jobs.nbq5", "args": {"depth": {"of": "maps"}}}))
    world.rounds(3)
    none = world.condition("SpecInForce")
    assert none["status"] == "False" and none["message"].startswith("no spec is in force: generation 1: ")


def test_a_spec_of_which_the_status_holds_no_copy_is_refused_before_anything_is_written() -> None:
    long = {"module": "jobs.nbq5", "args": {"text": "x" * effective_spec.SPEC_MAX}}
    world = World()
    world.api.create(JOBS, job(pipeline=long))
    world.rounds(3)
    refused = world.condition("Degraded")
    assert refused["reason"] == "SpecRefused" and "at most 262,144 are allowed" in refused["message"]
    assert not world.pods() and not good(world)
    world = running()
    world.rounds(5)
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": long}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    assert kept(world) == "jobs.nbq5" and world.condition("Ready")["status"] == "True"
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"args": {"text": "x" * 200_000}}}})
    world.until(lambda w: "x" * 200_000 in good(w))


def test_a_good_spec_of_an_older_release_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running()
    world.rounds(5)
    monkeypatch.setattr(effective_spec, "SPEC_MAX", 10)
    world.begin_operator()
    world.rounds(5)
    assert world.condition("Degraded")["status"] == "False"


def stands_under_a_new_spec() -> World:
    """A job that makes no progress since its spec was changed; 40 s of it are allowed."""
    world = running(failure={"progressDeadline": "40s"})
    world.rounds(5)
    world.stands = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.lives == 2 and w.driver is not None)
    return world


def test_a_spec_that_makes_no_progress_is_taken_back_after_its_deadline() -> None:
    world = stands_under_a_new_spec()
    world.rounds(30)
    assert world.condition("Degraded").get("reason") != "SpecRefused"
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused", 40)
    assert "no progress for 40s" in world.condition("Degraded")["message"]
    assert "in phase ingest" in world.condition("Degraded")["message"]


def test_a_pause_is_no_time_without_progress() -> None:
    world = stands_under_a_new_spec()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}})
    world.rounds(100)
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: None}}})
    world.rounds(20)
    assert world.condition("Degraded").get("reason") != "SpecRefused"
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused", 40)


def test_a_spec_without_records_is_neither_good_nor_refused() -> None:
    world = running(failure={"progressDeadline": "40s"})
    world.rounds(5)
    world.no_records = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.lives == 2 and w.driver is not None)
    world.rounds(200)
    assert kept(world) == "jobs.nbq5" and world.condition("Degraded")["status"] == "False"
    world.no_records = False
    world.until(lambda w: kept(w) == "jobs.changed", 5)


def test_workers_that_were_made_since_the_last_epoch_prove_nothing() -> None:
    world = running()
    world.rounds(5)
    world.no_records = True
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"sidecar": {"memory": "2Gi"}}}})
    uids = {name: world.pod(name)["metadata"]["uid"] for name in ("nbq5-worker-0", "nbq5-worker-1")}
    world.until(lambda w: settled(w) and all(n in w.pods() and w.pod(n)["metadata"]["uid"] != uids[n] for n in uids))
    world.rounds(10)
    assert "2Gi" not in good(world) and world.lives == 1
    world.no_records = False
    world.until(lambda w: "2Gi" in good(w), 5)


REVISED = {names.REVISION: revise(spec.check(GOOD)).worker}
MINE = {**REVISED, names.EPOCH: "5"}
DRIVES = {names.REVISION: revise(spec.check(GOOD)).driver, names.EPOCH: "5"}


@pytest.mark.parametrize(
    ("said", "driver_notes", "worker_notes", "good"),
    [
        pytest.param({"epoch": 6, "began": 5}, DRIVES, MINE, True, id="an epoch of its own"),
        pytest.param({"epoch": 5, "began": 5}, DRIVES, MINE, False, id="none yet"),
        pytest.param({"epoch": 8, "began": 8}, DRIVES, MINE, False, id="the one before went further than was noted"),
        pytest.param({"epoch": 6}, DRIVES, MINE, True, id="a driver that does not say where it began: by the note"),
        pytest.param({"epoch": 5}, DRIVES, MINE, False, id="by the note, none yet"),
        pytest.param({"epoch": 6, "began": 5}, {names.REVISION: "old"}, MINE, False, id="a driver of another spec"),
        pytest.param({"epoch": 6, "began": 5}, DRIVES, {names.REVISION: "old"}, False, id="a worker of another spec"),
        pytest.param({"epoch": 9, "began": 5}, DRIVES, {**MINE, names.EPOCH: "9"}, False, id="a worker made since"),
        pytest.param({"epoch": 9, "began": 5}, DRIVES, REVISED, True, id="a worker without a note"),
        pytest.param({"epoch": 0, "began": -1}, {**DRIVES, names.EPOCH: "-1"}, {**MINE, names.EPOCH: "-1"}, True, id="first"),
        pytest.param({"epoch": 6, "began": 5, "phase": "ask"}, DRIVES, MINE, False, id="it recovers"),
    ],
)  # fmt: skip
def test_what_proves_a_spec(said: Any, driver_notes: Any, worker_notes: Any, good: bool) -> None:
    answer: Status = with_fields(status(0, 1), **said)
    workers = [worker(k, annotations=worker_notes) for k in (0, 1)]
    one = Seen(GOOD, (driver(annotations=driver_notes), *workers), ALL_NODES, 2, answer, None, NOW)
    effective = effective_spec.in_force(GOOD, RELEASE)
    view = look(one, effective, revise(effective.job), AbsenceTimers())
    assert proven(view) is good
    assert any(isinstance(step, RecordGoodSpec) for step in plan(view, 0)) is good


def test_a_change_that_makes_no_pod_anew_is_good_at_once() -> None:
    changed = document(GOOD, workers=3)
    pods = (driver(annotations=DRIVES), *(worker(k, annotations=MINE) for k in (0, 1)))
    one = Seen(changed, pods, ALL_NODES, 2, with_fields(status(0, 1), began=5), None, NOW)
    effective = effective_spec.in_force(changed, RELEASE)
    assert not effective.good and proven(look(one, effective, revise(effective.job), AbsenceTimers()))


# --- hopeless


@pytest.mark.parametrize(
    ("problems", "seconds", "deadline", "refused"),
    [
        pytest.param((ROOM,), 1e6, 900.0, None, id="no room: for ever"),
        pytest.param((IMAGE,), 299.0, 900.0, None, id="an image: for some minutes"),
        pytest.param((IMAGE,), 300.0, 900.0, IMAGE, id="an image that does not come"),
        pytest.param((IMAGE,), 40.0, 40.0, IMAGE, id="an image, and a short deadline"),
        pytest.param((SECRET,), 899.0, 900.0, None, id="something else"),
        pytest.param((SECRET,), 900.0, 900.0, SECRET, id="something else, until the deadline"),
        pytest.param((), 1e6, 900.0, None, id="nothing is wrong"),
    ],
)
def test_what_a_new_pod_is_given_up_for(problems: Any, seconds: float, deadline: float, refused: Any) -> None:
    pod: Pod = worker(0, phase="Pending", problems=problems, created=0.0, placed=NOW - seconds)
    assert blocking_problem(pod, NOW, deadline) is refused
    more = blocking_problem(pod, NOW, deadline, in_place=False)
    assert more is refused or (more is not None and more.reason == "DoesNotFit" and ROOM.message in more.message)
    assert blocking_problem(replace(pod, phase="Running"), NOW, deadline) is None


def test_a_driver_waits_for_a_node_and_runs_there() -> None:
    world = running(nodes=1)
    world.rounds(5)
    world.api.edit(NODES, "n0", {"spec": {"unschedulable": True}})  # the driver's new pod finds no node
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"driver": {"memory": "1Gi"}}}})
    world.until(lambda w: "nbq5-driver: 0/3 nodes: no room" in w.condition("Degraded").get("message", ""))
    for _ in range(60):
        world.round(60.0)
    assert "no room" in world.condition("Degraded")["message"], "reported, and never refused"
    world.api.edit(NODES, "n0", {"spec": {"unschedulable": False}})
    world.until(lambda w: settled(w) and w.condition("Degraded")["status"] == "False")
    requests = world.pod("nbq5-driver")["spec"]["containers"][0]["resources"]["requests"]
    assert requests["memory"] == "1Gi"


@pytest.mark.parametrize(
    ("more", "standing"),
    [
        pytest.param({}, True, id="nothing goes on"),
        pytest.param({"phase": "idle"}, False, id="no records"),
        pytest.param({"journal_up": False}, False, id="Redis is away"),
        pytest.param({"groups": [(["0.0"], ["1.0"])]}, False, id="state is on its way"),
    ],
)
def test_what_is_waited_for_is_no_standstill(more: Any, standing: bool) -> None:
    changed = document(GOOD, **CHANGED)
    mine = revise(spec.check(changed))
    notes = {names.REVISION: mine.worker}
    answer = with_fields(status(0, 1), **{"phase": "ingest", "began": 5, **more})
    pods = (driver(annotations={names.REVISION: mine.driver}), *(worker(k, annotations=notes) for k in (0, 1)))
    timers, effective = AbsenceTimers(), effective_spec.in_force(changed, RELEASE)
    seen = Seen(changed, pods, ALL_NODES, 2, answer, None, NOW)
    views = [look(replace(seen, now=NOW + t), effective, mine, timers) for t in (0.0, 899.0, 900.0)]
    assert [any(isinstance(step, RefuseSpec) for step in plan(view, 0)) for view in views] == [False, False, standing]
