"""Whole passes of the operator in a small world: a job comes, grows, shrinks, moves, is mended, ends."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from rich.console import Console

from ferry.contract.plans import Boundary
from ferry_operator.cli.remote import tables
from ferry_operator.control import plan_file
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.size import Size
from ferry_operator.job.status import JobStatus
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import BUDGETS, EVENTS, JOBS, NODES, PODS, SECRETS, ApiError, Kind
from ferry_operator.kube.report.status import duration
from tests.unit.kube.fakes.fake_world import FakeDriver, FakeLink, World, job, settled, writes
from tests.unit.statuses import with_fields


def running(nodes: int = 3, **spec: Any) -> World:
    world = World(nodes)
    world.api.create(JOBS, job(**spec))
    world.until(settled)
    return world


def test_a_job_comes_up() -> None:
    world = running()
    assert world.pods() == ["nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"]
    assert world.api.names(SECRETS) == ["nbq5-run"] and world.api.names(BUDGETS) == ["nbq5-workers"]
    assert world.status["phase"] == "Running" and world.status["workers"] == 2 and world.status["desired"] == 2
    assert world.condition("ReplicasInSync")["status"] == "True"
    assert {one["observedGeneration"] for one in world.status["conditions"]} == {1}


def test_what_the_status_says_in_words_it_says_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    world, truth = running(), FakeDriver.status
    behind = {"watermark": int(world.now - 4321.5) * 1000, "replica_lag": 3}
    monkeypatch.setattr(FakeDriver, "status", lambda driver: with_fields(truth(driver), **behind))
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    world.until(lambda w: "lagSeconds" in w.status["progress"])
    progress, took = world.status["progress"], world.status["lastHandoverSeconds"]
    assert world.status["lastHandover"] == f"{took:.1f}s" and took > 0
    assert progress["lag"] == duration(progress["lagSeconds"]) and progress["lagSeconds"] > 4321
    assert progress["state"] == f"{progress['stateBytes']}" and progress["stateBytes"] > 0
    assert progress["replicaLag"] == f"{progress['replicaLagEpochs']} epochs" == "3 epochs"
    old = {**world.status, "lastHandoverSeconds": "3.4s"}
    assert JobStatus.read(old).last_handover == world.status["lastHandover"], "of a version that writes other numbers"


def test_nothing_is_written_when_nothing_changes() -> None:
    world = running()
    world.rounds(5)
    before = writes(world, PODS) + writes(world, SECRETS) + writes(world, EVENTS) + writes(world, BUDGETS)
    for _ in range(10):
        world.api.edit(JOBS, "nbq5", {"spec": job()["spec"]})
        world.rounds(5)
    after = writes(world, PODS) + writes(world, SECRETS) + writes(world, EVENTS) + writes(world, BUDGETS)
    assert after == before


def test_what_is_intended_is_in_the_status_before_it_is_done() -> None:
    world = running()
    found: list[str] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if verb == "create" and kind == PODS:
            found.append(str(world.status.get("intended")))

    world.api.before = watch
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    assert found == ["start worker 2"] and "intended" not in world.status


def test_counters_alone_are_written_rarely() -> None:
    world = running()
    before = writes(world)
    world.rounds(60)
    assert writes(world) - before <= 12


def test_it_grows_and_shrinks_and_the_driver_stays() -> None:
    world = running()
    uid = world.pod("nbq5-driver")["metadata"]["uid"]
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: settled(w) and w.status["workers"] == 4)
    assert world.used() == [0, 1, 2, 3]
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 2}})
    gone: list[tuple[str, list[int]]] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if verb == "delete":
            gone.append((name, world.used()))

    world.api.before = watch
    world.until(lambda w: settled(w) and len(w.pods()) == 3)
    assert world.pod("nbq5-driver")["metadata"]["uid"] == uid and world.lives == 1
    assert sorted(name for name, _ in gone) == ["nbq5-worker-2", "nbq5-worker-3"]
    assert all(used == [0, 1] for _, used in gone), "a pod was deleted that held something"


def test_the_end_of_a_handover_is_told_although_the_driver_was_silent_then(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running()
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: w.condition("Handover")["reason"] == "Moving")
    since = world.condition("Handover")["lastTransitionTime"]
    with monkeypatch.context() as patch:
        patch.setattr(FakeLink, "status", lambda *_: None)
        world.until(lambda w: w.condition("Handover")["reason"] == "NoDriver")
        assert (world.condition("Handover")["status"], world.condition("Ready")["status"]) == ("True", "False")
        world.rounds(10)
        assert world.used() == [0, 1, 2, 3]
    world.until(settled)
    assert world.condition("Handover")["lastTransitionTime"] > since
    said = [one["reason"] for one in world.api.find(EVENTS) if one["reason"].startswith("Handover")]
    assert sorted(said)[-2:] == ["HandoverFinished", "HandoverStarted"] and said.count("HandoverStarted") == 1


def test_a_cordoned_node_is_emptied_before_its_pod_goes() -> None:
    world = running()
    node = world.pod("nbq5-worker-1")["spec"]["nodeName"]
    world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    held: list[list[int]] = []
    copies: list[int] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if verb == "delete" and name == "nbq5-worker-1":
            held.append(world.used())
        if world.driver is not None:
            copies.append(min(len(group) for group in world.driver.groups))

    world.api.before = watch
    world.until(lambda w: settled(w) and w.pods() == ["nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"]
                and w.pod("nbq5-worker-1")["spec"].get("nodeName") not in (None, node))  # fmt: skip
    assert held == [[0, 2]], "it was emptied first, and another one stood in"
    assert min(copies) == 2, "there was never a copy too few"
    assert world.used() == [0, 1]


def test_nothing_is_drained_when_every_node_is_cordoned() -> None:
    world = running()
    for node in ("n0", "n1", "n2"):
        world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    before = writes(world, PODS)
    world.rounds(30)
    assert writes(world, PODS) == before and world.condition("Ready")["status"] == "True"


def test_a_lost_node_is_given_up_and_its_worker_made_elsewhere() -> None:
    world = running()
    node = world.pod("nbq5-worker-1")["spec"]["nodeName"]
    world.node_falls_silent(node)
    world.rounds(4)
    assert world.pod("nbq5-worker-1")["spec"]["nodeName"] == node, "it is given some time"
    world.until(lambda w: settled(w) and w.pod("nbq5-worker-1")["spec"].get("nodeName") not in (None, node))
    assert world.used() == [0, 1]


def test_a_worker_that_the_driver_hears_is_never_given_up() -> None:
    world = running()
    node = world.pod("nbq5-worker-1")["spec"]["nodeName"]
    uid = world.pod("nbq5-worker-1")["metadata"]["uid"]
    no = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-12T13:46:41Z"}
    world.api.set_status(NODES, node, conditions=[no])  # cut off from the control plane only
    world.rounds(100)
    assert world.pod("nbq5-worker-1")["metadata"]["uid"] == uid


def test_a_lost_driver_comes_back_elsewhere_and_goes_on() -> None:
    world = running()
    node = world.pod("nbq5-driver")["spec"]["nodeName"]
    workers = [world.pod(f"nbq5-worker-{k}")["metadata"]["uid"] for k in (0, 1)]
    world.silent.append(node)
    world.driver = None
    no = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-12T13:46:41Z"}
    world.api.set_status(NODES, node, conditions=[no])
    world.silent.remove(node)  # its worker goes on: only the driver is silent
    world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    world.until(lambda w: w.lives == 2)
    assert world.pod("nbq5-driver")["spec"]["nodeName"] != node
    assert workers[0] in [world.pod(f"nbq5-worker-{k}")["metadata"]["uid"] for k in (0, 1)]


def test_a_finished_job_stays_finished() -> None:
    world = running()
    world.driver_ends(0)
    world.until(lambda w: w.pods() == ["nbq5-driver"])
    assert world.status["phase"] == "Finished"
    world.begin_operator()
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.api.remove(PODS, "nbq5-driver")
    world.rounds(20)
    assert world.pods() == [] and world.status["phase"] == "Finished"


def test_a_refused_job_says_why_and_is_tried_again_when_it_changes() -> None:
    world = World()
    world.ends_with = (2, "2026 INFO hello\nrefused: there is no module 'jobs.nbq5'\n")
    world.api.create(JOBS, job())
    world.until(lambda w: w.status.get("phase") == "Failed")
    assert world.condition("Ready") | {"lastTransitionTime": "", "observedGeneration": 0} == {
        "type": "Ready", "status": "False", "reason": "Failed", "message":
        "refused: there is no module 'jobs.nbq5'; another spec.restartNonce starts the driver again",
        "lastTransitionTime": "", "observedGeneration": 0,
    }  # fmt: skip
    assert world.condition("Degraded")["reason"] == "DriverRefused"
    world.ends_with = None
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"module": "jobs.other"}}})
    world.until(settled)


def test_a_crash_is_followed_by_a_new_driver_and_many_by_longer_waits() -> None:
    world = running()
    world.driver_ends(1, "boom")
    world.until(lambda w: w.lives == 2)
    world.ends_with = (1, "boom")
    world.driver_ends(1, "boom")
    made = 0

    def watch(verb: str, kind: object, name: str) -> None:
        nonlocal made
        made += verb == "create" and kind == PODS

    world.api.before = watch
    world.rounds(200)
    assert 6 <= made <= 14, "0.2 s, doubled each time, at most a minute"
    assert world.condition("Degraded")["reason"] == "DriverCrashes" and "boom" in world.condition("Degraded")["message"]
    world.ends_with = None
    world.until(settled)


def test_an_impossible_spec_leaves_the_last_good_one_in_force() -> None:
    world = running()
    world.rounds(5)
    before = writes(world, PODS)
    world.api.edit(JOBS, "nbq5", {"spec": {"epoch": {"interval": "soon"}, "workers": 3}})
    world.rounds(10)
    assert writes(world, PODS) == before and world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["reason"] == "SpecRefused"
    assert "spec.epoch.interval" in world.condition("Degraded")["message"]
    assert world.status["observedGeneration"] == 2 and world.status["desired"] == 2


def test_a_spec_that_the_driver_refuses_is_taken_back() -> None:
    world = running()
    world.rounds(5)
    world.ends_with = (2, "refused: there is no module 'jobs.gone'")
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"module": "jobs.gone"}, "cores": 3}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "SpecRefused")
    world.ends_with = None
    world.until(lambda w: w.lives == 2 and w.condition("Ready")["status"] == "True")
    assert "jobs.gone" in world.condition("Degraded")["message"]
    world.rounds(20)
    assert world.lives == 2, "it is not tried again and again"


def test_a_restart_nonce_restarts_the_driver_and_nothing_else() -> None:
    world = running()
    world.rounds(5)
    uids = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    world.api.edit(JOBS, "nbq5", {"spec": {"restartNonce": 1}})
    world.until(lambda w: w.lives == 2 and settled(w))
    now = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    assert [name for name in uids if uids[name] != now[name]] == ["nbq5-driver"]


def test_a_new_version_is_shown_and_restarts_nothing() -> None:
    world = running(pipeline={"module": "jobs.nbq5", "version": "1"})
    world.rounds(5)
    kinds = (PODS, SECRETS, EVENTS, BUDGETS)
    before = [writes(world, kind) for kind in kinds]
    assert world.status["version"] == "1"
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"version": "2"}}})
    world.rounds(20)
    assert world.status["version"] == "2" and settled(world)
    assert [writes(world, kind) for kind in kinds] == before and world.lives == 1


def test_the_version_is_that_of_the_spec_in_force() -> None:
    world = running(pipeline={"module": "jobs.nbq5", "version": "1"})
    world.rounds(5)
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"version": "2"}, "epoch": {"interval": "soon"}}})
    world.rounds(5)
    assert world.condition("Degraded")["reason"] == "SpecRefused" and world.status["version"] == "1"
    world.ends_with = (2, "refused: there is no module 'jobs.gone'")
    gone = {"pipeline": {"module": "jobs.gone", "version": "3"}, "cores": 3, "epoch": {"interval": None}}
    world.api.edit(JOBS, "nbq5", {"spec": gone})
    world.until(lambda w: w.status["version"] == "3")
    world.until(lambda w: "jobs.gone" in w.condition("Degraded").get("message", "") and w.status["version"] == "1")


def test_a_job_without_a_version_is_shown_with_a_digest_of_its_program() -> None:
    world = running()
    world.rounds(5)
    first = world.status["version"]
    assert re.fullmatch("[0-9a-f]{12}", first)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    assert world.status["version"] == first
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"image": "ferry:2"}}})
    world.until(lambda w: w.status["version"] != first)


def test_the_command_shows_the_version() -> None:
    world = running(pipeline={"module": "jobs.nbq5", "version": "green-7"})
    console = Console(width=200)
    with console.capture() as capture:
        console.print(tables.job_table(tables.described("here", world.api.objects[JOBS, "nbq5"], [], [], [])))
    assert ["version", "green-7"] in [line.split() for line in capture.get().splitlines()]


@pytest.mark.parametrize("capacity", [pytest.param(2, id="room for one more"), pytest.param(1, id="no room")])
def test_a_new_image_comes_worker_by_worker_and_nothing_is_lost(capacity: int) -> None:
    world = World(nodes=3, capacity=capacity)
    world.api.create(JOBS, job(workers=3))
    world.until(settled)
    world.rounds(5)
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"image": "ferry:2"}}})
    deleted: list[tuple[str, list[int]]] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if verb == "delete" and world.driver is not None:
            deleted.append((name, world.used()))

    world.api.before = watch
    images = lambda w: {w.pod(n)["spec"]["containers"][0]["image"] for n in w.pods()}  # noqa: E731
    world.until(lambda w: settled(w) and images(w) == {"ferry:2"} and len(w.pods()) == 4, 400)
    assert world.lives == 2
    for name, used in deleted:
        assert name == "nbq5-driver" or int(name.rsplit("-", 1)[1]) not in used, (name, used)


def test_settings_of_sidecars_are_in_place_before_the_first_one_reads_them() -> None:
    world = running()
    world.rounds(5)
    order: list[str] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if (verb, kind) == ("json_patch", SECRETS) or (verb == "create" and kind == PODS):
            order.append(name)

    world.api.before = watch
    world.api.edit(JOBS, "nbq5", {"spec": {"state": {"memory": "2Gi"}}})
    world.until(lambda w: settled(w) and order.count("nbq5-worker-1") == 1)
    assert order[0] == "nbq5-run" and order.count("nbq5-run") == 1 and world.lives == 1


def test_an_image_that_is_not_there_stops_at_the_first_worker() -> None:
    world = running()
    world.rounds(5)
    world.refuses_image = "ferry:nowhere"
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"image": "ferry:nowhere"}}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "ImagePull")
    assert world.condition("Ready")["status"] == "True" and world.lives == 1
    world.rounds(250)
    assert world.condition("Degraded")["reason"] == "ImagePull", "a registry may be away for some minutes"
    world.until(lambda w: w.condition("Degraded")["reason"] == "SpecRefused", 80)
    world.rounds(30)
    assert world.pods() == ["nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"] and world.used() == [0, 1]


def test_room_for_a_worker_is_missing_and_the_others_go_on() -> None:
    world = running(nodes=1)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "Unschedulable", 20)
    assert world.condition("Ready")["status"] == "True" and world.used() == [0, 1]
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 2}})
    world.until(lambda w: settled(w) and len(w.pods()) == 3)


def test_a_problem_that_lasts_hides_no_other_one_of_the_same_reason_from_the_events() -> None:
    world = running(nodes=1)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: unschedulable(w) == {"nbq5-worker-2"}, 20)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: unschedulable(w) == {"nbq5-worker-2", "nbq5-worker-3"}, 20)
    told = writes(world, EVENTS)
    world.rounds(30)
    assert writes(world, EVENTS) == told, "once each"


def unschedulable(world: World) -> set[str]:
    """Pods that events call so."""
    events = [event for (kind, _), event in world.api.objects.items() if kind == EVENTS]
    return {event["message"].split(":")[0] for event in events if event["reason"] == "Unschedulable"}


def test_a_pod_of_somebody_else_is_in_the_way_and_is_left_alone() -> None:
    world = World()
    foreign = {"metadata": {"name": "nbq5-driver", "labels": {}}, "spec": {"nodeName": "n0"}}
    world.api.create(PODS, foreign)
    world.api.set_status(PODS, "nbq5-driver", phase="Running")
    world.api.create(JOBS, job())
    world.until(lambda w: w.condition("Degraded").get("reason") == "ApiRefused", 20)
    assert "nbq5-driver exists and does not belong to this job" in world.condition("Degraded")["message"]
    world.api.remove(PODS, "nbq5-driver")
    world.until(settled)


def test_what_is_left_of_a_job_of_the_same_name_is_not_taken_for_its_own() -> None:
    world = running()
    world.driver_ends(0)
    world.until(lambda w: w.status.get("phase") == "Finished")
    del world.api.objects[JOBS, "nbq5"]  # the garbage collector has not come round yet
    world.api.create(JOBS, job())
    world.rounds(5)
    assert world.status["phase"] != "Finished" and world.condition("Degraded")["reason"] == "ApiRefused"
    for kind, name in ((PODS, "nbq5-driver"), (SECRETS, "nbq5-run"), (BUDGETS, "nbq5-workers")):
        world.api.remove(kind, name)
    world.until(lambda w: w.status["phase"] == "Running")


@pytest.mark.parametrize(("kind", "name"), [(SECRETS, "nbq5-run"), (BUDGETS, "nbq5-workers")])
def test_a_secret_or_a_budget_of_somebody_else_is_never_written_over(kind: Kind, name: str) -> None:
    world = World()
    theirs = {"metadata": {"name": name, "labels": {}}, "data": {"password": "x"}}
    world.api.create(kind, theirs)
    world.api.create(JOBS, job())
    world.until(lambda w: w.condition("Degraded").get("reason") == "ApiRefused", 20)
    assert f"{kind.kind} {name} exists and does not belong to this job" in world.condition("Degraded")["message"]
    assert world.api.objects[kind, name]["data"] == {"password": "x"}
    world.rounds(5)
    world.look()
    assert world.operator.reconcile("nbq5") == 5.0, "it is not asked for again and again"
    if kind == SECRETS:
        assert world.pods() == [], "what is started reads the settings"
    world.api.remove(kind, name)
    world.until(lambda w: settled(w) and name in w.api.names(kind))
    assert world.api.objects[kind, name]["metadata"]["ownerReferences"]


def test_settings_of_a_running_job_are_not_written_until_a_pod_is_made() -> None:
    world = running()
    world.rounds(5)
    for name in world.pods():  # as another version of the operator has left them
        world.api.edit(PODS, name, {"metadata": {"annotations": {names.SETTINGS: "of another version"}}})
    before = writes(world, SECRETS)
    world.rounds(20)
    assert writes(world, SECRETS) == before and world.lives == 1
    order: list[tuple[str, str]] = []
    world.api.before = lambda verb, kind, name: order.append((verb, name)) if kind in (SECRETS, PODS) else None
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    made = order.index(("create", "nbq5-worker-2"))
    assert order.count(("json_patch", "nbq5-run")) == 1 and order.index(("json_patch", "nbq5-run")) < made


def test_steps_that_change_nothing_are_taken_less_and_less_often() -> None:
    world = running()
    world.api.before = lambda verb, kind, name: None
    pod = world.pod("nbq5-worker-1")

    def forget(verb: str, kind: Kind, name: str) -> None:
        """The API server says yes, and the note is not there at the next look."""
        if (verb, kind) == ("patch", PODS):
            world.api.edit(PODS, name, {"metadata": {"annotations": {names.TOKEN: "0"}}})

    world.api.edit(PODS, "nbq5-worker-1", {"metadata": {"annotations": {names.TOKEN: "0"}}})
    world.api.after = forget
    waits = []
    for _ in range(8):
        world.look()
        waits.append(world.operator.reconcile("nbq5"))
    assert pod["metadata"]["name"] == "nbq5-worker-1"
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_an_evicted_worker_is_made_again_and_one_that_is_always_evicted_waits_longer() -> None:
    world = running()

    def evict() -> None:
        ended = {"phase": "Failed", "reason": "Evicted", "conditions": [], "containerStatuses": []}
        world.api.set_status(PODS, "nbq5-worker-1", **ended)

    world.rounds(100)
    evict()
    world.until(settled)
    assert world.pod("nbq5-worker-1")["metadata"]["annotations"][names.FAILURES] == "0"
    lives = []
    for _ in range(60):
        world.round()
        if world.pod("nbq5-worker-1")["status"]["phase"] == "Running":
            lives.append(world.pod("nbq5-worker-1")["metadata"]["uid"])
            evict()
    assert 10 < len(set(lives)) < 25, "at last it waits for 5 s"
    world.until(settled)


def test_a_paused_job_is_left_alone() -> None:
    world = running()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}, "spec": {"workers": 4}})
    world.api.remove(PODS, "nbq5-worker-1")
    world.rounds(20)
    assert world.pods() == ["nbq5-driver", "nbq5-worker-0"]
    assert world.condition("Progressing")["reason"] == "Paused"
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: None}}})
    world.until(lambda w: settled(w) and w.status["workers"] == 4)


def test_a_user_drains_a_worker_and_moves_a_virtual_node() -> None:
    world = running()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: "1"}}})
    world.until(lambda w: settled(w) and w.used() == [0])
    assert "nbq5-worker-1" in world.pods()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: None, names.PINS: "3=1.0"}}})
    world.until(lambda w: settled(w) and w.driver is not None and w.driver.groups[3][0] == "1.0")


def test_a_move_tells_of_windows_that_it_waits_for_or_why_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world, said = running(), dict[str, Any]()
    truth = FakeDriver.status
    monkeypatch.setattr(FakeDriver, "status", lambda driver: with_fields(truth(driver), **said))
    said.update(unbounded="operator n has no window", boundaries=(Boundary(3, "0.0", "1.0", None),))
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PINS: "3=1.0@window"}}, "spec": {"workers": 4}})
    world.until(lambda w: w.condition("Handover")["reason"] == "Moving")
    text = world.condition("Handover")["message"]
    assert (
        "1 of them until their windows have ended; pinned ones move with their state: operator n has no window" in text
    )
    said.clear()
    world.until(settled)
    assert "window" not in world.condition("Handover").get("message", "")


def test_what_copies_may_use_changes_without_another_pod() -> None:
    world = running()
    world.until(lambda w: w.driver is not None and w.driver.bandwidth == 0)
    pods = {pod: world.pod(pod)["metadata"]["uid"] for pod in world.pods()}
    world.api.edit(JOBS, "nbq5", {"spec": {"handover": {"bandwidth": "1Mi"}}})
    world.until(lambda w: w.driver is not None and w.driver.bandwidth == 1 << 20)
    world.rounds(10)
    assert {pod: world.pod(pod)["metadata"]["uid"] for pod in world.pods()} == pods


@pytest.mark.parametrize(("listed", "level"), [(True, logging.WARNING), (False, logging.INFO)])
def test_an_event_that_is_refused_is_worth_a_warning_unless_all_rights_are_gone(
    listed: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = running()

    def refuse(verb: str, kind: Kind, name: str) -> None:
        if (verb, kind) == ("create", EVENTS) or ((verb, kind) == ("list", JOBS) and not listed):
            raise ApiError(403, "Forbidden", 'RBAC: role "operator" not found')

    world.api.before = refuse
    with caplog.at_level(logging.INFO, "ferry.operator"):
        world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
        world.rounds(10)
    said = [record.levelno for record in caplog.records if "was not written" in record.getMessage()]
    assert said and set(said) == {level}


def test_what_is_left_of_a_deleted_job_goes_also_from_a_silent_node() -> None:
    world = running()
    world.node_falls_silent(world.pod("nbq5-worker-1")["spec"]["nodeName"])
    world.api.remove(JOBS, "nbq5")
    world.rounds(45)
    assert [key for key in world.api.objects if key[0] in (PODS, SECRETS, BUDGETS, JOBS)] == []


def test_a_deposed_operator_misses_with_its_deletions() -> None:
    world = running()
    world.look()
    old = world.store.pods("nbq5")[1]
    world.begin_operator()
    world.round()
    assert int(world.pod(old.name)["metadata"]["annotations"][names.TOKEN]) == world.token
    with pytest.raises(Exception, match="has changed"):
        world.api.delete(PODS, old.name, old.uid, old.version)


def test_a_deletion_that_comes_late_misses_a_pod_that_another_operator_took_over() -> None:
    world = running(workers=3)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 2}})
    tries: list[bool] = []

    def watch(verb: str, kind: object, name: str) -> None:
        if verb == "delete" and name == "nbq5-worker-2" and not tries:
            world.api.edit(PODS, name, {"metadata": {"annotations": {names.TOKEN: "99"}}})
            tries.append(True)

    def after(verb: str, kind: object, name: str) -> None:
        assert verb != "delete", "the first one must miss"

    world.api.before, world.api.after = watch, after
    world.until(lambda w: bool(tries))
    assert "nbq5-worker-2" in world.pods()


def test_what_was_asked_of_another_size_is_forgotten() -> None:
    """Whoever has changed it, kubectl scale or an autoscaler: a drained worker or a plan must not come back with the size."""
    world = World()
    world.api.create(JOBS, job(workers=4, state={"virtualNodes": 16}))
    world.until(settled)
    here = Size(4, 1)
    placements = [["2.0", "3.0"], ["3.0", "2.0"]] * 8
    one = PlanFile.model_validate(
        {
            "job": "nbq5", "size": here, "before": here, "usable": [f"{k}.0" for k in range(4)],
            "replicas": 1, "placements": placements,
        }
    )  # fmt: skip
    asked = {names.PLAN: plan_file.packed(one), names.DRAIN: "0,3"}
    world.api.patch(JOBS, "nbq5", {"metadata": {"annotations": asked}})

    def annotations() -> dict[str, str]:
        return world.api.objects[JOBS, "nbq5"]["metadata"]["annotations"]  # type: ignore[no-any-return]

    world.rounds(20)
    assert annotations().items() >= asked.items(), "they are for this one"
    world.api.patch(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: names.PLAN not in annotations() and annotations().get(names.DRAIN) == "0")
    told = [e["message"] for (kind, _), e in world.api.objects.items() if kind == EVENTS and e["reason"] == "Forgotten"]
    assert told == ["the size of the job has changed: remove the plan and drains of workers for the old size"]
    world.api.patch(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: settled(w) and w.used() == [1, 2, 3])
