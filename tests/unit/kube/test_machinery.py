"""Lease, queue, store, links: the machinery around the passes, with clocks that stand still."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import prometheus_client as prom
import pytest

from ferry.contract import places
from ferry.contract.errors import Unreachable
from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry.contract.tickets import derived
from ferry.system.monitoring import MonitoringServer
from ferry_operator.control import decide as d
from ferry_operator.control.driver_client import BadAnswer, DriverClient, PlacementRefused, from_wire, to_wire
from ferry_operator.control.observed import Basis
from ferry_operator.job.status import JobStatus
from ferry_operator.kube.__main__ import OperatorProcess, highest_token, release_of
from ferry_operator.kube.api import names, redis
from ferry_operator.kube.api.client import Fenced
from ferry_operator.kube.api.lease import EXPIRY_SECONDS, HELD_SECONDS, Lease
from ferry_operator.kube.api.names import Doc, JobKey
from ferry_operator.kube.api.port import JOBS, LEASES, PODS, ApiError, Deposed
from ferry_operator.kube.metrics import JobSample, Metrics
from ferry_operator.kube.process.leader import Leader
from ferry_operator.kube.process.queue import BACK_OFF_SECONDS_MAX, WorkQueue
from ferry_operator.kube.process.watch import changed
from ferry_operator.kube.report import events
from ferry_operator.kube.store import Store, Stores
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, World, job, settled


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- the Lease


def two() -> tuple[Clock, FakeApi, Lease, Lease]:
    clock = Clock()
    api = FakeApi(clock)
    return (
        clock,
        api,
        *(
            Lease(api, "ferry-operator", name, lambda: highest_token(api), clock, lambda: 1_800_000_000.0 + clock())
            for name in ("a", "b")
        ),
    )  # type: ignore[return-value]


def test_one_holds_it_and_the_other_waits() -> None:
    clock, _, a, b = two()
    assert a.acquire_or_renew() and a.held and not b.acquire_or_renew() and not b.held
    for _ in range(10):
        clock.now += 2
        assert a.acquire_or_renew() and not b.acquire_or_renew()


def test_a_silent_holder_counts_itself_out_before_it_is_replaced() -> None:
    clock, _, a, b = two()
    assert a.acquire_or_renew() and not b.acquire_or_renew()
    clock.now += HELD_SECONDS
    assert not a.held and not b.acquire_or_renew()
    clock.now += EXPIRY_SECONDS - HELD_SECONDS
    assert b.acquire_or_renew() and b.held and b.token == a.token + 1
    assert not a.acquire_or_renew() and not a.held


def test_a_waiting_one_goes_by_its_own_clock() -> None:
    clock, _, a, b = two()
    assert a.acquire_or_renew()
    clock.now += 1000  # the record is old, but b sees it for the first time
    assert not b.acquire_or_renew()
    clock.now += EXPIRY_SECONDS
    assert b.acquire_or_renew()


def test_an_end_hands_over_at_once_and_the_token_rises() -> None:
    _, _, a, b = two()
    assert a.acquire_or_renew()
    a.release()
    assert not a.held and b.acquire_or_renew() and b.token == a.token + 1


def test_of_two_that_reach_for_it_one_has_it() -> None:
    _, api, a, b = two()
    assert a.acquire_or_renew()
    a.release()
    seen: list[bool] = []

    def other(verb: str, kind: Any, name: str) -> None:
        if verb == "update" and not seen:
            seen.append(True)
            seen.append(b.acquire_or_renew())

    api.before = other
    assert not a.acquire_or_renew() and seen == [True, True] and b.held and not a.held


def test_a_lease_that_was_deleted_still_counts_up() -> None:
    _, api, a, b = two()
    assert a.acquire_or_renew()
    api.remove(LEASES, "ferry-operator")
    assert b.acquire_or_renew() and b.token >= a.token and b.token >= 30_000_000
    assert not a.acquire_or_renew()


@pytest.mark.parametrize("where", ["job", "pod"])
def test_a_lease_that_was_deleted_counts_up_from_what_is_written_on_objects(where: str) -> None:
    """Whatever clocks say: a driver takes no plan with a lower token."""
    _, api, a, _ = two()
    api.create(JOBS, job())
    if where == "job":
        api.set_status(JOBS, "nbq5", token=77_000_000)
    else:
        metadata = {"name": "nbq5-driver", "labels": {names.MANAGED: names.MANAGER}}
        api.create(PODS, {"metadata": {**metadata, "annotations": {names.TOKEN: "77000000"}}})
    assert a.acquire_or_renew() and a.token == 77_000_001


def test_an_api_server_that_is_away_is_waited_for() -> None:
    clock, api, a, _ = two()
    assert a.acquire_or_renew()

    def away(verb: str, kind: Any, name: str) -> None:
        raise ApiError(0, "Unreachable", "no")

    api.before = away
    clock.now += 3
    with pytest.raises(ApiError):
        a.acquire_or_renew()
    assert a.held, "the other one waits longer than that"
    clock.now += 4
    assert not a.held


def test_nothing_is_written_without_the_lease() -> None:
    api = FakeApi(Clock())
    held = [True]
    fenced = Fenced(api, lambda: held[0])
    fenced.create(JOBS, job())
    held[0] = False
    for write in (
        lambda: fenced.create(JOBS, job("b")),
        lambda: fenced.patch(JOBS, "nbq5", {}),
        lambda: fenced.replace(JOBS, "nbq5", job()),
        lambda: fenced.json_patch(JOBS, "nbq5", []),
        lambda: fenced.delete(JOBS, "nbq5"),
    ):
        with pytest.raises(Deposed):
            write()  # type: ignore[no-untyped-call]
    assert fenced.get(JOBS, "nbq5") and api.names(JOBS) == ["nbq5"]


# --- the queue


def test_a_name_is_worked_on_once_at_a_time_and_comes_again() -> None:
    queue = WorkQueue(Clock())
    queue.add("a")
    queue.add("a")
    assert queue.take() == "a" and queue.depth() == 0
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b" and queue.depth() == 0
    queue.done("a", None)
    assert queue.depth() == 1 and queue.take() == "a"


def test_failures_wait_longer_and_longer_and_success_forgets_them() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    waits = []
    queue.add("a")
    for _ in range(10):
        assert queue.take() == "a"
        queue.add("a")  # what happens meanwhile does not make it sooner
        queue.failed("a")
        began = clock.now
        while queue.depth() == 0:
            clock.now += 0.5
        waits.append(clock.now - began)
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0] and waits[-1] == BACK_OFF_SECONDS_MAX
    queue.take()
    queue.done("a", 0.0)
    queue.take()
    queue.failed("a")
    clock.now += 0.5
    assert queue.depth() == 1


def test_the_sooner_of_two_times_counts() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add("a", 30.0)
    queue.add("a", 5.0)
    queue.add("a", 60.0)
    clock.now += 5
    assert queue.depth() == 1
    clock.now += 7
    assert queue.age() == 7.0


def test_closing_lets_everybody_go() -> None:
    queue = WorkQueue()
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda: found.append(queue.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(5)
    assert found == [None, None, None]


# --- the store


def pod(name: str, uid: str, version: int) -> Doc:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version), "labels": {"ferry.dev/job": "a"}}}


def test_the_newer_version_counts_and_the_dead_stay_dead() -> None:
    store = Store()
    store.put(PODS, pod("p", "1", 10))
    store.put(PODS, pod("p", "1", 9))
    assert store.pods("a")[0].version == "10"
    store.remove(PODS, pod("p", "1", 11))
    store.put(PODS, pod("p", "1", 10))  # a late event, or an old listing
    assert store.pods("a") == ()
    store.put(PODS, pod("p", "2", 12))
    store.remove(PODS, pod("p", "1", 11))
    assert store.pods("a")[0].uid == "2"


def test_a_listing_ends_what_is_not_in_it_but_not_what_came_meanwhile() -> None:
    store = Store()
    store.put(PODS, pod("old", "1", 1))
    before = store.uids(PODS)
    store.put(PODS, pod("new", "2", 5))
    store.sync(PODS, [], before)
    assert [one.name for one in store.pods("a")] == ["new"]


def test_jobs_that_only_pods_are_left_of_are_known() -> None:
    store = Store()
    store.put(PODS, pod("p", "1", 1))
    assert store.jobs() == ["a"] and store.job("a") is None


def test_jobs_of_the_same_name_in_two_namespaces_are_two_jobs() -> None:
    stores = Stores()
    stores.of("left").put(PODS, pod("p", "1", 1))
    stores.of("right").put(PODS, pod("p", "2", 2))
    assert [stores.of(namespace).pods("a")[0].uid for namespace in ("left", "right")] == ["1", "2"]
    assert stores.jobs() == [("left", "a"), ("right", "a")]
    stores.remove("left")
    assert stores.jobs() == [("right", "a")] and stores.of("left").pods("a") == ()


def test_only_what_others_write_asks_for_a_pass() -> None:
    one = {**job(), "metadata": {**job()["metadata"], "generation": 1, "uid": "u"}}
    assert changed(None, one) and not changed(one, {**one, "status": {"phase": "Running"}})
    assert changed(one, {**one, "metadata": {**one["metadata"], "generation": 2}})
    assert changed(one, {**one, "metadata": {**one["metadata"], "annotations": {"ferry.dev/paused": "true"}}})


# --- driver and Redis


FIRST, SECOND = InstanceId("0.0"), InstanceId("1.0")
SUBMIT = d.SubmitDesired(Plan(3, ((FIRST, SECOND),)), 2, Basis((FIRST, SECOND), 1, ((0, FIRST),)))


def test_what_was_submitted_comes_back_from_the_driver() -> None:
    found = from_wire(json.loads(json.dumps(to_wire(SUBMIT, 9))), 2)
    assert found is not None and (found.generation, found.basis) == (2, SUBMIT.basis)
    assert (found.plan.number, found.plan.placements) == (3, SUBMIT.plan.placements)
    assert from_wire({"number": 1, "placements": [], "basis": None}, 2) is None


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any], list[int]]]:
    """A driver that answers what the test says: (URL, requests, codes)."""
    requests: list[Any] = []
    codes = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            requests.append((self.command, self.path, self.headers["Authorization"], self.rfile.read(length)))
            body = json.dumps(to_wire(SUBMIT, 1)).encode() if codes[0] == 200 else b"<html>"
            self.send_response(codes[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}", requests, codes
    http.shutdown()
    http.server_close()


def test_a_driver_is_asked_with_what_is_derived_from_its_secret(server: tuple[str, list[Any], list[int]]) -> None:
    url, requests, codes = server
    link = DriverClient()
    link.submit(url, "s", SUBMIT, 9)
    assert link.stop(url, "s")
    found = link.submitted(url, "s", 2)
    assert found is not None and found.plan.number == 3
    assert [(r[0], r[1]) for r in requests] == [("PUT", "/desired"), ("POST", "/stop"), ("GET", "/desired")]
    assert {r[2] for r in requests} == {f"Bearer {derived('s', 'control')}"}
    assert json.loads(requests[0][3])["token"] == 9
    with pytest.raises(BadAnswer, match="has a wrong form: job: Field required"):
        link.status(url, "s")
    codes[0] = 409
    with pytest.raises(PlacementRefused, match="refuses plan 3 with 409: <html>"):
        link.submit(url, "s", SUBMIT, 1)
    assert link.submitted(url, "s", 2) is None
    link.close()


def test_a_driver_that_is_not_there_is_no_error() -> None:
    link = DriverClient()
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert link.status(nowhere, "s") is None and link.submitted(nowhere, "s", 1) is None
    with pytest.raises(Unreachable):
        link.submit(nowhere, "s", SUBMIT, 1)
    assert not link.stop(nowhere, "s")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def fake_redis() -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """(address, lines that came, answers to give)."""
    came: list[bytes] = []
    answers: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line, line.makefile("rb") as reader:
                while head := reader.readline():
                    words = []
                    for _ in range(int(head[1:])):
                        reader.readline()
                        words.append(reader.readline().strip())
                    came.append(b" ".join(words))
                    line.sendall(answers.pop(0) if answers else b"+OK\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", came, answers
    listener.close()


def test_redis_is_asked_with_its_password(fake_redis: tuple[str, list[bytes], list[bytes]]) -> None:
    where, came, answers = fake_redis
    assert redis.problem(f"redis://:p%40ss@{where}/2") is None
    assert came == [b"AUTH p@ss", b"SELECT 2", b"PING"]
    answers += [b"-WRONGPASS invalid username-password pair\r\n"]
    said = redis.problem(f"redis://user:bad@{where}/0")
    assert said is not None and "WRONGPASS" in said and "bad" not in said and where in said
    assert came[-1] == b"AUTH user bad"


def test_redis_forgets_a_run(fake_redis: tuple[str, list[bytes], list[bytes]]) -> None:
    where, came, _ = fake_redis
    assert redis.forget(f"redis://{where}/0", "a-1") is None
    keys = {
        name("a-1")
        for name in vars(places).values()
        if getattr(name, "__annotations__", {}) == {"run": "str", "return": "str"} and name is not places.prefix
    }
    assert set(came[0].decode().split()) == {"DEL", *keys} and len(keys) >= 7


def test_a_redis_that_is_not_there_is_told() -> None:
    said = redis.problem(f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert said is not None and "does not answer" in said and "secret" not in said
    said = redis.problem("redis://[::1]:1/0")
    assert said is not None and said.startswith("Redis at [::1]:1 does not answer")


# --- events, metrics, the process


def test_an_event_that_says_the_same_has_the_same_name() -> None:
    one = {"metadata": {"name": "a", "namespace": "n", "uid": "u"}}
    first = events.event(one, events.Notice("Normal", "Ready", "x"), 1, 1000.0)
    again = events.event(one, events.Notice("Normal", "Ready", "x"), 2, 2000.0)
    other = events.event(one, events.Notice("Normal", "Ready", "y"), 1, 1000.0)
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert first["involvedObject"]["uid"] == "u" and len(first["metadata"]["name"]) < 253


def test_health_and_metrics_over_http() -> None:
    metrics, problem = Metrics(), [None, "stuck"]
    metrics.gauge("queue_depth", "Jobs", lambda: 3.0)
    metrics.count_call("patch", "pods", "200")
    server = MonitoringServer(metrics.registry, ("", 0), "token", lambda: problem[0])
    url = f"http://127.0.0.1:{server.port}"

    def shown(token: str) -> urllib.request.Request:
        return urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})

    with urllib.request.urlopen(shown("token")) as answer:
        text = answer.read().decode()
    assert "ferry_operator_queue_depth 3.0" in text and 'code="200",resource="pods",verb="patch"' in text
    assert urllib.request.urlopen(f"{url}/healthz").read() == b"ok"
    for request in (f"{url}/metrics", shown(""), shown("tokens")):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request)
    problem.pop(0)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{url}/healthz")
    server.close()


def test_the_operator_says_how_its_jobs_are() -> None:
    world = World()
    world.api.create(JOBS, job())
    metrics = world.operator.metrics

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"ferry_streamjob_{name}", {"namespace": "jobs", "streamjob": "nbq5", **labels}
        )

    assert value("phase", phase="Running") is None, "nothing is known yet"
    world.round()
    assert (
        value("condition", type="Ready", status="False") == 1 and value("condition", type="Ready", status="True") == 0
    )
    world.until(settled)
    world.rounds(3)
    assert value("condition", type="Ready", status="True") == 1 and value("phase", phase="Running") == 1
    assert value("worker_pods") == 2 and value("spec_in_force") == 1
    assert (value("last_handover_seconds") or 0) > 0
    world.driver_ends(3, "nobody holds virtual node 3")
    world.api.edit(JOBS, "nbq5", {"spec": {"epoch": {"interval": "soon"}}})
    world.rounds(3)
    assert value("phase", phase="Failed") == 1 and value("spec_in_force") == 0, "the driver says nothing any more"
    world.api.remove(JOBS, "nbq5")
    world.rounds(3)
    assert value("phase", phase="Failed") is None
    assert b"ferry_streamjob_phase" in prom.generate_latest(metrics.registry)


def test_an_operator_that_leads_no_more_says_nothing_of_jobs() -> None:
    """Another one does, and a job would be there twice, once as it was."""
    metrics = Metrics()
    leader = Leader(FakeApi(Clock()), RELEASE, 1, lambda: True, metrics)
    metrics.jobs.seen(JobKey("jobs", "nbq5"), JobSample(JobStatus(phase="Running"), True, 2, 0), 1.5)
    assert b"nbq5" in prom.generate_latest(metrics.registry)
    assert leader.close() and b"nbq5" not in prom.generate_latest(metrics.registry)


def test_without_a_token_there_are_no_metrics() -> None:
    server = MonitoringServer(Metrics().registry, ("", 0), None, lambda: None)
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers={"Authorization": "Bearer "})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request)
    server.close()


def test_what_the_environment_says() -> None:
    release = release_of(
        {"FERRY_REDIS_URL": "redis://r:1/0", "FERRY_REDIS_PASSWORD": "p", "FERRY_READ_NODES": "false"}, "n"
    )
    assert release.redis == "redis://:p@r:1/0" and release.key == "p" and not release.read_nodes
    assert release.key_secret is None and release_of({"FERRY_KEY_SECRET": "k"}, "n").key_secret == "k"
    assert [release_of(e, "n").user for e in ({}, {"FERRY_USER": "7"}, {"FERRY_USER": ""})] == [10001, 7, None]
    assert release_of({}, "n").read_nodes and release_of({}, "n").service_account is None


@pytest.mark.parametrize(
    ("held", "token", "hang", "well", "why"),
    [
        (True, 7, None, True, ""),
        (False, 7, None, True, "lost"),
        (True, 8, None, True, "created again"),
        (True, 7, None, False, "cannot list"),
        (True, 7, "a watch is silent", False, "a watch is silent: this process has to be started again"),
    ],
)
def test_a_leader_steps_back_when_it_may_not_or_cannot_go_on(
    held: bool, token: int, hang: str | None, well: bool, why: str
) -> None:
    process: Any = object.__new__(OperatorProcess)
    process._lease = SimpleNamespace(held=held, token=token)
    found = process._deposed(cast(Leader, SimpleNamespace(token=7, healthy=well, hang=hang)))
    assert (why in found) if why else (found is None)
