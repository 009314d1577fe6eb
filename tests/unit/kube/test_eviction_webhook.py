"""The webhook for evictions: what it answers, what it notes, and whom the API server trusts."""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS, PODS, WEBHOOKS, ApiError, Kind
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.eviction_webhook import PATH, EvictionWebhook, path_of
from tests.unit.kube.fakes.fake_world import World, settled
from tests.unit.kube.test_passes import running

HOST = "ferry-evictions.jobs.svc"


@pytest.fixture
def world() -> World:
    return running()


def webhook_of(world: World, keys: dict[int, str], leads: bool = True) -> EvictionWebhook:
    world.api.objects.setdefault(
        (WEBHOOKS, "evictions"), {"metadata": {"name": "evictions"}, "webhooks": [{"clientConfig": {"service": {}}}]}
    )
    return EvictionWebhook(world.api, "evictions", HOST, lambda: keys, lambda: leads, 0, lambda: world.now)


@pytest.fixture
def webhook(world: World) -> Iterator[EvictionWebhook]:
    one = webhook_of(world, {1: "first", 2: "second"})
    one.register()
    one.start()
    yield one
    one.close()


def review(pod: str, **request: Any) -> Doc:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u1", "namespace": "jobs", "name": pod, **request},
    }


def allowed(webhook: EvictionWebhook, pod: str, **request: Any) -> bool:
    response = webhook.answer(review(pod, **request))["response"]
    assert response["uid"] == "u1"
    if not response["allowed"]:
        assert response["status"]["code"] == 429 and pod in response["status"]["message"], "clients ask again"
    return bool(response["allowed"])


def is_noted(world: World, pod: str) -> bool:
    return names.EVICTION in world.pod(pod)["metadata"]["annotations"]


def test_a_worker_is_emptied_at_the_first_request_and_goes_at_a_later_one(
    world: World, webhook: EvictionWebhook
) -> None:
    assert not allowed(webhook, "nbq5-worker-1") and is_noted(world, "nbq5-worker-1")
    for _ in range(60):
        if allowed(webhook, "nbq5-worker-1"):
            break
        world.rounds(5)
    assert world.used() == [0, 2], "it holds nothing"
    world.end("nbq5-worker-1")
    world.until(lambda w: settled(w) and w.used() == [0, 1])
    assert not is_noted(world, "nbq5-worker-1") and not allowed(webhook, "nbq5-worker-1")


def test_a_driver_goes_once_the_next_one_has_a_place(world: World, webhook: EvictionWebhook) -> None:
    assert not allowed(webhook, "nbq5-driver")
    world.until(lambda w: allowed(webhook, "nbq5-driver"))
    assert any("placeholder" in name for name in world.pods())


def words(webhook: EvictionWebhook, pod: str) -> str:
    return str(webhook.answer(review(pod))["response"]["status"]["message"])


def degraded(world: World) -> Doc:
    return next(c for c in world.status["conditions"] if c["type"] == "Degraded")


def test_a_paused_job_says_why_its_pods_do_not_leave(world: World, webhook: EvictionWebhook) -> None:
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}})
    world.rounds(3)
    assert degraded(world)["status"] == "False", "no pod is to leave"
    assert "nbq5-worker-1: the job is paused" in words(webhook, "nbq5-worker-1")
    world.rounds(3)
    assert degraded(world)["reason"] == "Held" and "nbq5-worker-1: the job is paused" in degraded(world)["message"]
    assert world.used() == [0, 1]
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: None}}})
    assert "is being emptied" in words(webhook, "nbq5-worker-1")
    world.until(lambda w: allowed(webhook, "nbq5-worker-1"))
    assert degraded(world)["reason"] != "Held"


def test_a_failed_job_says_why_its_workers_do_not_leave(world: World, webhook: EvictionWebhook) -> None:
    world.driver_ends(3, "nobody holds virtual node 3")
    world.until(lambda w: w.status["phase"] == "Failed")
    assert "nbq5-worker-1: the job has failed" in words(webhook, "nbq5-worker-1")
    world.rounds(3)
    assert "nbq5-worker-1: the job has failed" in degraded(world)["message"]


def test_a_dry_run_notes_nothing(world: World, webhook: EvictionWebhook) -> None:
    assert not allowed(webhook, "nbq5-worker-0", dryRun=True) and not is_noted(world, "nbq5-worker-0")


@pytest.mark.parametrize("pod", ["nbq5-worker-7", "other-worker-0", "redis-0", "nbq5-placeholder-1"])
def test_other_pods_are_no_business_of_the_webhook(webhook: EvictionWebhook, pod: str) -> None:
    assert allowed(webhook, pod)


@pytest.mark.parametrize("change", [{"phase": "Pending"}, {"phase": "Failed"}])
def test_a_pod_that_does_not_run_may_go(world: World, webhook: EvictionWebhook, change: Doc) -> None:
    world.api.set_status(PODS, "nbq5-worker-1", **change)
    assert allowed(webhook, "nbq5-worker-1")


def test_a_request_is_noted_once(world: World, webhook: EvictionWebhook) -> None:
    allowed(webhook, "nbq5-worker-1")
    noted = world.pod("nbq5-worker-1")["metadata"]["annotations"][names.EVICTION]
    world.now += 10
    allowed(webhook, "nbq5-worker-1")
    assert world.pod("nbq5-worker-1")["metadata"]["annotations"][names.EVICTION] == noted


def post(webhook: EvictionWebhook, body: bytes, path: str = "") -> tuple[int, bytes]:
    """A request as by the API server: it trusts the authority that the configuration has, and asks for the service's name."""
    client = webhook._api.get(WEBHOOKS, "evictions")["webhooks"][0]["clientConfig"]
    context, path = (
        ssl.create_default_context(cadata=b64decode(client["caBundle"]).decode()),
        path or client["service"]["path"],
    )
    with socket.create_connection(("localhost", webhook.port), 5) as plain:
        with context.wrap_socket(plain, server_hostname=HOST) as connection:
            head = f"POST {path} HTTP/1.0\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head_, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_.split()[1]), rest


def test_the_api_server_trusts_the_webhook_by_its_name(webhook: EvictionWebhook) -> None:
    code, body = post(webhook, json.dumps(review("nbq5-worker-1")).encode())
    assert code == 200 and json.loads(body)["response"]["allowed"] is False


def test_another_replica_that_knows_the_first_key_alone_is_trusted_too(world: World, webhook: EvictionWebhook) -> None:
    other = webhook_of(world, {1: "first"}, leads=False)
    other.register()
    other.start()
    assert post(other, json.dumps(review("nbq5-worker-1")).encode())[0] == 200
    other.close()
    stranger = webhook_of(world, {1: "another"}, leads=False)
    stranger.register()
    stranger.start()
    with pytest.raises(ssl.SSLCertVerificationError):
        post(stranger, b"{}")
    stranger.close()


@pytest.mark.parametrize("path", ["/evictions", PATH, PATH + "0" * 48, path_of("another"), path_of("")])
def test_a_pod_that_does_not_know_the_path_empties_no_worker(world: World, webhook: EvictionWebhook, path: str) -> None:
    """Every pod of the cluster reaches the port, and may name a pod of any namespace."""
    assert post(webhook, json.dumps(review("nbq5-worker-1")).encode(), path)[0] == 404
    assert not is_noted(world, "nbq5-worker-1")


def test_an_address_that_an_administrator_has_put_in_stays(world: World) -> None:
    client = {"url": f"https://outside.example{path_of('first')}"}
    world.api.objects[WEBHOOKS, "evictions"] = {
        "metadata": {"name": "evictions"},
        "webhooks": [{"clientConfig": {**client}}],
    }
    other = webhook_of(world, {1: "first"})
    other.register()
    other.start()
    now = world.api.get(WEBHOOKS, "evictions")["webhooks"][0]["clientConfig"]
    assert now.pop("caBundle") and now == client
    assert post(other, json.dumps(review("nbq5-worker-1")).encode(), path_of("first"))[0] == 200
    other.close()


@pytest.mark.parametrize(("body", "path", "code"), [
    (b"", "", 404), (b"{}", "/", 404), (b"no", "", 400), (b"[]", "", 400), (b'{"request": {}}', "", 400),
])  # fmt: skip
def test_nonsense_has_an_answer(webhook: EvictionWebhook, body: bytes, path: str, code: int) -> None:
    assert post(webhook, body, path)[0] == code


def test_without_the_api_server_the_budget_decides(world: World, webhook: EvictionWebhook) -> None:
    def fail(verb: str, kind: Kind, name: str) -> None:
        if kind == PODS:
            raise ApiError(500, "InternalError", "etcd is away")

    world.api.before = fail
    assert post(webhook, json.dumps(review("nbq5-worker-1")).encode())[0] == 500


def test_a_silent_client_delays_nobody(webhook: EvictionWebhook) -> None:
    with socket.create_connection(("localhost", webhook.port)):
        assert post(webhook, json.dumps(review("nbq5-worker-1")).encode())[0] == 200


TAINTED = {"metadata": {"name": "n0"}, "spec": {"taints": [{"key": "pool", "value": "old"}]}}


@pytest.mark.parametrize(("leaving", "cordoned"), [
    ((), False), (("pool",), True), (("pool=old",), True), (("pool=new",), False), (("old",), False),
])  # fmt: skip
def test_a_taint_of_the_installation_counts_as_a_cordon(leaving: tuple[str, ...], cordoned: bool) -> None:
    assert facts.node(TAINTED, leaving).cordoned is cordoned
    notice = {
        "spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn", "value": "1", "effect": "NoSchedule"}]}
    }
    assert facts.node({**TAINTED, **notice}).cordoned
