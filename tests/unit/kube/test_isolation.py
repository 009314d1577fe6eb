"""One job, or one list of nodes, that takes its time holds up no other job, and ends no operator."""

from __future__ import annotations

import copy
import json
import signal
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from ferry_operator.control.driver_client import BadAnswer
from ferry_operator.job.status import JobStatus
from ferry_operator.kube import __main__ as process_module
from ferry_operator.kube.api import names, redis
from ferry_operator.kube.api.names import JobKey
from ferry_operator.kube.api.port import JOBS, NODES, PODS, SECRETS, ApiError, Kind
from ferry_operator.kube.metrics import JobSample, Metrics
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.process import leader as leading
from ferry_operator.kube.process.leader import Leader
from ferry_operator.kube.process.nodes import REFUSED_SECONDS, SECONDS, STALE_SECONDS, NodeWatch
from ferry_operator.kube.process.queue import (
    EDIT,
    RECONCILES_MAX,
    ROUTINE,
    SLOW_RECONCILES_MAX,
    SLOW_SECONDS,
    URGENT,
    WorkQueue,
)
from ferry_operator.kube.reconcile import ASIDE_SECONDS_MAX
from ferry_operator.kube.store import Store, Stores
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, FakeLink, World, job, settled, writes
from tests.unit.kube.test_machinery import Clock
from tests.unit.kube.test_passes import running

# --- the queue


def taken(queue: WorkQueue) -> list[Any]:
    found = []
    while queue.depth() and len(found) < 99:
        name = queue.take()
        assert name is not None
        queue.done(name, None)
        found.append(name)
    return found


def test_an_edit_goes_before_trouble_and_trouble_before_routine() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for number in range(3):
        queue.add(f"calm-{number}")
    queue.add("calm-1", priority=URGENT)
    queue.add("edited", priority=EDIT)
    queue.add("edited")
    assert taken(queue) == ["edited", "calm-1", "calm-0", "calm-2"]


def test_an_edit_stays_one_until_its_job_has_nothing_more_to_do() -> None:
    queue = WorkQueue(Clock())
    queue.add("edited", priority=EDIT)
    queue.take()
    queue.done("edited", 0.0, URGENT)
    queue.add("urgent", priority=URGENT)
    assert queue.take() == "edited"
    queue.done("edited", 5.0)
    assert queue._due["edited"].priority == ROUTINE


def test_routine_is_late_by_a_minute_and_never_forgotten() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add("calm")
    clock.now += EDIT + 1
    queue.add("edited", priority=EDIT)
    assert taken(queue) == ["calm", "edited"]


def test_passes_that_wait_take_no_turn_from_the_others() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for number in range(RECONCILES_MAX):
        queue.add(f"slow-{number}")
        queue.take()
    assert queue._full(clock.now) == SLOW_SECONDS
    clock.now += SLOW_SECONDS
    queue.add("quick")
    assert queue.take() == "quick"
    clock.now += 1e6
    queue.done("quick", None)
    assert queue.stuck_seconds() == 0.0, "nobody waits"
    for number in range(SLOW_RECONCILES_MAX - RECONCILES_MAX):
        queue.add(f"more-{number}")
        queue.take()
        clock.now += SLOW_SECONDS
    queue.add("last")
    clock.now += 100
    assert queue._full(clock.now) is not None and queue.stuck_seconds() == 100.0, "all wait for something"


# --- the leader


class Held:
    """An API server without an answer to some calls."""

    def __init__(self, api: FakeApi, holds: Callable[[str, Kind, str], bool]) -> None:
        self.let_go = threading.Event()
        self.reached = threading.Event()
        self._holds = holds
        api.before = self.before

    def before(self, verb: str, kind: Kind, name: str) -> None:
        if self._holds(verb, kind, name):
            self.reached.set()
            self.let_go.wait(60)


class Parsing:
    """An operator that reads one object, as `kopf` does."""

    read: list[bool] = []

    def __init__(self, *_: Any) -> None:
        self.stop = threading.Event()

    def run(self) -> None:
        def parse() -> None:
            deep = "[" * 10_000 + "]" * 10_000  # more is refused by the API server
            self.read.append(copy.deepcopy(json.loads(deep)) == json.loads(deep))

        thread = threading.Thread(target=parse)
        thread.start()
        thread.join()


def test_an_object_that_is_nested_as_deep_as_can_be_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "OperatorProcess", Parsing)
    monkeypatch.setattr(process_module.logs, "begin", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    frames, stack = sys.getrecursionlimit(), threading.stack_size()
    try:
        process_module.main(["--namespace", "jobs"])
    finally:
        sys.setrecursionlimit(frames)
        threading.stack_size(stack)
    assert Parsing.read == [True]


class NoWatch:
    """Watches that see nothing."""

    watched: frozenset[str] = frozenset()

    def __init__(self, *_: Any) -> None:
        pass

    def follow(self, namespaces: frozenset[str]) -> None:
        self.watched = namespaces

    def call(self, act: Callable[[], None]) -> None:
        act()

    def close(self) -> None:
        pass


def leader_of(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(leading, "JobWatches", NoWatch)
    monkeypatch.setattr(leading, "END_SECONDS", 0.1)
    return Leader(api, RELEASE, 1, lambda: True, Metrics())


def until(what: Callable[[], Any]) -> None:
    for _ in range(500):
        if what():
            return
        threading.Event().wait(0.02)
    raise AssertionError("did not come about")


def test_a_pass_that_never_ends_is_one_jobs_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are looked after, the leader is well, and when it steps back that pass changes nothing any more."""
    api = FakeApi(Clock())
    for name in ("bad", "good"):
        api.create(JOBS, job(name))
    held = Held(api, lambda verb, kind, name: verb == "create" and name.startswith("bad-"))
    leader = leader_of(api, monkeypatch)
    leader.start()
    held.reached.wait(10)
    until(lambda: "good-worker-1" in api.names(PODS))
    leader.queue._busy[JobKey("jobs", "bad")] = -1e6
    assert leader.healthy
    released = list[bool]()
    assert not leader.close(lambda: released.append(True)) and released == [True]
    count = len(api.calls)
    held.let_go.set()
    for thread in leader._threads:
        thread.join(10)
    late = [call for call in api.calls[count:] if call[0] not in ("get", "list")]
    assert len(late) <= 1, "the call that was under way, and no other"


def test_what_was_edited_while_nobody_led_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(Clock())
    for name in ("a", "b", "c", "edited"):
        api.create(JOBS, job(name))
        api.patch(JOBS, name, {"status": {"observedGeneration": 1}}, "status")
    api.edit(JOBS, "edited", {"spec": {"workers": 3}})
    leader = leader_of(api, monkeypatch)
    leader._list_all()
    assert [key.name for key in taken(leader.queue)] == ["edited", "a", "b", "c"]
    api.edit(JOBS, "b", {"spec": {"workers": 3}})
    leader._list_all()
    assert taken(leader.queue)[0] == ("jobs", "b"), "and what the watch has missed"


def test_nodes_that_cannot_be_listed_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(Clock())
    api.create(JOBS, job("good"))
    held = Held(api, lambda verb, kind, name: kind == NODES)
    monkeypatch.setattr("ferry_operator.kube.process.nodes.FIRST_SECONDS", 0.05)
    leader = leader_of(api, monkeypatch)
    leader.start()
    until(lambda: "good-worker-1" in api.names(PODS))
    assert leader.healthy and held.reached.is_set()
    held.let_go.set()
    leader.close()


# --- nodes


def listing(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, FakeApi, Stores, WorkQueue, NodeWatch]:
    clock = Clock()
    monkeypatch.setattr("ferry_operator.kube.process.nodes.time.monotonic", clock)
    api, stores, queue = FakeApi(lambda: 0.0), Stores(), WorkQueue(clock)
    api.add_node("n0")
    return clock, api, stores, queue, NodeWatch(api, stores, queue)


def test_nodes_that_could_not_be_read_for_a_moment_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, api, stores, _, nodes = listing(monkeypatch)

    def refuse(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(403, "Forbidden", "RBAC is not ready")

    api.before = refuse
    assert nodes.list() == REFUSED_SECONDS and stores.nodes.known is None
    api.before = lambda verb, kind, name: None
    assert nodes.list() is None and list(stores.nodes.known or {}) == ["n0"]


@pytest.mark.parametrize("status", [0, 429, 500, 504])
def test_nodes_stay_known_for_a_while_and_are_unknown_then(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, api, stores, _, nodes = listing(monkeypatch)
    nodes.list()

    def fail(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(status, "Slow", "no")

    api.before = fail
    clock.now += STALE_SECONDS
    assert nodes.list() == SECONDS and list(stores.nodes.known or {}) == ["n0"]
    clock.now += 1
    assert nodes.list() == SECONDS and stores.nodes.known is None, "nobody is taken for lost by what was true once"


def test_a_list_that_takes_long_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, api, _, _, nodes = listing(monkeypatch)

    def slow(verb: str, kind: Kind, name: str) -> None:
        clock.now += 7.0

    api.before = slow
    assert nodes.list() is None
    api.before, api.oldest = (lambda verb, kind, name: None), 1 << 60
    assert nodes.follow() == 140.0


def test_nodes_are_listed_once_and_watched_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, api, stores, queue, nodes = listing(monkeypatch)
    stores.of("jobs").put(
        PODS, {"metadata": {"name": "p", "uid": "p", "labels": {names.JOB: "a"}}, "spec": {"nodeName": "n0"}}
    )
    assert nodes.list() is None
    api.add_node("n1")
    api.edit(NODES, "n0", {"spec": {"unschedulable": True}})
    clock.now += STALE_SECONDS
    assert nodes.follow() is None and sorted(stores.nodes.known or {}) == ["n0", "n1"]
    assert (stores.nodes.known or {})["n0"].cordoned and queue.depth() == 1
    api.remove(NODES, "n1")
    assert nodes.follow() is None and sorted(stores.nodes.known or {}) == ["n0"]
    assert [call for call in api.calls if call[1] == NODES and call[0] == "list"] == [("list", NODES, "")]
    api.oldest = 1 << 60
    assert nodes.follow() == SECONDS and sorted(stores.nodes.known or {}) == ["n0"], "they are listed again"

    def fail(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(0, "Unreachable", "no")

    api.before = fail
    assert nodes.follow() == SECONDS and stores.nodes.known, "they were heard of a moment ago"
    clock.now += STALE_SECONDS + 1
    assert nodes.follow() == SECONDS and stores.nodes.known is None


def test_only_jobs_on_nodes_that_changed_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    _, api, stores, queue, nodes = listing(monkeypatch)
    for namespace, node in (("left", "n0"), ("right", "n1")):
        metadata = {"name": "a-driver", "uid": namespace, "resourceVersion": "1", "labels": {"ferry.dev/job": "a"}}
        stores.of(namespace).put(PODS, {"metadata": metadata, "spec": {"nodeName": node}})
    api.add_node("n1")
    nodes.list()
    assert taken(queue) == [("left", "a"), ("right", "a")]
    api.edit(NODES, "n1", {"spec": {"unschedulable": True}})
    nodes.list()
    assert taken(queue) == [("right", "a")]
    nodes.list()
    assert taken(queue) == []


# --- drivers


class Unheard(FakeLink):
    """A driver whose answers are cut."""

    asked = 0
    late = True
    path = "status"

    def status(self, url: str, secret: str) -> Any:
        self.asked += 1
        if self.path == "status":
            raise BadAnswer("its answer was not complete after 3 s", self.late)
        return super().status(url, secret)

    def submitted(self, url: str, secret: str, generation: int) -> Any:
        if self.path == "desired":
            raise BadAnswer("its answer is longer than 9 bytes", self.late)
        return super().submitted(url, secret, generation)


def test_a_driver_whose_answers_are_cut_is_put_aside_and_told_of() -> None:
    world = running()
    link = Unheard(world)
    world.operator.driver_client = link  # type: ignore[assignment]
    world.rounds(60)
    assert world.condition("Degraded")["reason"] == "DriverUnheard"
    assert world.condition("Degraded")["message"] == "its answer was not complete after 3 s"
    assert 60 / ASIDE_SECONDS_MAX <= link.asked < 15, "it is asked less and less often"
    assert len(world.pods()) == 3, "nothing is done to what runs"
    world.operator.driver_client = FakeLink(world)  # type: ignore[assignment]
    world.until(settled, 15)
    assert world.condition("Degraded")["status"] == "False"


def test_a_new_driver_is_asked_at_once() -> None:
    world = running()
    world.operator.driver_client = Unheard(world)  # type: ignore[assignment]
    world.rounds(60)
    world.driver_ends(1)
    world.operator.driver_client = FakeLink(world)  # type: ignore[assignment]
    world.until(lambda w: w.lives == 2 and w.condition("Ready")["status"] == "True", 12)


def test_a_status_without_the_plan_that_is_in_force_is_no_answer() -> None:
    """Without it, a plan would be made as if there were none."""
    world = running()
    assert world.driver is not None and world.driver.desired is not None
    number = world.driver.desired["number"]
    link = Unheard(world)
    link.path, link.late = "desired", False
    world.operator.driver_client = link  # type: ignore[assignment]
    world.operator._caches["nbq5"].answer = None
    world.rounds(20)
    assert world.driver.desired["number"] == number and world.condition("Degraded")["reason"] == "DriverUnheard"
    assert link.asked > 15, "it takes no time"


# --- Redis


def test_nobody_waits_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, asked, now = threading.Event(), threading.Event(), [0.0]

    def hang(url: str) -> None:
        asked.set()
        let_go.wait(60)
        raise OSError("it is away")

    monkeypatch.setattr(redis, "RedisConnection", hang)
    monkeypatch.setattr(redis.time, "monotonic", lambda: now[0])
    apart = redis.RedisApart("redis://:secret@redis.example:6379/0", "t")
    assert apart.problem() is None
    apart.keep("a-1", "p")
    apart.forget("a-1")
    asked.wait(10)
    now[0] += redis.LATE_SECONDS + 1
    assert apart.problem() == "Redis at redis.example:6379 does not answer within 5 s"
    let_go.set()
    until(lambda: apart.problem() == "Redis at redis.example:6379 does not answer: it is away")
    apart.close()


class OwnRedis(redis.Redis):
    """It notes what reconciles ask for."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0")
        self.kept: dict[str, str] = {}
        self.why: str | None = None

    def keep(self, run: str, password: str, clear: bool = False) -> None:
        self.kept[run] = password

    def without(self, run: str) -> str | None:
        return self.why

    def forget(self, run: str) -> None:
        del self.kept[run]


def test_each_run_has_a_user_until_its_job_is_gone() -> None:
    world = running()
    own = world.operator._redis = OwnRedis()
    world.rounds(1)
    ((run, password),) = own.kept.items()
    settings = json.loads(b64decode(world.api.objects[SECRETS, "nbq5-run"]["data"]["run.json"]))
    user = urlsplit(settings["redis"])
    assert settings["run"] == run and user.password == password and str(user.username).endswith(f".{run}")
    own.why = "the run has no Redis until 12:00 UTC: it had more than 20000 entries"
    world.rounds(1)
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "RedisWithdrawn" and own.why in degraded["message"]
    assert world.condition("Ready")["status"] == "True", "its epochs go on"
    own.why = None
    world.rounds(1)
    assert world.condition("Degraded")["status"] == "False"
    world.api.delete(JOBS, "nbq5")
    world.store.remove(JOBS, world.store.job("nbq5") or {})
    for pod in world.store.pods("nbq5"):
        world.store.remove(PODS, {"metadata": {"name": pod.name, "uid": pod.uid}})
    assert world.operator.reconcile("nbq5") is None and not own.kept


# --- what a pass costs


class Counting(FakeLink):
    """It counts the requests for the plan in force."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.asked = 0

    def submitted(self, url: str, secret: str, generation: int) -> Any:
        self.asked += 1
        return super().submitted(url, secret, generation)


def test_the_plan_in_force_is_read_once_in_the_life_of_a_driver() -> None:
    world = running()
    link = world.operator.driver_client = Counting(world)  # type: ignore[assignment]
    world.operator._caches["nbq5"].answer = None
    world.rounds(20)
    assert link.asked == 1
    world.driver_ends(1)
    world.until(lambda w: w.lives == 2 and settled(w), 30)
    count = link.asked
    world.rounds(20)
    assert count > 1 and link.asked == count
    assert world.driver is not None and world.driver.desired is not None
    world.driver.desired = {**world.driver.desired, "number": world.driver.desired["number"] + 1}
    world.rounds(2)
    assert link.asked == count + 1, "another operator has submitted another plan"


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 5.0), (100, 5.0), (400, 20.0), (1000, 50.0), (5000, 60.0)])
def test_jobs_at_rest_are_looked_at_less_often_where_they_are_many(jobs: int, seconds: float) -> None:
    world = running()
    for number in range(jobs - 1):
        world.operator.metrics.jobs.seen(JobKey("elsewhere", f"{number}"), JobSample(JobStatus(), True, 2, 0), None)
    world.rounds(20)
    assert world.operator.reconcile("nbq5") == seconds
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.rounds(1)
    assert (world.operator.reconcile("nbq5") or 0) <= 1.0, "a change in progress is followed"
    world.until(settled, 60)
    world.api.edit(JOBS, "nbq5", {"spec": {"autoscale": {"mode": "auto", "min": 3, "max": 4}}})
    world.rounds(5)
    assert world.operator.reconcile("nbq5") == 5.0, "load is measured"


def test_a_listing_asks_for_jobs_that_nothing_else_asks_for() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(JobKey("n", "due"), after=50.0)
    queue.add(JobKey("n", "busy"))
    assert queue.take() == ("n", "busy")
    for name in ("due", "busy", "ended"):
        queue.ensure(JobKey("n", name), 3.0)
    clock.now += 4
    assert taken(queue) == [("n", "ended")]
    queue.done(JobKey("n", "busy"), None)
    assert taken(queue) == []


def test_a_listing_tells_the_jobs_whose_pods_a_watch_has_missed() -> None:
    def pod(name: str, version: int, job: str) -> dict[str, Any]:
        metadata = {"name": name, "uid": name, "resourceVersion": str(version), "labels": {names.JOB: job}}
        return {"metadata": metadata, "spec": {"containers": [{"name": "x" * 10_000}]}}

    store = Store()
    for one in (pod("same", 1, "a"), pod("newer", 1, "b"), pod("gone", 1, "c"), pod("own", 9, "d")):
        store.put(PODS, one)
    before = store.uids(PODS)
    listing = [pod("same", 1, "a"), pod("newer", 2, "b"), pod("new", 3, "e"), pod("own", 8, "d")]
    assert store.sync(PODS, listing, before) == {"b", "c", "e"}
    assert "x" * 10_000 not in str(store._objects), "of a pod the store keeps what is read"


def crowded(world: World) -> World:
    """The job is one of very many."""
    for number in range(1000):
        sample = JobSample(JobStatus(phase="Running"), True, 2, 0)
        world.operator.metrics.jobs.seen(JobKey("elsewhere", f"other-{number}"), sample, None)
    return world


@pytest.mark.parametrize(("crowd", "least", "most"), [(False, 28, 32), (True, 1, 2)])
def test_counters_are_written_seldom_where_jobs_are_many(crowd: bool, least: int, most: int) -> None:
    world = crowded(running()) if crowd else running()
    world.rounds(5)
    count, epoch = writes(world, JOBS), world.status["epoch"]
    world.rounds(150)
    assert least <= writes(world, JOBS) - count <= most and world.status["epoch"] > epoch
    world.take_checkpoint(None)
    world.rounds(7)
    assert world.status["checkpoint"]["number"] == 1, "somebody may wait for it"


def test_a_first_epoch_is_written_at_once() -> None:
    world = crowded(World())
    world.api.create(JOBS, job())
    world.until(lambda w: w.epoch >= 0)
    world.rounds(1)
    assert world.status["epoch"] >= 0


def test_a_crash_is_judged_by_the_last_epoch_that_was_heard_of() -> None:
    """What is written may be a minute old, and would tell of a driver that has never worked."""
    world = crowded(running())
    world.rounds(5)
    world.no_records = True
    world.rounds(70)
    world.driver_ends(1)
    world.until(lambda w: w.lives == 2 and settled(w), 30)
    world.no_records = False
    world.rounds(10)
    world.driver_ends(1)
    world.until(lambda w: w.lives == 3, 30)
    assert world.pod("nbq5-driver")["metadata"]["annotations"][names.FAILURES] == "1"


def test_a_spec_is_read_again_only_when_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    world, count = running(), [0]
    world.rounds(5)

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return real(*arguments)

    real = effective_spec.in_force
    monkeypatch.setattr(effective_spec, "in_force", counted)
    version = world.store.job("nbq5")
    world.rounds(50)
    assert world.store.job("nbq5") is not version and count[0] == 0, "counters were written"
    edits: list[dict[str, Any]] = [
        {"metadata": {"annotations": {"ferry.dev/x": "1"}}},
        {"metadata": {"labels": {"x": "1"}}},
        {"status": {"memory": {"refused": {"revision": "x", "why": "y"}}}},
        {"spec": {"workers": 3}},
    ]
    for edit in edits:
        count[0] = 0
        world.api.edit(JOBS, "nbq5", edit)
        world.round()
        assert count[0] >= 1, edit
    world.until(lambda w: "nbq5-worker-2" in w.pods(), 5)
