"""The sections of the job file for Kubernetes, and what a run takes from `spec.output` and `spec.events`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferry_operator.job import spec
from ferry_operator.job.models import Spec
from ferry_operator.job.quantities import Cpus
from ferry_operator.job.settings import Options

JOB = {
    "apiVersion": "ferry.dev/v1alpha1",
    "kind": "StreamJob",
    "metadata": {"name": "q5"},
    "spec": {"pipeline": {"module": "jobs.q5"}},
}
DATA = {"name": "data", "mountPath": "/data", "claim": "data"}


def check(**fields: Any) -> Spec:
    return spec.check({**JOB, "spec": {"pipeline": {"module": "jobs.q5"}, **fields}}).spec


def refusal(**fields: Any) -> str:
    with pytest.raises(spec.JobRefused) as refused:
        check(**fields)
    return str(refused.value)


def test_the_defaults() -> None:
    one = check().kubernetes
    assert (one.image, one.image_pull_policy, one.network, one.service_account) == (None, "IfNotPresent", "pod", None)
    assert (one.driver.cpu.millis, one.driver.memory.bytes) == (500, 3 * 2**29)
    assert (one.executor.cpu.millis, one.executor.memory.bytes) == (500, 3 * 2**29)
    assert (one.sidecar.cpu.millis, one.sidecar.memory.bytes) == (250, 2**29)
    assert (one.state_volume.medium, one.volumes, one.checkpoint) == ("disk", [], None)
    assert check().transport.rdma.mode == "off"
    assert check().restart_nonce is None


def test_a_part_of_a_group_leaves_the_rest_at_its_default() -> None:
    assert check(kubernetes={"sidecar": {"cpu": 1}}).kubernetes.sidecar.memory == "512Mi"


def test_a_full_section_is_dumped_and_read_back_equal() -> None:
    section = {
        "image": "jobs:1", "network": "host", "nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"weight": 1, "x": [None, True, "a"]}}, "driver": {"cpu": "1.5"},
        "stateVolume": {"medium": "hostPath", "path": "/srv/ferry"}, "volumes": [DATA, {**DATA, "name": "b", "mountPath": "/b"}],
        "checkpoint": "/data/checkpoint",
    }  # fmt: skip
    job = spec.check({**JOB, "spec": {"pipeline": {"module": "m"}, "kubernetes": section}})
    assert spec.load(spec.dump(job)) == job


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"imag": "x"}, "spec.kubernetes.imag: unknown field; did you mean 'image'?"),
    ({"volumes": [{**DATA, "mountpath": "/x"}]}, "spec.kubernetes.volumes.0.mountpath: unknown field; did you mean 'mountPath'?"),
    ({"volumes": [{**DATA, "mountPath": "data"}]}, "spec.kubernetes.volumes.0.mountPath: 'data': must be an absolute path"),
    ({"volumes": [{**DATA, "mountPath": "/data/../etc"}]}, "must be an absolute path without '.', '..'"),
    ({"volumes": [{**DATA, "mountPath": "/data/"}]}, "must be an absolute path"),
    ({"volumes": [{**DATA, "name": "Data"}]}, "spec.kubernetes.volumes.0.name: 'Data': must be lower-case letters"),
    ({"volumes": [DATA, {**DATA, "mountPath": "/b"}]}, "spec.kubernetes: 'volumes': 'data' is used by two volumes"),
    ({"volumes": [{**DATA, "hostPath": "/x"}]}, "give exactly one of 'claim' and 'hostPath'"),
    ({"volumes": [{**DATA, "mountPath": "/var/lib/ferry/x"}]}, "'mountPath' may not contain or be below /etc/ferry"),
    ({"checkpoint": "/data/c"}, "'checkpoint' must be below the mountPath of a writable volume of 'volumes'"),
    ({"volumes": [DATA], "checkpoint": "/database"}, "'checkpoint' must be below the mountPath"),
    ({"driver": {"cpu": 0.5}}, "spec.kubernetes.driver.cpu: 0.5: CPUs are text such as '500m', or a whole number"),
    ({"driver": {"cpu": "5m"}}, "spec.kubernetes.driver.cpu: '5m': must be at least '10m'"),
    ({"driver": {"cpu": "1k"}}, "CPUs are a number, or thousandths with m"),
    ({"driver": {"memory": "1Mi"}}, "spec.kubernetes.driver.memory: '1Mi': must be at least '64Mi'"),
    ({"nodeSelector": {"a": 1}}, "spec.kubernetes.nodeSelector.a: 1: must be text; quote it"),
    ({"affinity": {"a": float("inf")}}, "a number must be finite"),
    ({"affinity": {"a": json.loads("[" * 32 + "]" * 32)}}, "at most 32 maps and lists may be nested"),
    ({"stateVolume": {"medium": "ram"}}, "spec.kubernetes.stateVolume.medium: 'ram' is not allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_section_is_refused_with_its_path(section: dict[str, Any], message: str) -> None:
    assert message in refusal(kubernetes=section)


RDMA: list[tuple[dict[str, Any], str]] = [
    ({"mode": "fast"}, "spec.transport.mode: 'fast' is not allowed; must be 'auto', 'rdma' or 'tcp'"),
    ({"rdma": {"mode": "shared"}}, "spec.transport.rdma: 'resource' is needed for the mode 'shared'"),
    ({"rdma": {"networks": "fast"}}, "spec.transport.rdma: 'networks' are for the mode 'sriov', not 'off'"),
    ({"mode": "tcp", "rdma": {"mode": "shared", "resource": "rdma/hca"}}, "mode 'tcp' would not use it"),
    ({"rdma": {"slots": 0}}, "spec.transport.rdma.slots: 0: must be greater than or equal to 1"),
    ({"rdma": {"slots": 129}}, "spec.transport.rdma.slots: 129: must be less than or equal to 128"),
    ({"rdma": {"slotBytes": 128}}, "spec.transport.rdma.slotBytes: 128: must be greater than or equal to 256"),
    ({"rdma": {"slotBytes": 2 << 20}}, "spec.transport.rdma.slotBytes: 2097152: must be less than or equal to 1048576"),
    ({"rdma": {"slotBytes": 4100}}, "spec.transport.rdma.slotBytes: 4100"),
    ({"rdma": {"notify": "poll"}}, "spec.transport.rdma.notify: 'poll' is not allowed"),
    ({"rdma": {"pinned": "1Mi"}}, "spec.transport.rdma: 'pinned' is less than the 1056768 bytes"),
    ({"rdma": {"pinned": "2Mi", "lend": "1Mi"}}, "spec.transport.rdma: 'pinned' is less than the 2105344 bytes"),
    ({"rdma": {"lend": -1}}, "spec.transport.rdma.lend: -1"),
    ({"rdma": {"gidIndex": 256}}, "spec.transport.rdma.gidIndex: 256: must be less than or equal to 255"),
    ({"rdma": {"device": "../x"}}, "spec.transport.rdma.device: '../x'"),
]


@pytest.mark.parametrize(("section", "message"), RDMA, ids=[message for _, message in RDMA])
def test_a_wrong_transport_is_refused_with_its_path(section: dict[str, Any], message: str) -> None:
    assert message in refusal(transport=section)


def test_one_machine_may_insist_on_rdma_without_asking_for_a_device() -> None:
    assert check(transport={"mode": "rdma"}).transport.rdma.mode == "off"


def test_yaml_takes_a_bare_off_for_false_and_is_told() -> None:
    assert "spec.transport.rdma.mode: False is not allowed; must be 'off'" in refusal(
        transport={"rdma": {"mode": False}}
    )


def test_sets_reach_the_new_fields() -> None:
    sets = ["kubernetes.image=jobs:2", "kubernetes.nodeSelector.topology.zone=a", "transport.rdma.mode=off", "events=5"]
    one = spec.check(spec.apply_sets(JOB, sets)).spec
    assert (one.kubernetes.image, one.kubernetes.node_selector) == ("jobs:2", {"topology.zone": "a"})
    assert (one.transport.rdma.mode, one.events) == ("off", 5)


@pytest.mark.parametrize(("text", "millis"), [("500m", 500), ("2", 2000), (2, 2000), ("0.25", 250), ("1.005", 1005)])
def test_cpus(text: str | int, millis: int) -> None:
    assert Cpus(text).millis == millis
    assert Cpus(text) == str(text)


@pytest.mark.parametrize("text", ["", "m", "-1", "1.2345", "1.5m", "1e3", "1\n", "1" * 30])
def test_what_is_no_share_of_cpus(text: str) -> None:
    with pytest.raises(ValueError, match="CPUs are"):
        Cpus(text)


def test_zero_bandwidth_is_unlimited_and_nothing_else_below_the_bound_is_allowed() -> None:
    assert check(handover={"bandwidth": 0}).handover.bandwidth == "0"
    assert "must be 0 or at least '64Ki'" in refusal(handover={"bandwidth": 1})


def test_the_command_line_wins_over_the_job_file() -> None:
    assert Options().over("out", 7) == Options(7, Path("out"))
    assert Options(3, Path("here"), True).over("out", 7) == Options(3, Path("here"), True)
    assert Options().over(None, None) == Options()
