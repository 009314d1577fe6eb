"""The pure decisions that only a cluster needs: the driver's life, the spec in force, workers that leave, lost pods."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.names import InstanceId
from ferry.contract.status import Status
from ferry_operator.control import decide as d
from ferry_operator.control.observed import Basis
from ferry_operator.job import spec
from ferry_operator.job.status import GoodSpec, JobMemory, RefusedSpec
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.effective_spec import Revisions
from ferry_operator.kube.observe.facts import Ended, KubeNode, Pod, Problem
from ferry_operator.kube.observe.lifecycle import end_message, lifecycle_of
from ferry_operator.kube.observe.rolling import (
    RollingReplacement,
    plan_replacement,
    worker_pods,
)
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.view import failure_domain, look
from ferry_operator.kube.plan import plan
from tests.unit.kube.fakes.fake_world import job
from tests.unit.statuses import status_of

NOW = 1000.0
RELEASE = Installation("jobs", "ferry:1", "redis://r:6379/0", "key")


def driver(ended: Ended | None = None, **changes: Any) -> Pod:
    base = Pod("nbq5-driver", "d", "1", "driver", None, "n1", "Running", "10.0.0.1", 0.0, None, True, None, ended)
    return replace(base, annotations={names.REVISION: "r", **changes.pop("annotations", {})}, **changes)


def worker(k: int, **changes: Any) -> Pod:
    base = Pod(f"nbq5-worker-{k}", f"w{k}", "1", "worker", k, f"n{k}", "Running", None, 0.0, None, True, None, None)
    return replace(base, annotations={names.REVISION: "r", **changes.pop("annotations", {})}, **changes)


def status(*alive: int, groups: Any = None) -> Status:
    instances = [f"{k}.0" for k in alive]
    return status_of(groups or [(instances or ["0.0"], [])], instances, watermark=None)


# --- the driver's life


@pytest.mark.parametrize(
    ("pod", "running", "may_start", "end"),
    [
        pytest.param(None, False, True, None, id="none yet"),
        pytest.param(driver(phase="Pending"), True, False, None, id="on its way"),
        pytest.param(driver(), True, False, None, id="running"),
        pytest.param(driver(deleting=900.0), False, False, None, id="ending: its name is taken"),
        pytest.param(driver(Ended(0, "", "", 990.0)), False, False, "Finished", id="done"),
        pytest.param(
            driver(Ended(0, "", "", 990.0), annotations={names.REPLACE: "x"}), False, True, None, id="done, as was asked"
        ),
        pytest.param(driver(Ended(0, "", "", 990.0), deleting=1.0), False, False, None, id="done because it is deleted"),
        pytest.param(driver(Ended(2, "", "refused: x", 990.0)), False, False, "Failed", id="refused"),
        pytest.param(driver(Ended(3, "", "halt", 990.0)), False, False, "Failed", id="halted"),
        pytest.param(
            driver(Ended(2, "", "", 990.0), annotations={names.REVISION: "old"}), False, True, None, id="refused an older spec"
        ),
        pytest.param(driver(Ended(1, "", "", 999.0)), False, True, None, id="crashed a second ago"),
        pytest.param(
            driver(Ended(1, "", "", 999.0), annotations={names.FAILURES: "5"}), False, False, None, id="crashed for the 6th time"
        ),
        pytest.param(
            driver(Ended(1, "", "", 999.0), annotations={names.FAILURES: "5", names.EPOCH: "3"}), False, True, None,
            id="crashed after work: the count begins anew",
        ),
        pytest.param(driver(Ended(None, "Evicted", "", 999.0)), False, True, None, id="evicted"),
    ],
)  # fmt: skip
def test_what_a_drivers_pod_means(pod: Pod | None, running: bool, may_start: bool, end: str | None) -> None:
    epoch = 4 if pod is not None and names.EPOCH in pod.annotations else -1
    lifecycle = lifecycle_of(pod, "r", epoch, False, NOW)
    assert (lifecycle.running, lifecycle.may_start, lifecycle.end) == (running, may_start, end)


def test_a_job_that_was_seen_to_be_finished_is_finished_whatever_its_pod() -> None:
    assert all(
        lifecycle_of(pod, "r", 5, True, NOW).end == "Finished"
        for pod in (None, driver(), driver(Ended(1, "", "", 1.0)))
    )


def test_back_off_doubles_up_to_a_minute() -> None:
    def wait(failures: int) -> float:
        ended = driver(Ended(1, "", "", NOW), annotations={names.FAILURES: str(failures - 1)})
        return lifecycle_of(ended, "r", -1, False, NOW).retry_at - NOW

    assert [round(wait(n), 3) for n in (1, 2, 3, 20, 10_000)] == [0.2, 0.4, 0.8, 60.0, 60.0]


@pytest.mark.parametrize(
    ("message", "reason", "expected"),
    [
        ("a\nrefused: no module x\n", "Error", "refused: no module x"),
        ("Traceback\nEOFError\nHalted: no copy of x is left\n", "Error", "Halted: no copy of x is left"),
        ("Traceback (most recent call last):\n  File x\nValueError: y\n", "Error", "ValueError: y"),
        ("2026-11-27 00:00:00,1 j driver ERROR x\nends: user code: y\n", "Error", "user code: y"),
        ("", "OOMKilled", "OOMKilled: raise spec.kubernetes.driver.memory"),
        ("2026 INFO up\n", "OOMKilled", "OOMKilled: raise spec.kubernetes.driver.memory; 2026 INFO up"),
        ("", "DeadlineExceeded", "DeadlineExceeded"),
        ("", "Error", "exit code 1"),
    ],
)
def test_what_a_driver_said(message: str, reason: str, expected: str) -> None:
    assert end_message(driver(Ended(1, reason, message, 1.0))) == expected


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [(1, "ends: user code: ValueError: x (job.py:3)", "UserCode"), (3, "ends: user code: y", "UserCode"), (1, "ends: Fault: z", "DriverCrashes")],
)  # fmt: skip
def test_the_first_end_of_a_driver_is_told_at_once(code: int, message: str, reason: str) -> None:
    problem = lifecycle_of(driver(Ended(code, "Error", message, NOW)), "r", -1, False, NOW).problem
    assert problem is not None and problem.reason == reason and message.removeprefix("ends: ") in problem.message


# --- the spec in force


def document(last: Doc | None = None, refused: tuple[str, str] | None = None, **changes: Any) -> Doc:
    one = job(**changes)
    one["metadata"] |= {"uid": "u", "namespace": "jobs"}
    if last is not None:
        keep(one, good=effective_spec.last_good(spec.check(last), "u", 1, RELEASE))
    if refused is not None:
        keep(one, refused=RefusedSpec(revision=refused[0], why=refused[1]))
    return one


def keep(one: Doc, **memory: Any) -> None:
    """What the operator has kept of a job."""
    status = one.setdefault("status", {})
    kept = JobMemory(uid="u").model_copy(update=memory).model_dump(mode="json", by_alias=True, exclude_none=True)
    status["memory"] = {**(status.get("memory") or {}), **kept}


def revise(job: Any) -> Revisions:
    return effective_spec.revisions(job, "u", RELEASE)


def test_a_first_spec_is_in_force() -> None:
    effective = effective_spec.in_force(document(), RELEASE)
    assert effective.job is not None and effective.newest and not effective.good and effective.problem is None


def test_a_first_spec_that_says_nonsense_leaves_none() -> None:
    effective = effective_spec.in_force(document(epoch={"interval": "soon"}), RELEASE)
    assert (
        effective.job is None and effective.problem is not None and "spec.epoch.interval" in effective.problem.message
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"epoch": {"interval": "soon"}}, id="nonsense"),
        pytest.param({"output": "relative"}, id="impossible on Kubernetes"),
        pytest.param({"state": {"virtualNodes": 16}}, id="may not change"),
    ],
)
def test_the_last_good_spec_stays_in_force(changes: dict[str, Any]) -> None:
    effective = effective_spec.in_force(document(document(), workers=5, **changes), RELEASE)
    assert (
        effective.job is not None
        and effective.job.spec.workers == 2
        and effective.problem is not None
        and not effective.newest
    )


def test_a_refused_spec_stays_refused_until_it_changes() -> None:
    bad = document(document(), pipeline={"module": "gone"})
    mine = revise(spec.check(bad))
    bad = document(document(), (mine.all, "no such module"), pipeline={"module": "gone"})
    effective = effective_spec.in_force(bad, RELEASE)
    assert effective.job is not None and effective.job.spec.pipeline.module == "jobs.nbq5"
    assert effective.problem is not None and "no such module" in effective.problem.message
    bad["spec"]["pipeline"]["module"] = "jobs.better"
    assert effective_spec.in_force(bad, RELEASE).newest


def test_notes_that_cannot_be_read_count_as_none() -> None:
    one = document()
    good = effective_spec.last_good(spec.check(document(workers=5)), "u", 1, RELEASE)
    keep(one, good=good.model_copy(update={"spec": "{"}))
    effective = effective_spec.in_force(one, RELEASE)
    assert effective.newest and not effective.good


def test_a_job_that_was_good_with_keys_that_are_refused_by_now_is_still_looked_after() -> None:
    """A release that refuses more must not leave jobs that run without an operator."""
    kept = {"spark.kubernetes.executor.label.x": "y", "spark.executor.cores": "2", "spark.sql.shuffle.partitions": "4"}
    one = document(spark=kept)
    text = json.dumps(one["spec"])
    keep(one, good=GoodSpec(generation=1, spec=text, seal=effective_spec._sealed(text, "u", 1, RELEASE)))
    effective = effective_spec.in_force(one, RELEASE)
    assert effective.job is not None and effective.job.spec.spark == {"spark.sql.shuffle.partitions": "4"}
    assert effective.problem is not None and "spark.kubernetes.executor.label.x" in effective.problem.message


def test_the_same_spec_again_is_good() -> None:
    assert effective_spec.in_force(document(document()), RELEASE).good
    assert not effective_spec.in_force(document(document(), workers=3), RELEASE).good


def test_a_spec_that_is_the_last_good_one_is_in_memory_once() -> None:
    """A parsed spec has tens of KiB, and an operator has thousands of jobs."""
    effective = effective_spec.in_force(document(document()), RELEASE)
    assert effective.last is effective.job is not None
    other = effective_spec.in_force(document(document(), workers=3), RELEASE)
    assert other.last is not None and other.last is not other.job


@pytest.mark.parametrize(
    ("changes", "which"),
    [
        ({}, ""),
        ({"workers": 5}, ""),
        ({"state": {"virtualNodes": 8, "replicas": 0}}, ""),
        ({"epoch": {"interval": "1s"}}, "driver settings"),
        ({"epoch": {"interval": "0ms"}}, ""),
        ({"restartNonce": 3}, "driver"),
        ({"state": {"virtualNodes": 8, "memory": "2Gi"}}, "worker settings"),
        ({"kubernetes": {"image": "other"}}, "driver worker"),
        ({"kubernetes": {"driver": {"memory": "2Gi"}}}, "driver"),
        ({"kubernetes": {"sidecar": {"memory": "2Gi"}}}, "worker"),
        ({"kubernetes": {"executor": {"memory": "2Gi"}}}, "driver worker"),
        ({"kubernetes": {"executor": {"cpu": "2"}}}, "worker"),
        ({"kubernetes": {"imagePullPolicy": "Always"}}, ""),
    ],
)
def test_revisions_differ_when_pods_have_to_be_made_anew(changes: dict[str, Any], which: str) -> None:
    before, after = revise(spec.check(document())), revise(spec.check(document(**changes)))
    found = [part for part in ("driver", "worker", "settings") if getattr(before, part) != getattr(after, part)]
    assert found == which.split()


def test_revisions_follow_the_installation_but_tell_nothing_of_its_secrets() -> None:
    one = spec.check(document())
    other = effective_spec.revisions(one, "u", replace(RELEASE, redis="redis://:secret@r:6379/0"))
    assert other.driver != revise(one).driver and "secret" not in str(other)


def test_settings_differ_by_what_the_spec_says_not_by_what_the_operator_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the operator that writes one more field changes nothing for jobs that do not use it."""
    before = revise(spec.check(document()))
    monkeypatch.setattr(effective_spec, "settings_of", lambda *_: {"novelty": 1})
    assert revise(spec.check(document())) == before


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"workers": 5, "restartNonce": 3, "epoch": {"interval": "1s"}}, True),
        ({"kubernetes": {"image": RELEASE.image}}, True),
        ({"kubernetes": {"image": "other"}}, False),
        ({"pipeline": {"module": "jobs.other"}}, False),
        ({"pipeline": {"file": "/jobs.nbq5"}}, False),
        ({"pipeline": {"module": "jobs.nbq5", "args": {"seed": 1}}}, False),
    ],
)
def test_a_version_that_is_not_given_is_a_digest_of_the_program(changes: dict[str, Any], same: bool) -> None:
    before, after = (
        effective_spec.version_of(spec.check(one), RELEASE.image) for one in (document(), document(**changes))
    )
    assert (before == after) == same


# --- workers that leave


NODES = {f"n{i}": KubeNode(f"n{i}", None, False, None) for i in range(4)}


def closed(*nodes: str) -> dict[str, KubeNode]:
    return {name: replace(node, cordoned=name in nodes) for name, node in NODES.items()}


OLD = {names.REVISION: "old"}
NO_ROOM = (Problem("Unschedulable", "no room"),)


@pytest.mark.parametrize(
    ("pods", "nodes", "alive", "asked", "expected"),
    [
        pytest.param([worker(0), worker(1)], NODES, [0, 1], (), RollingReplacement(2), id="all is well"),
        pytest.param([worker(0), worker(1)], None, [0, 1], (), RollingReplacement(2), id="nodes are not known"),
        pytest.param([worker(0), worker(1)], closed("n1"), [0, 1], (), RollingReplacement(3, (1,), (1,)), id="a node is cordoned"),
        pytest.param(
            [worker(0), worker(1)], closed("n0", "n1"), [0, 1], (), RollingReplacement(4, (0, 1), (0, 1)), id="both nodes are"
        ),
        pytest.param(
            [worker(0), worker(1)], closed("n0", "n1", "n2", "n3"), [0, 1], (), RollingReplacement(2), id="no node is left"
        ),
        pytest.param([worker(0), worker(1)], NODES, [0, 1], (1,), RollingReplacement(2, (1,)), id="the user asks, it stays"),
        pytest.param([worker(0), worker(1)], NODES, [0, 1], (0, 1), RollingReplacement(2), id="the user asks too much"),
        pytest.param(
            [worker(0, annotations=OLD), worker(1, annotations=OLD)], NODES, [0, 1], (), RollingReplacement(3),
            id="out of date: first a surge worker",
        ),
        pytest.param(
            [worker(0, annotations=OLD), worker(1, annotations=OLD), worker(2)], NODES, [0, 1, 2], (),
            RollingReplacement(3, (0,), (0,)), id="then the first one leaves",
        ),
        pytest.param(
            [worker(1, annotations=OLD), worker(2)], NODES, [1, 2], (), RollingReplacement(3), id="until it is back the next one waits"
        ),
        pytest.param(
            [worker(0), worker(1, annotations=OLD), worker(2)], NODES, [1, 2], (), RollingReplacement(3),
            id="and while it comes up, too",
        ),
        pytest.param(
            [worker(0, annotations=OLD), worker(1, annotations=OLD), worker(2, problems=NO_ROOM, phase="Pending")], NODES,
            [0, 1], (), RollingReplacement(3, without_surge=0), id="no room for a surge worker",
        ),
        pytest.param(
            [worker(0, annotations={**OLD, names.WITHOUT_SURGE: "true"}), worker(1, annotations=OLD)], NODES, [0, 1], (),
            RollingReplacement(2, (0,), (0,)), id="it leaves without",
        ),
        pytest.param(
            [worker(0), worker(1, annotations=OLD, problems=NO_ROOM, phase="Pending")], NODES, [0], (),
            RollingReplacement(2, remade=(1,)), id="one that never ran is made again at once",
        ),
        pytest.param(
            [worker(0, problems=NO_ROOM, phase="Pending"), worker(1, annotations=OLD)], NODES, [1], (), RollingReplacement(2),
            id="a new one does not come up: no other one is touched",
        ),
        pytest.param([worker(0), worker(1), worker(2)], NODES, [0, 2], (), RollingReplacement(3), id="a surge worker for one that died"),
        pytest.param([worker(0), worker(1), worker(2)], NODES, [0, 1, 2], (), RollingReplacement(2), id="one too many"),
    ],
)  # fmt: skip
def test_who_leaves(
    pods: list[Pod], nodes: Any, alive: list[int], asked: tuple[int, ...], expected: RollingReplacement
) -> None:
    assert plan_replacement(worker_pods(2, pods, "r", status(*alive)), nodes, asked) == expected


def test_the_only_worker_cannot_leave_without_another_one() -> None:
    pods = [worker(0, annotations={**OLD, names.WITHOUT_SURGE: "true"})]
    assert plan_replacement(worker_pods(1, pods, "r", status(0)), NODES).stuck


# --- lost pods


def seen(*pods: Pod, nodes: Any = NODES, answer: Status | None = None, **changes: Any) -> Seen:
    return Seen(document(**changes), pods, nodes, 2, answer, None, NOW)


def lost(*pods: Pod, **more: Any) -> dict[str, str]:
    one = seen(*pods, **more)
    effective = effective_spec.in_force(one.job, RELEASE)
    return dict(look(one, effective, revise(effective.job), AbsenceTimers()).lost)


def silent(name: str, since: float) -> dict[str, KubeNode]:
    return {**NODES, name: KubeNode(name, since, False, None)}


@pytest.mark.parametrize(
    ("pod", "nodes", "answer", "is_lost"),
    [
        pytest.param(worker(0), NODES, None, False, id="all is well"),
        pytest.param(worker(0), silent("n0", NOW - 4), status(1), False, id="silent for a moment"),
        pytest.param(worker(0), silent("n0", NOW - 11), status(1), True, id="silent, and the driver does not hear it"),
        pytest.param(worker(0), silent("n0", NOW - 500), status(0, 1), False, id="silent, but the driver hears it"),
        pytest.param(worker(0), silent("n0", NOW - 30), None, False, id="silent, and no driver to ask"),
        pytest.param(worker(0), silent("n0", NOW - 61), None, True, id="for a minute"),
        pytest.param(driver(), silent("n1", NOW - 11), None, True, id="the driver, which does not answer"),
        pytest.param(driver(), silent("n1", NOW - 11), status(0), False, id="the driver, which answers"),
        pytest.param(worker(0, created=NOW - 55), silent("n0", NOW - 99), status(1), False, id="put there since"),
        pytest.param(driver(created=NOW - 55), silent("n1", NOW - 99), None, False, id="the driver, put there since"),
        pytest.param(driver(created=NOW - 61), silent("n1", NOW - 99), None, True, id="the driver, put there long ago"),
        pytest.param(worker(0, created=NOW - 55), {}, status(1), False, id="a node that may be new"),
        pytest.param(worker(0, created=NOW - 61), {}, status(1), True, id="a node that is gone"),
        pytest.param(worker(0, deleting=NOW - 5), NODES, status(1), False, id="ending"),
        pytest.param(worker(0, deleting=NOW - 11), NODES, status(1), True, id="ending for too long"),
        pytest.param(worker(0, silent_since=NOW - 11), None, status(1), True, id="nodes are not known: the pod tells"),
        pytest.param(worker(0, node=None, phase="Pending"), silent("n0", 0.0), status(1), False, id="not placed yet"),
    ],
)
def test_which_pods_are_lost(pod: Pod, nodes: Any, answer: Status | None, is_lost: bool) -> None:
    assert bool(lost(pod, nodes=nodes, answer=answer)) is is_lost


def test_copies_are_spread_over_zones_when_there_are_enough() -> None:
    zones = {f"n{i}": KubeNode(f"n{i}", None, False, f"z{i % 2}") for i in range(4)}
    one = seen(worker(0), worker(1), worker(2), nodes=zones)
    assert [failure_domain(pod, one, 1) for pod in one.workers] == ["z0", "z1", "z0"]
    assert [failure_domain(pod, one, 2) for pod in one.workers] == ["n0", "n1", "n2"]
    assert failure_domain(worker(0), seen(worker(0), nodes=None), 1) == "n0"


def test_zones_are_known_from_pods_where_nodes_may_not_be_read() -> None:
    pods = [worker(k, zone=f"z{k % 2}") for k in range(3)]
    one = seen(*pods, nodes=None)
    assert [failure_domain(pod, one, 1) for pod in one.workers] == ["z0", "z1", "z0"]
    assert failure_domain(pods[0], seen(*pods[:2], worker(2), nodes=None), 1) == "n0", "a zone is not known"
    effective = effective_spec.in_force(one.job, RELEASE)
    for here, nodes, unknown in ((pods, None, False), ([worker(0)], None, True), ([worker(0)], NODES, False)):
        view = look(seen(*here, nodes=nodes), effective, revise(effective.job), AbsenceTimers())
        assert view.zones_are_unknown is unknown


def test_the_planner_knows_the_room_for_state() -> None:
    pods = [worker(0, state_bytes=4 << 30), worker(1, state_bytes=2 << 30, annotations={names.INSTANCES: "2"})]
    one = seen(*pods, answer=status(0, 1), workers=2)
    effective = effective_spec.in_force(one.job, RELEASE)
    view = look(one, effective, revise(effective.job), AbsenceTimers())
    assert view.observed is not None
    slots = d._slots(view.observed, Basis((InstanceId("0.0"), InstanceId("1.0"), InstanceId("1.1")), 1, ()))
    assert [slot.memory_bytes for slot in slots] == [4 << 30, 1 << 30, 1 << 30]


def test_what_is_missing_is_waited_for() -> None:
    timers = AbsenceTimers()
    mine = {names.REVISION: revise(spec.check(document())).worker}
    one = seen(worker(0, annotations=mine), worker(1, annotations=mine), driver(), answer=status(0))
    effective = effective_spec.in_force(one.job, RELEASE)
    first = look(one, effective, revise(effective.job), timers)
    later = look(replace(one, now=NOW + 4), effective, revise(effective.job), timers)
    assert first.observed is not None and first.observed.missing == {"1.0": 0.0}
    assert later.observed is not None and later.observed.missing == {"1.0": 4.0}


def test_an_epoch_that_does_not_end_is_told() -> None:
    timers, busy = AbsenceTimers(), replace(status(0), phase="prepare")
    assert [timers.stalled(busy, NOW + t) for t in (0, 59, 60)] == [0, 59, 60]
    assert not timers.stalled(replace(busy, epoch=6), NOW + 61) and not timers.stalled(None, NOW + 200)
    assert not timers.stalled(replace(busy, epoch=6, phase="idle"), NOW + 300)
    assert not timers.stalled(replace(busy, epoch=6, phase="hold"), NOW + 900)


def test_a_worker_that_is_held_up_is_not_waited_for() -> None:
    one = seen(worker(0), worker(1, problems=NO_ROOM, phase="Pending", created=NOW - 1), driver(), answer=status(0))
    effective = effective_spec.in_force(one.job, RELEASE)
    view = look(one, effective, revise(effective.job), AbsenceTimers())
    assert view.observed is not None and view.observed.workers[1].seconds > d.START_SECONDS


# --- steps


def test_a_pod_of_another_operator_is_taken_over_before_anything_else() -> None:
    effective = effective_spec.in_force(document(), RELEASE)
    mine = {names.REVISION: revise(effective.job).worker, names.TOKEN: "7"}
    one = seen(worker(0, annotations=mine), worker(1, annotations={**mine, names.TOKEN: "6"}), answer=status(0, 1))
    steps = plan(look(one, effective, revise(effective.job), AbsenceTimers()), 7)
    assert [(type(step).__name__, step.pod.name) for step in steps] == [("TakeOwnership", "nbq5-worker-1")]  # type: ignore[union-attr]


def test_a_paused_job_has_no_steps_and_a_deleted_one_only_ends() -> None:
    paused = copy.deepcopy(seen(worker(0), answer=None))
    paused.job["metadata"]["annotations"][names.PAUSED] = "true"
    effective = effective_spec.in_force(paused.job, RELEASE)
    assert plan(look(paused, effective, revise(effective.job), AbsenceTimers()), 7) == []
    paused.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    steps = plan(look(paused, effective, revise(effective.job), AbsenceTimers()), 7)
    assert [type(step).__name__ for step in steps] == ["DeletePod"]
