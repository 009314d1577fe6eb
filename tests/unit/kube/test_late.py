"""What the operator knows late, or not at all: pods that end slowly, old listings, old answers, lost requests."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.plans import Plan
from ferry.contract.status import Status
from ferry_operator.control.observed import Basis, Submitted
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import EVENTS, JOBS, NODES, PODS, SECRETS, ApiError, Kind
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.lifecycle import DriverLifecycle
from ferry_operator.kube.observe.rolling import RollingReplacement
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.view import JobView
from ferry_operator.kube.process.watch import is_final
from ferry_operator.kube.report.conditions import event_problems, moving
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_decisions import status
from tests.unit.kube.test_passes import running


@pytest.mark.parametrize("change", ["cordon", "revision"])
def test_nothing_is_planned_onto_a_worker_whose_pod_is_ending(change: str) -> None:
    world = running(nodes=3)
    world.lingers = 6.0
    wrong: list[Any] = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if verb == "submit" and world.driver is not None and world.driver.desired is not None:
            used = {worker_of(InstanceId(i)) for placed in world.driver.desired["placements"] for i in placed}
            ending = [k for k in used if f"nbq5-worker-{k}" in world.pods() and deleted(world, f"nbq5-worker-{k}")]
            wrong.extend(ending)

    world.api.after = watch
    if change == "cordon":
        node = world.pod("nbq5-worker-1")["spec"]["nodeName"]
        world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
        world.until(lambda w: settled(w) and all(w.pod(name)["spec"]["nodeName"] != node for name in workers(w)))
    else:
        before = {name: world.pod(name)["metadata"]["uid"] for name in workers(world)}
        world.api.edit(JOBS, "nbq5", {"spec": {"state": {"memory": "2Gi"}}})
        world.until(
            lambda w: settled(w) and not set(before.values()) & {w.pod(n)["metadata"]["uid"] for n in workers(w)}
        )
    assert not wrong and world.used() == [0, 1]


def workers(world: World) -> list[str]:
    return [name for name in world.pods() if "worker" in name]


def deleted(world: World, name: str) -> bool:
    return bool(world.pod(name)["metadata"].get("deletionTimestamp"))


def test_nothing_is_planned_onto_a_worker_whose_pod_may_still_be_evicted() -> None:
    world = running(nodes=3)
    world.early = True
    wrong: list[str] = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if verb == "submit" and world.driver is not None and world.driver.desired is not None:
            used = {worker_of(InstanceId(i)) for placed in world.driver.desired["placements"] for i in placed}
            wrong.extend(
                n for n in workers(world) if int(n[-1]) in used and world.pod(n)["status"]["phase"] == "Pending"
            )

    world.api.after = watch
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: settled(w) and w.used() == [0, 1, 2, 3])
    assert not wrong


def test_a_drain_that_asks_again_finds_no_other_pod_of_the_name() -> None:
    world = running(nodes=3)
    node = world.pod("nbq5-worker-1")["spec"]["nodeName"]
    world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    world.until(lambda w: "nbq5-worker-1" not in w.pods())
    gone = world.now
    world.until(lambda w: "nbq5-worker-1" in w.pods())
    assert world.now - gone > 5.0


def test_what_a_driver_said_before_it_was_told_to_move_empties_no_worker() -> None:
    world = running(nodes=4)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: w.driver is not None and w.driver.desired is not None and "3.0" in str(w.driver.desired))
    driver = world.driver
    assert driver is not None
    driver.groups[2] = ["3.0", "2.0"]  # it has begun, and is too busy to answer
    world.operator.driver_client.status = lambda url, secret: None  # type: ignore[method-assign]
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 2}})
    world.now += 1.0
    world.operate()
    assert not [name for name in workers(world) if deleted(world, name)] and len(workers(world)) == 4


def test_a_driver_is_not_started_without_its_settings() -> None:
    world = World()
    world.api.create(JOBS, job())
    refusals = [ApiError(500, "InternalError", "etcd is away")]

    def refuse(verb: str, kind: Kind, name: str) -> None:
        if kind == SECRETS and verb == "create" and refusals:
            raise refusals.pop()

    world.api.before = refuse
    world.until(settled)
    assert not refusals and world.api.names(SECRETS) == ["nbq5-run"]


def test_a_worker_that_comes_to_a_node_that_was_cordoned_may_stay() -> None:
    world = running(nodes=2, workers=3)
    world.until(settled)
    world.api.edit(NODES, "n1", {"spec": {"unschedulable": True}})
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.rounds(3)
    world.look()
    world.old_nodes = dict(world.store.nodes or {})
    world.api.edit(NODES, "n1", {"spec": {"unschedulable": False}})
    pending = [name for name in workers(world) if not world.pod(name)["spec"].get("nodeName")]
    assert pending
    lives = {name: world.pod(name)["metadata"]["uid"] for name in pending}
    world.kubelets()  # the scheduler knows at once
    world.operate()
    assert {name: world.pod(name)["metadata"]["uid"] for name in pending} == lives


def test_an_event_that_the_cluster_has_forgotten_is_written_again() -> None:
    world = running()

    def fall_and_rise() -> int:
        world.driver_ends(1, "boom")
        world.until(lambda w: settled(w) and w.driver is not None, 100)
        return sum(
            event["reason"] == "DriverStarted" for (kind, _), event in world.api.objects.items() if kind == EVENTS
        )

    assert fall_and_rise() == 1
    for key in [key for key in world.api.objects if key[0] == EVENTS]:
        del world.api.objects[key]
    world.now += 7200.0
    assert fall_and_rise() == 1


@pytest.mark.parametrize(("code", "waits"), [(403, 5.0), (500, None)])
def test_one_request_that_is_refused_does_not_slow_the_job_down(code: int, waits: float | None) -> None:
    world = running()

    def refuse(verb: str, kind: Kind, name: str) -> None:
        if (verb, kind, name) == ("create", PODS, "nbq5-worker-2"):
            raise ApiError(code, "Forbidden", "exceeded quota: pods")

    world.api.before = refuse
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.look()
    assert waits is None or world.operator.reconcile("nbq5") is not None
    if waits is None:
        with pytest.raises(ApiError):
            world.operator.reconcile("nbq5")
    else:
        assert world.operator.reconcile("nbq5") == waits
    world.rounds(2)
    assert world.condition("Degraded")["reason"] == "ApiRefused" and world.condition("Ready")["status"] == "True"


def test_an_edit_during_a_pass_leads_to_another_one_at_once() -> None:
    world = running()
    world.look()
    edits = [{"spec": {"workers": 3}}]

    def edit(verb: str, kind: Kind, name: str) -> None:
        if verb == "patch status" and edits:
            world.api.edit(JOBS, "nbq5", edits.pop())

    world.api.before = edit
    world.now += 60.0  # so that the counters are written
    assert world.operator.reconcile("nbq5") == 0.0 and not edits


@pytest.mark.parametrize(
    ("groups", "number", "settled", "count"),
    [
        pytest.param([(["0.0", "1.0"], [])], 1, True, 0, id="as desired"),
        pytest.param([(["0.0"], ["1.0"])], 1, False, 1, id="a copy is being warmed"),
        pytest.param([(["0.0"], [])], 1, False, 1, id="a copy is to be made"),
        pytest.param([(["1.0", "0.0"], [])], 1, False, 1, id="another one leads"),
        pytest.param([(["1.0", "0.0"], [])], 2, True, 1, id="the driver has not taken up the last placement yet"),
        pytest.param([(["0.0", "1.0"], [])], 2, True, 0, id="nor has it to do anything for it"),
    ],
)
def test_state_is_on_its_way_until_leaders_and_copies_are_where_they_should_be(
    groups: Any, number: int, settled: bool, count: int
) -> None:
    found: Status = status(0, 1, groups=groups)
    found.settled, found.desired = settled, 1
    placed = ((InstanceId("0.0"), InstanceId("1.0")),)
    submitted = Submitted(Plan(number, placed), found.generation, Basis(placed[0], 1, ()))
    seen = Seen({"metadata": {"name": "nbq5"}}, (), None, 2, found, submitted, 0.0)
    assert moving(JobView(seen, None, None, DriverLifecycle(True), RollingReplacement(2), None, {})) == count  # type: ignore[arg-type]


def test_many_problems_of_one_kind_hide_no_other_kind() -> None:
    problems = [*(Problem("Unschedulable", f"w{k}") for k in range(9)), Problem("CrashLoop", "w9")]
    assert [one.message for one in event_problems(problems)] == ["w0", "w1", "w2", "w9"]


def test_a_watch_that_is_resumed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("kopf._cogs.clients.watching")
    logger.addFilter(is_final)
    for end in ("will retry", "escalating"):
        logger.error(f"Request attempt #1/9 failed; {end}: GET /api/v1/pods -> ConnectionRefusedError()")
    assert len(caplog.records) == 1 and "escalating" in caplog.text


def test_crashes_of_an_older_driver_do_not_count_against_a_new_one() -> None:
    world = running()
    for _ in range(6):
        world.ends_with = (1, "boom")
        world.driver_ends(1, "boom")
        world.rounds(70)
    assert int(world.pod("nbq5-driver")["metadata"]["annotations"][names.FAILURES]) >= 3
    world.ends_with = None
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"driver": {"memory": "3Gi"}}}})
    world.until(settled, 100)
    assert world.pod("nbq5-driver")["metadata"]["annotations"][names.FAILURES] == "0"
