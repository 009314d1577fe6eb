"""What carries the links: a job that cannot have RDMA says so and what runs goes on; one that falls back tells it once."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract import rings
from ferry.contract.status import Links
from ferry_operator.job import spec
from ferry_operator.job.models import Spec
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS
from ferry_operator.kube.report.transport import in_small_pages, pinned, transport_status
from tests.unit.kube.fakes.fake_world import World, job, settled, writes

SHARED = {"mode": "shared", "resource": "rdma/hca"}
INSISTS: Doc = {"transport": {"mode": "rdma", "rdma": SHARED}}
EXPECTS: Doc = {"transport": {"rdma": SHARED}}
THERE_IS_NONE = "no RDMA device can be used: there is none"


def spec_of(workers: int = 2, instances: int = 1, mode: str = "auto", **rdma: Any) -> Spec:
    transport = {"mode": mode, "rdma": {**SHARED, **rdma}}
    return spec.check(job(workers=workers, instancesPerWorker=instances, transport=transport)).spec


def world_with(**fields: Any) -> World:
    world = World()
    world.api.create(JOBS, job(**fields))
    return world


def told(world: World, reason: str) -> list[str]:
    events = [event for (kind, _), event in world.api.objects.items() if kind == EVENTS]
    return [event["message"] for event in events if event["reason"] == reason]


# --- nothing that may be used


def test_a_new_job_that_insists_on_what_is_not_there_says_so() -> None:
    world = world_with(**INSISTS)
    world.lacks_device = "rdma/hca"
    world.until(lambda w: w.condition("Degraded").get("reason") == "TransportUnavailable", 60)
    for kind, status in (("Ready", "False"), ("Degraded", "True")):
        found = world.condition(kind)
        assert (found["status"], found["reason"]) == (status, "TransportUnavailable")
        assert "no transport: there is none" in found["message"]
    assert any("nbq5-worker-0: no transport" in message for message in told(world, "TransportUnavailable"))


def test_what_runs_goes_on_while_a_new_spec_cannot_have_its_device() -> None:
    world = world_with()
    world.until(settled)
    world.rounds(5)
    world.lacks_device = "rdma/hca"
    world.api.edit(JOBS, "nbq5", {"spec": {**INSISTS, "failure": {"progressDeadline": "2m"}}})
    world.until(lambda w: w.condition("Degraded").get("reason") == "TransportUnavailable", 60)
    assert world.condition("Ready")["status"] == "True" and world.used() == [0, 1] and world.lives == 1
    world.rounds(130)
    assert world.condition("Degraded")["reason"] == "SpecRefused"
    assert "there is none" in world.condition("Degraded")["message"]
    assert world.pods() == ["nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"] and world.lives == 1


# --- links that are not what is expected


def test_a_job_without_rdma_has_nothing_to_tell() -> None:
    world = world_with()
    world.links = Links(0, 2)
    world.until(settled)
    world.rounds(5)
    assert world.status["transport"] == {"kind": "tcp"}
    assert not any(told(world, reason) for reason in ("TransportFallback", "TransportRestored", "PinnedMemory"))


def test_a_fallback_is_in_the_status_and_told_once() -> None:
    world = world_with(**EXPECTS)
    world.links = Links(2, 0)
    world.until(settled)
    world.rounds(10)
    assert world.status["transport"] == {"kind": "rdma"} and not told(world, "TransportFallback")
    world.links = Links(1, 1, "the peer has no RDMA")
    world.rounds(10)
    assert world.status["transport"] == {"kind": "mixed", "reason": "the peer has no RDMA"}
    before = writes(world, EVENTS)
    world.rounds(20)
    assert writes(world, EVENTS) == before, "once"
    world.links = Links(0, 2, THERE_IS_NONE)
    world.rounds(10)
    said = told(world, "TransportFallback")
    assert said == [
        "links are mixed although RDMA is expected: the peer has no RDMA",
        f"links are tcp although RDMA is expected: {THERE_IS_NONE}",
    ]
    assert world.condition("Degraded")["status"] == "False", "auto may do that"
    world.links = Links(2, 0)
    world.rounds(10)
    assert told(world, "TransportRestored") == ["all links are RDMA"] and world.status["transport"] == {"kind": "rdma"}


def test_a_job_that_gives_up_rdma_is_not_told_that_it_is_back() -> None:
    world = world_with(**EXPECTS)
    world.links = Links(0, 2, THERE_IS_NONE)
    world.until(settled)
    world.links = Links(0, 2)
    world.rounds(10)
    assert world.status["transport"] == {"kind": "tcp"} and not told(world, "TransportRestored")


@pytest.mark.parametrize(
    ("links", "kind", "reason"),
    [
        (Links(0, 0), None, None),
        (Links(0, 4), "tcp", None),
        (Links(4, 0), "rdma", None),
        (Links(1, 3), "mixed", None),
        (Links(0, 0, "x"), "tcp", "x"),
        (Links(1, 3, "x" * 5000), "mixed", "x" * 1024),
    ],
)
def test_what_status_says(links: Links, kind: str | None, reason: str | None) -> None:
    found = transport_status(links, spec.check(job()).spec)
    assert (found.kind if found else None, found.reason if found else None) == (kind, reason)


# --- what rings pin


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        pytest.param(spec.check(job()).spec, None, id="no RDMA"),
        pytest.param(spec_of(5), None, id="the defaults hold five links"),
        pytest.param(
            spec_of(6),
            ["which is 5 of the 6 links", "the others are TCP", "use 7 slots", "or allow 6340608"],
            id="one more",
        ),
        pytest.param(spec_of(6, mode="rdma"), ["the others cannot open"], id="and none may be TCP"),
        pytest.param(spec_of(6, slots=7), None, id="smaller rings"),
        pytest.param(spec_of(6, pinned="7Mi"), None, id="more is allowed"),
        pytest.param(spec_of(2, instances=4), ["5 of the 11 links", "(b) set LimitMEMLOCK"], id="instances count"),
        pytest.param(
            spec_of(3, lend="1Mi"), ["which is 2 of the 3 links", "2105344 bytes each"], id="so does what is lent"
        ),
        pytest.param(spec_of(3, lend="960Ki"), None, id="a little less is lent"),
        pytest.param(
            spec_of(9, slots=1, lend="1Mi", pinned="16Mi"),
            [
                "the nodes need a higher limit of locked memory",
                "9 links of 1 x 65536 bytes that lend 1048576 bytes",
                "(a) lend less than 1048576 bytes;",
            ],
            id="lent, allowed by the job, and not by default",
        ),
        pytest.param(
            spec_of(8, pinned="16Mi"),
            [
                "the nodes need a higher limit of locked memory than the default: ",
                "(a) use",
                "(b) set LimitMEMLOCK",
                "(c) run the sidecar as user 0",
            ],
            id="allowed by the job, and not by default",
        ),
    ],
)
def test_more_memory_than_is_allowed_is_told_with_what_to_do(one: Spec, parts: list[str] | None) -> None:
    text = pinned(one)
    assert (text is None) == (parts is None), text
    assert all(part in (text or "") for part in parts or ()), text


def test_the_memory_of_a_job_is_told_when_it_changes() -> None:
    world = world_with(**EXPECTS)
    world.until(settled)
    assert "memory" not in world.status.get("transport", {})
    small = {"rdma": {**SHARED, "pinned": f"{rings.link_bytes(8, 65536)}"}}
    world.api.edit(JOBS, "nbq5", {"spec": {"transport": small}})
    world.until(lambda w: "memory" in w.status.get("transport", {}))
    world.rounds(10)
    (message,) = told(world, "PinnedMemory")
    assert message == world.status["transport"]["memory"] and "1 of the 2 links" in message


def test_fewer_huge_pages_than_the_rings_need_are_in_the_status() -> None:
    def with_pages(pages: str, instances: int = 1, **rdma: Any) -> Spec:
        section = {"sidecar": {"hugePages": pages}}
        transport = {"rdma": {**SHARED, **rdma}}
        return spec.check(job(instancesPerWorker=instances, transport=transport, kubernetes=section)).spec

    assert in_small_pages(with_pages("0")) is None, "none are asked for"
    assert in_small_pages(with_pages("4Mi")) is None
    few = in_small_pages(with_pages("4Mi", instances=2)) or ""
    assert "5 links of each instance" in few and "hugePages to 12Mi" in few
    assert in_small_pages(with_pages("12Mi", instances=2)) is None
    assert in_small_pages(with_pages("2Mi", mode="off", resource=None)) is None
    status = transport_status(Links(2, 0), with_pages("2Mi"))
    assert status is not None and "set kubernetes.sidecar.hugePages to 4Mi" in str(status.memory)


def test_rings_that_found_no_huge_pages_are_in_the_status_and_told_once() -> None:
    world = world_with(transport={"rdma": SHARED}, kubernetes={"sidecar": {"hugePages": "4Mi"}})
    world.links = Links(2, 0)
    world.until(settled)
    assert "memory" not in world.status["transport"]
    world.links = Links(2, 0, "", "Cannot allocate memory")
    world.until(lambda w: "memory" in w.status["transport"])
    world.rounds(10)
    (message,) = told(world, "PinnedMemory")
    assert message == world.status["transport"]["memory"] and "small pages (Cannot allocate memory)" in message
