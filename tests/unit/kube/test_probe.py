"""A leader that does not hear of changes is started again, and users cannot bring that about."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ferry_operator.kube import __main__ as process_module
from ferry_operator.kube.__main__ import OperatorProcess
from ferry_operator.kube.api import names
from ferry_operator.kube.api.lease import EXPIRY_SECONDS, RENEW_SECONDS
from ferry_operator.kube.api.names import Doc, JobKey
from ferry_operator.kube.api.port import FORBIDDEN, JOBS, LEASES, PODS, ApiError
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.process import leader as leading
from ferry_operator.kube.process import probe as probing
from ferry_operator.kube.process.leader import DEAF_SECONDS, Leader
from ferry_operator.kube.process.probe import KEY, REFUSED_SECONDS, Probe
from ferry_operator.kube.process.queue import EDIT, WorkQueue
from ferry_operator.kube.process.watch import JobWatch, JobWatches
from ferry_operator.kube.store import Store, Stores
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, job
from tests.unit.kube.test_isolation import NoWatch, until
from tests.unit.kube.test_machinery import Clock

Change = tuple[str, Doc]


class Watched:
    """An API server that streams what the test says."""

    def __init__(self) -> None:
        self.script: list[Change | Exception] = []

    def changes(self, kind: Any, version: str, seconds: int, name: str = "") -> Iterator[Change]:
        assert (kind, version, name) == (LEASES, "", "ferry")
        for each in self.script:
            if isinstance(each, Exception):
                raise each
            yield each


def renewal(token: int = 7, change: str = "MODIFIED") -> Change:
    return change, {"metadata": {"name": "ferry"}, "spec": {"leaseTransitions": token}}


def probe_of(clock: Clock) -> tuple[Watched, WorkQueue, Probe, list[Callable[[], None]]]:
    server, queue, loop = Watched(), WorkQueue(clock), list[Callable[[], None]]()
    probe = Probe(server, "ferry", 7, queue, loop.append, clock)  # type: ignore[arg-type]
    probe._at = clock()  # as `start` does
    return server, queue, probe, loop


# --- the probe


def test_a_renewal_goes_by_the_loop_and_the_queue_to_a_reconcile() -> None:
    clock = Clock()
    server, queue, probe, loop = probe_of(clock)
    server.script = [renewal()]
    clock.now += 40
    probe.follow()
    assert queue.depth() == 0 and probe.age() == 40, "the loop of the watches has not run"
    for act in loop:
        act()
    assert queue.take() == KEY and probe.age() == 40, "no reconcile yet"
    probe.reconciled()
    assert probe.age() == 0


@pytest.mark.parametrize("other", [renewal(8), renewal(7, "DELETED"), renewal(7, "BOOKMARK"), ("MODIFIED", {})])
def test_only_what_this_leader_has_written_counts(other: Change) -> None:
    server, _, probe, loop = probe_of(Clock())
    server.script = [other]
    probe.follow()
    assert not loop


def test_no_number_of_edits_delays_the_probe() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for number in range(100):
        queue.add(JobKey("n", f"edited-{number}"), priority=EDIT)
    clock.now += 1000
    queue.add(KEY, priority=probing.PROBE)
    assert queue.take() == KEY


def test_a_refusal_ends_the_probe_and_not_the_health() -> None:
    """Another process would have the same rights."""
    clock = Clock()
    server, _, probe, _ = probe_of(clock)
    server.script = [ApiError(FORBIDDEN, "Forbidden", "no")]
    assert probe.follow() == REFUSED_SECONDS and probe.age() is None
    probe.reconciled()
    assert probe.age() is None, "a late reconcile"
    server.script = [ApiError(0, "Unreachable", "no")]
    clock.now += 500
    assert probe.follow() < REFUSED_SECONDS and probe.age() is None
    server.script = [renewal()]
    probe.follow()
    assert probe.age() == 0


def test_a_server_without_an_answer_is_no_refusal() -> None:
    clock = Clock()
    server, _, probe, _ = probe_of(clock)
    server.script = [ApiError(0, "Unreachable", "no")]
    clock.now += 61
    probe.follow()
    assert probe.age() == 61


# --- watches


def pod(name: str, version: int, **labels: str) -> Doc:
    every = {names.MANAGED: names.MANAGER, names.JOB: "a", **labels}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version), "labels": every}}


def store_of() -> tuple[Clock, Store]:
    clock = Clock()
    store = Store(clock=clock)
    store.heard(PODS)
    return clock, store


def lists(store: Store, clock: Clock, *documents: Doc) -> float:
    clock.now += 30
    store.sync(PODS, documents, store.uids(PODS))
    return store.watch_age(PODS)


def test_a_watch_owes_what_a_write_or_a_listing_has_shown() -> None:
    clock, store = store_of()
    store.put(PODS, pod("p", 1), watched=True)
    assert lists(store, clock, pod("p", 1)) == 0, "nothing has changed"
    assert lists(store, clock, pod("p", 2)) == 0, "it has just changed"
    assert lists(store, clock, pod("p", 2)) == 30
    store.heard(PODS)
    assert lists(store, clock, pod("p", 2)) == 0
    store.put(PODS, pod("p", 3))
    assert store.watch_age(PODS) == 0 and lists(store, clock, pod("p", 3)) == 30, "an own write"


def test_a_pod_that_was_deleted_between_two_watches_is_not_owed() -> None:
    """No watch delivers the deletion."""
    clock, store = store_of()
    store.put(PODS, pod("p", 1))
    assert lists(store, clock) == 0
    store.put(PODS, pod("p", 2))
    assert lists(store, clock, pod("p", 2)) == 30 and lists(store, clock) == 0


@pytest.mark.parametrize("labels", [{names.JOB: ""}, {names.MANAGED: "helm"}])
def test_a_pod_that_no_watch_delivers_is_not_owed(labels: dict[str, str]) -> None:
    clock, store = store_of()
    store.put(PODS, pod("p", 1, **labels))
    assert lists(store, clock, pod("p", 1, **labels)) == 0
    store.put(PODS, pod("q", 1))
    assert lists(store, clock, pod("q", 2, **labels)) == 0, "its labels have changed"


def test_a_watch_that_has_not_begun_owes_nothing() -> None:
    clock, store = store_of()
    store.put(PODS, pod("p", 1))
    store.begin_watch()
    assert lists(store, clock, pod("p", 1)) == 0
    store.put(PODS, pod("p", 2))
    assert lists(store, clock, pod("p", 2)) == 0


# --- the leader, and its process


def led(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeApi, Leader]:
    monkeypatch.setattr(leading, "JobWatches", NoWatch)
    api = FakeApi(Clock())
    api.create(JOBS, job())
    leader = Leader(api, RELEASE, 1, lambda: True, Metrics())
    leader._list_all()
    monkeypatch.setattr(leader._listing, "is_alive", lambda: True)
    return api, leader


def test_a_probe_that_does_not_come_back_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    _, leader = led(monkeypatch)
    clock = Clock()
    leader._probe._clock, leader._probe._at = clock, clock()
    clock.now += DEAF_SECONDS - 1
    assert leader.hang is None
    clock.now += 1
    assert leader.hang == "the watch of leases in jobs has been silent for 60 s" and not leader.healthy
    leader.woke()
    assert leader.hang is None


def test_a_watch_that_owes_a_change_is_a_hang_while_its_namespace_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    api, leader = led(monkeypatch)
    leader._watches.follow(frozenset({"jobs"}))
    store, clock = leader.stores.of("jobs"), Clock()
    store.clock = clock
    store.heard(JOBS)
    api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    for _ in range(3):
        leader._list_all()
        clock.now += 30
    assert leader.hang == "the watch of streamjobs in jobs has been silent for 90 s"
    leader._watches.follow(frozenset())
    assert leader.hang is None


def test_an_object_that_cannot_be_parsed_leaves_the_leader_well(monkeypatch: pytest.MonkeyPatch) -> None:
    _, leader = led(monkeypatch)

    def cannot(*_: Any) -> None:
        raise ValueError

    monkeypatch.setattr(leader, "_list", cannot)
    leader._list_all()
    assert leader.healthy


class Hanging:
    """A leader that hangs after its first look."""

    hang: str | None = None
    healthy = True
    managed, failing = 0, ()
    turns = SimpleNamespace(stopped=lambda now: ())
    definition = SimpleNamespace(missing=())

    def __init__(self, _: Any, __: Any, token: int, *___: Any) -> None:
        self.token = token
        self.queue = WorkQueue()
        self.woken = 0

    def start(self) -> None:
        pass

    def close(self, release: Callable[[], None]) -> bool:
        release()
        return True

    def woke(self) -> None:
        self.woken += 1

    def watch_ages(self) -> dict[tuple[str, str], float]:
        return {("jobs", "pods"): 3.0}


def code_of(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_process_that_hangs_gives_the_lease_away_and_is_unhealthy_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(Clock())
    monkeypatch.setattr(process_module, "KubeApi", lambda *_: api)
    monkeypatch.setattr(process_module, "Leader", Hanging)
    monkeypatch.setattr(process_module, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(process_module, "RENEW_SECONDS", 0.01)
    process = OperatorProcess(RELEASE, "ferry", "me", 0, None)
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    until(lambda: process._leader is not None)
    assert code_of(process._monitoring.port) == 200
    text = process._metrics.registry.get_sample_value
    assert text("ferry_operator_watch_age_seconds", {"watched": "jobs", "resource": "pods"}) == 3.0
    leader: Any = process._leader
    leader.hang = "deaf"
    until(lambda: process._leader is None)
    until(lambda: api.get(LEASES, "ferry")["spec"]["holderIdentity"] == "")
    threading.Event().wait(0.1)
    assert api.get(LEASES, "ferry")["spec"]["holderIdentity"] == "", "it does not lead again"
    assert code_of(process._monitoring.port) == 503 and text("ferry_operator_hangs") == 1.0
    process.stop.set()
    thread.join(10)


@pytest.mark.parametrize(("gap", "woken"), [(EXPIRY_SECONDS + 1, 1), (RENEW_SECONDS, 0)])
def test_a_leader_that_slept_is_not_deaf(monkeypatch: pytest.MonkeyPatch, gap: float, woken: int) -> None:
    api = FakeApi(Clock())
    monkeypatch.setattr(process_module, "KubeApi", lambda *_: api)
    monkeypatch.setattr(process_module, "Leader", Hanging)
    process = OperatorProcess(RELEASE, "ferry", "me", 0, None)
    process._lead_or_wait(slept=False)
    leader: Any = process._leader
    process._looked_at -= gap
    monkeypatch.setattr(process.stop, "wait", lambda _: process.stop.set())
    process.run()
    assert leader.woken == woken


def test_a_call_goes_by_every_loop_of_the_watches() -> None:
    """A loop that stands still, or has ended, keeps the probe from coming back."""
    watches, calls, passed = JobWatches(Stores(), WorkQueue()), list[tuple[Any, ...]](), list[int]()
    watches.call(lambda: passed.append(0))
    assert passed == [0], "without namespaces there are no loops"
    watches._parts = [JobWatch([name], Stores(), WorkQueue()) for name in ("a", "b", "c")]
    for part in watches._parts[:2]:
        loop: Any = SimpleNamespace(call_soon_threadsafe=lambda *call: calls.append(call))
        part._loop = loop
    watches.call(lambda: passed.append(1))
    for turn in range(2):
        assert len(calls) == turn + 1 and passed == [0]
        act, *arguments = calls[turn]
        act(*arguments)
    assert passed == [0, 1], "a watch that has not begun delays nothing"
    ended = asyncio.new_event_loop()
    ended.close()
    watches._parts[2]._loop = ended
    watches.call(lambda: passed.append(2))
    assert passed == [0, 1]
