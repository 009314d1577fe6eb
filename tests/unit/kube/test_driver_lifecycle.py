"""A driver that has ended for good says how to start it again; one that hangs, or whose epoch stands, is replaced."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.status import ReportedProblem
from ferry_operator.control import restarts
from ferry_operator.job import spec
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS
from ferry_operator.kube.cluster import driver_url
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.observe import effective_spec, facts, lifecycle
from ferry_operator.kube.observe.facts import Ended
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.view import JobView, look
from ferry_operator.kube.plan import plan
from ferry_operator.kube.reconcile import EVENT_SECONDS
from ferry_operator.kube.report.events import AT_ONCE, EACH_SECONDS
from ferry_operator.kube.steps import ReplaceDriver
from tests.unit.kube.fakes.fake_world import settled, writes
from tests.unit.kube.test_decisions import NODES, NOW, RELEASE, document, driver, revise, status, worker
from tests.unit.kube.test_passes import running


@pytest.mark.parametrize(
    ("code", "here", "on_a_cluster"),
    [(0, "finished", "Finished"), (2, "refused", "Failed"), (3, "halted", "Failed"), (1, None, None), (70, None, None)],
)
def test_an_exit_code_means_the_same_on_one_machine_and_on_a_cluster(code: int, here: Any, on_a_cluster: Any) -> None:
    outcome = restarts.RestartPolicy().ended(code, expected=False, now=0.0)
    assert (outcome.kind if outcome is not None else None) == here
    assert lifecycle.lifecycle_of(driver(Ended(code, "", "x", NOW)), "r", -1, False, NOW).end == on_a_cluster


def test_a_final_halt_says_how_the_driver_is_started_again() -> None:
    world = running()
    world.driver_ends(3, "StateUnavailable: nobody holds virtual node 3")
    world.until(lambda w: w.status["phase"] == "Failed")
    for condition in ("Ready", "Degraded"):
        said = world.condition(condition)["message"]
        assert "nobody holds virtual node 3" in said and "another spec.restartNonce starts the driver again" in said
    world.api.edit(JOBS, "nbq5", {"spec": {"restartNonce": 1}})
    world.until(lambda w: settled(w) and w.lives == 2)


def test_what_a_driver_tries_again_is_a_condition_and_ends_nothing() -> None:
    world = running()
    world.stands = True
    world.problems = (ReportedProblem("SinkFailing", "/out: Stale file handle", world.now),)
    world.until(lambda w: w.condition("Degraded").get("reason") == "SinkFailing", 20)
    assert "Stale file handle" in world.condition("Degraded")["message"] and world.status["phase"] == "Degraded"
    for _ in range(80):
        world.round(30.0)
    assert world.lives == 1, "another driver would fail the same way"
    world.stands, world.problems = False, ()
    world.until(lambda w: w.condition("Degraded").get("status") == "False")


def test_a_driver_with_other_problems_at_every_look_is_no_flood_of_events() -> None:
    """Users' code runs in it."""
    world = running()
    told = writes(world, EVENTS)
    for turn in range(100):
        texts = [f"problem {number} of look {turn}" for number in range(30)]
        world.problems = tuple(ReportedProblem(f"Reason{n}", text, world.now) for n, text in enumerate(texts))
        world.round()
    again = 100 / EVENT_SECONDS  # of the one that says so
    assert writes(world, EVENTS) - told <= AT_ONCE + 100 / EACH_SECONDS + 2 * again
    assert any(event["reason"] == "EventsWithheld" for (kind, _), event in world.api.objects.items() if kind == EVENTS)
    world.problems = ()
    world.rounds(int(AT_ONCE * EACH_SECONDS))
    world.problems = (ReportedProblem("SinkFailing", "/out: Stale file handle", world.now),)
    world.rounds(5)
    assert any(event["reason"] == "SinkFailing" for (kind, _), event in world.api.objects.items() if kind == EVENTS)


def test_a_driver_that_hangs_is_replaced() -> None:
    world = running()
    world.hangs = True
    uid = world.pod("nbq5-driver")["metadata"]["uid"]
    world.rounds(25)
    assert world.pod("nbq5-driver")["metadata"]["uid"] == uid, "it is given some time"
    world.until(
        lambda w: "it hangs: its kubelet has reported it as not ready" in w.condition("Degraded").get("message", ""), 20
    )
    world.until(lambda w: "nbq5-driver" not in w.pods() or w.pod("nbq5-driver")["metadata"]["uid"] != uid, 20)
    world.hangs = False
    world.until(lambda w: settled(w) and w.lives == 2)
    events = [event["message"] for (kind, _), event in world.api.objects.items() if kind == EVENTS]
    assert any(
        re.match("end nbq5-driver: it hangs: its kubelet has reported it as not ready for 3. s", one) for one in events
    )


def test_a_driver_whose_epoch_stands_is_replaced() -> None:
    world = running(failure={"stallDeadline": "2m"})
    world.stands = True
    world.rounds(100)
    assert world.lives == 1 and world.condition("Degraded")["reason"] == "Stalled"
    world.until(lambda w: w.lives == 2, 60)
    world.stands = False
    world.until(settled)


def test_a_driver_that_refuses_placements_is_told_of() -> None:
    world = running()
    world.refuses_placements = True
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "PlacementRefused", 20)
    assert "with 422: too few" in world.condition("Degraded")["message"] and world.lives == 1
    world.refuses_placements = False
    world.until(lambda w: settled(w) and w.status["workers"] == 3 and w.condition("Degraded")["status"] == "False")


def test_moves_that_were_given_up_are_told_of_until_they_are_done() -> None:
    world = running()
    world.gives_up = (ReportedProblem("MovesGivenUp", "5 copies on 2.0: no data from 0.0 for 600 s", world.now),)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: w.condition("Handover").get("reason") == "GivenUp", 30)
    assert (
        world.condition("Handover")["status"] == "False"
        and "1 copies were given up" in world.condition("Handover")["message"]
    )
    assert world.condition("Degraded")["reason"] == "MovesGivenUp" and not settled(world)
    assert "no data from 0.0" in world.condition("Degraded")["message"]
    assert world.condition("Progressing")["message"] == "for a retry of moves that were given up"
    reasons = {event["reason"] for (kind, _), event in world.api.objects.items() if kind == EVENTS}
    assert {"MovesGivenUp", "HandoverGivenUp"} <= reasons
    value = world.operator.metrics.registry.get_sample_value
    assert value("ferry_streamjob_moves_given_up", {"namespace": "jobs", "streamjob": "nbq5"}) == 1
    world.gives_up = ()
    world.until(lambda w: settled(w) and w.status["workers"] == 3 and w.condition("Degraded")["status"] == "False")


@pytest.mark.parametrize(("ip", "url"), [("10.0.0.1", "http://10.0.0.1:7070"), ("fd00::1", "http://[fd00::1]:7070")])
def test_where_a_driver_is_asked(ip: str, url: str) -> None:
    one = Seen(document(), (driver(ip=ip),), NODES, 2, None, None, NOW)
    assert driver_url(one, spec.check(document())) == url


def test_a_driver_is_asked_in_its_own_way_until_it_is_replaced() -> None:
    """A spec that changes it, or an operator with another default, talks to the driver that is there."""
    for one, scheme in (("run", "https"), ("off", "http")):
        made = pods.driver(document() | {"metadata": {"name": "nbq5", "namespace": "jobs", "uid": "u"}},
                           spec.check(document(security={"tls": one})), RELEASE, {})  # fmt: skip
        pod = facts.pod({**made, "status": {"podIP": "10.0.0.1"}})
        for newest in ("run", "off"):
            seen = Seen(document(), (pod,), NODES, 2, None, None, NOW)
            assert driver_url(seen, spec.check(document(security={"tls": newest}))) == f"{scheme}://10.0.0.1:7070"
    assert (
        facts.pod({"metadata": {"name": "x"}, "spec": {"containers": [{"readinessProbe": {"tcpSocket": {}}}]}}).scheme
        == "http"
    )


MINE = revise(spec.check(document()))


def seen_with(job: Doc, **said: Any) -> JobView:
    """A job whose epoch has stood for an hour."""
    here = (driver(annotations={names.REVISION: MINE.driver}),
            *(worker(k, annotations={names.REVISION: MINE.worker}) for k in (0, 1)))  # fmt: skip
    answer = replace(status(0, 1), **{"phase": "commit", **said})
    seen = Seen(job, here, NODES, 2, answer, None, NOW)
    effective, timers = effective_spec.in_force(seen.job, RELEASE), AbsenceTimers()
    look(seen, effective, MINE, timers)
    return look(replace(seen, now=NOW + 3600.0), effective, MINE, timers)


@pytest.mark.parametrize(
    ("said", "replaced"),
    [
        pytest.param({}, True, id="nothing is said to fail"),
        pytest.param({"phase": "idle"}, False, id="no epoch is under way"),
        pytest.param({"problems": (ReportedProblem("SinkFailing", "x", 0.0),)}, False, id="the sink fails"),
        pytest.param({"journal_up": False}, False, id="Redis is away"),
        pytest.param({"groups": [(["0.0", "2.0"], [])]}, False, id="an instance is waited for"),
    ],
)
def test_a_driver_that_waits_for_others_does_not_hang(said: Any, replaced: bool) -> None:
    steps = plan(seen_with(document(), **said), 0)
    assert any(isinstance(step, ReplaceDriver) for step in steps) is replaced


@pytest.mark.parametrize(
    ("answers", "ready", "old_workers", "replaced"),
    [
        pytest.param(True, True, True, False, id="workers are first"),
        pytest.param(False, True, True, False, id="it will answer again"),
        pytest.param(False, False, True, True, id="it may never answer again"),
        pytest.param(False, True, False, True, id="all workers are new"),
    ],
)
def test_an_outdated_driver_is_replaced_after_the_workers(
    answers: bool, ready: bool, old_workers: bool, replaced: bool
) -> None:
    noted = {} if old_workers else {names.REVISION: MINE.worker}
    here = (driver(ready=ready), *(worker(k, annotations=noted) for k in (0, 1)))
    seen = Seen(document(), here, NODES, 2, status(0, 1) if answers else None, None, NOW)
    view = look(seen, effective_spec.in_force(seen.job, RELEASE), MINE, AbsenceTimers())
    assert any(isinstance(step, ReplaceDriver) for step in plan(view, 0)) is replaced


@pytest.mark.parametrize(("deadline", "replaced"), [("30m", True), ("2h", False), (None, False)])
def test_an_epoch_may_stand_for_as_long_as_the_job_says(deadline: str | None, replaced: bool) -> None:
    steps = plan(seen_with(document(failure={"stallDeadline": deadline})), 0)
    assert any(isinstance(step, ReplaceDriver) for step in steps) is replaced


@pytest.mark.parametrize(
    ("pod", "answers", "seconds", "ended"),
    [
        pytest.param({}, False, 1e6, False, id="its kubelet finds it well: the operator alone does not hear it"),
        pytest.param({"not_ready_since": 0.0, "was_ready": True}, True, 29.0, False, id="unwell for a moment"),
        pytest.param(
            {"not_ready_since": 0.0, "was_ready": True}, True, 30.0, True, id="its loop stands, its endpoint answers"
        ),
        pytest.param({"not_ready_since": 0.0, "was_ready": True}, False, 30.0, True, id="nobody hears it"),
        pytest.param({"not_ready_since": 0.0}, False, 299.0, False, id="it starts"),
        pytest.param({"not_ready_since": 0.0}, False, 300.0, True, id="it never came up"),
        pytest.param({"not_ready_since": 0.0}, True, 1e6, False, id="an older image, which does not say how it is"),
    ],
)
def test_when_a_driver_hangs(pod: dict[str, Any], answers: bool, seconds: float, ended: bool) -> None:
    assert (lifecycle.hangs(driver(**pod), answers, seconds) is not None) is ended


@pytest.mark.parametrize(("problems", "ended"), [((), True), ((facts.Problem("RedisRefuses", "x"),), False)])
def test_a_driver_that_starts_waits_for_redis(problems: Any, ended: bool) -> None:
    here = (driver(annotations={names.REVISION: MINE.driver}, not_ready_since=0.0),)
    seen = Seen(document(), here, NODES, 2, None, None, NOW, problems)
    view = look(seen, effective_spec.in_force(seen.job, RELEASE), MINE, AbsenceTimers())
    assert (view.hangs is not None) is ended


STARTED, LATER = "2026-01-01T00:00:10Z", "2026-01-01T00:05:00Z"


@pytest.mark.parametrize(
    ("ready", "unwell", "was"),
    [
        pytest.param({"status": "True", "lastTransitionTime": LATER}, None, False, id="ready"),
        pytest.param(
            {"status": "False", "reason": "ContainersNotReady", "lastTransitionTime": LATER}, LATER, True, id="no longer"
        ),
        pytest.param(
            {"status": "False", "reason": "ContainersNotReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}, STARTED, False,
            id="not yet",
        ),
        pytest.param({"status": "False", "lastTransitionTime": LATER}, None, False, id="its kubelet is silent"),
    ],
)  # fmt: skip
def test_what_a_kubelet_says_of_a_driver(ready: Any, unwell: Any, was: bool) -> None:
    container = {"name": "driver", "state": {"running": {"startedAt": STARTED}}}
    status = {"phase": "Running", "conditions": [{"type": "Ready", **ready}], "containerStatuses": [container]}
    pod = facts.pod({"metadata": {"name": "x-driver"}, "status": status})
    assert (pod.not_ready_since, pod.was_ready) == (facts.when(unwell), was)


def test_a_plan_that_was_rolled_back_is_said_and_not_made_again() -> None:
    world = running()
    world.rolled_back = "no progress for 1800 s"
    world.until(lambda w: w.condition("Handover").get("reason") == "RolledBack", 30)
    assert world.condition("Handover")["message"].endswith(world.rolled_back)
    number = world.driver and world.driver.desired and world.driver.desired["number"]
    for _ in range(20):
        world.operate()
    assert world.driver and world.driver.desired and world.driver.desired["number"] == number
