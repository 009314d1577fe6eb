"""What a job may name: what is allowed and nothing else, and never what belongs to the installation."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.kube.api.port import JOBS
from ferry_operator.kube.manifests.allowed import Allowed, Defaults, Own
from ferry_operator.kube.manifests.fence import check
from ferry_operator.kube.manifests.release import USER
from tests.unit.kube.fakes.fake_world import World, job

DEFAULTS = Defaults("ferry:1", "ferry-job", USER)
OWN = Own(secrets=("mine", "pull"), service_accounts=("robot", "ferry-operator"), claims=("disk", "data-ferry-redis-0"))
EVERYTHING = Allowed(
    secrets=("*",), service_accounts=("*",), host_paths=("/",), host_network=True, images=("*",), users=(1, 999), own=OWN,
    networks=("*",), devices=("*",), labels=("*",),
)  # fmt: skip


def named(allowed: Allowed, rdma: dict[str, Any] | None = None, **kubernetes: Any) -> str:
    """What is said of a job; '': it is allowed."""
    try:
        check(spec.check(job(kubernetes=kubernetes, transport={"rdma": rdma or {}})), allowed, DEFAULTS)
    except SpecRefused as error:
        return str(error)
    return ""


def volume(**source: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "mountPath": "/data", **source}]}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def term(**more: Any) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", **more}


@pytest.mark.parametrize(
    "kubernetes",
    [
        {},
        {"envFrom": ["for-jobs-bucket"]},
        {"serviceAccount": "ferry-job"},
        {"image": "ferry:1"},
        {"image": "registry.example/team/job:3"},
        {"user": USER},
        volume(claim="inputs"),
        volume(claim="ferry-data"),
        {"stateVolume": {"medium": "memory", "size": "64Mi"}},
        {"rdma": {"mode": "shared", "resource": "rdma/hca"}},
        {"tolerations": [{"operator": "Exists"}]},
        {"affinity": {"podAntiAffinity": {REQUIRED: [term(labelSelector={"matchLabels": {"namespaces": "x"}})]}}},
    ],
)
def test_what_ordinary_jobs_need_is_allowed(kubernetes: dict[str, Any]) -> None:
    assert named(Allowed(own=OWN), **kubernetes) == ""


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"envFrom": ["bucket"]}, "jobs.allow.secrets"),
    ({"envFrom": ["for-jobs-a", "store"]}, "the Secret 'store'; allowed: for-jobs-*"),
    ({"serviceAccount": "cloud"}, "jobs.allow.serviceAccounts"),
    ({"serviceAccount": "default"}, "jobs.allow.serviceAccounts"),
    ({"network": "host"}, "jobs.allow.hostNetwork"),
    ({"user": 999}, "jobs.allow.users"),
    (volume(hostPath="/var/run"), "volumes.v.hostPath"),
    ({"stateVolume": {"medium": "hostPath", "path": "/var/lib/kubelet"}}, "stateVolume.path"),
    ({"rdma": {"mode": "shared", "resource": "nvidia.com/gpu"}}, "transport.rdma.resource: no job may have"),
    ({"rdma": {"mode": "sriov", "resource": "rdma/vf", "networks": "fast"}}, "jobs.allow.networks"),
]


@pytest.mark.parametrize(("kubernetes", "said"), NAMED)
def test_what_is_not_allowed_is_refused_and_may_be_allowed(kubernetes: dict[str, Any], said: str) -> None:
    assert said in named(Allowed(own=OWN), **kubernetes)
    assert named(EVERYTHING, **kubernetes) == ""


@pytest.mark.parametrize(
    "kubernetes",
    [
        *({"envFrom": [name]} for name in ("mine", "pull", "ferry-operator", "ferry-redis", "other-run", "sh.helm.release.v1.ferry.v1")),
        *({"serviceAccount": name} for name in ("robot", "ferry-operator")),
        *(volume(claim=name) for name in ("disk", "data-ferry-redis-0")),
    ],
)  # fmt: skip
def test_what_belongs_to_ferry_is_refused_whatever_is_allowed(kubernetes: dict[str, Any]) -> None:
    assert "belongs to Ferry" in named(EVERYTHING, **kubernetes)


def test_an_account_of_a_name_like_ferrys_has_to_be_named_in_full() -> None:
    assert "belongs to Ferry" in named(EVERYTHING, serviceAccount="ferry-cloud")
    assert named(Allowed(service_accounts=("ferry-cloud",)), serviceAccount="ferry-cloud") == ""


def test_directories_are_allowed_with_all_below_them() -> None:
    allowed = Allowed(host_paths=("/mnt/data", "/srv/ferry"))
    for path in ("/mnt/data", "/mnt/data/in"):
        assert named(allowed, **volume(hostPath=path)) == ""
    for path in ("/mnt", "/mnt/database", "/srv"):
        assert path in named(allowed, **volume(hostPath=path))
    for path in ("/mnt/data/../../etc", "/mnt/data/.", "/mnt//data"):
        with pytest.raises(SpecRefused, match="absolute path"):
            spec.check(job(kubernetes=volume(hostPath=path)))


def test_networks_are_named_one_by_one() -> None:
    allowed = Allowed(networks=("fast", "shared/*"))

    def joins(networks: str) -> str:
        return named(allowed, rdma={"mode": "sriov", "resource": "rdma/vf", "networks": networks})

    assert joins("fast, shared/slow@eth2") == ""
    for networks, foreign in (
        ("fast, kube-system/fast", "'kube-system/fast'"),
        ("other/fast@fast", "'other/fast'"),
        ('[{"name": "fast", "namespace": "kube-system"}]', "name"),
        ("fast,", "''"),
    ):
        assert foreign in joins(networks) and "jobs.allow.networks" in joins(networks)


def test_claims_and_taints_may_be_restricted() -> None:
    allowed = Allowed(claims=("team-*",), taints=("team/*",))
    assert named(allowed, **volume(claim="team-a"), tolerations=[{"key": "team/gpu", "operator": "Exists"}]) == ""
    assert "jobs.allow.claims" in named(allowed, **volume(claim="theirs"))
    for taint, said in (
        ({"operator": "Exists"}, "every taint"),
        ({"key": "node-role.kubernetes.io/control-plane"}, "the taint"),
    ):
        assert said in named(allowed, tolerations=[taint])


@pytest.mark.parametrize("more", [{"namespaces": ["kube-system"]}, {"namespaceSelector": {}}])
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_no_job_keeps_pods_of_other_namespaces_from_a_node(kind: str, more: dict[str, Any]) -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(**more)}]}
    for terms in ({REQUIRED: [term(), term(**more)]}, preferred):
        assert "no job may select pods of other namespaces" in named(EVERYTHING, affinity={kind: terms})


def test_images_are_named_by_patterns() -> None:
    allowed = Allowed(images=("registry.example/team/*", "exact:1"))
    for image in ("registry.example/team/a/b:1", "exact:1", "ferry:1"):
        assert named(allowed, image=image) == ""
    for image in ("registry.example/other:1", "exact:12", "evil/registry.example/team/a", "registryXexample/team/a"):
        assert image in named(allowed, image=image)


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = named(Allowed(), envFrom=["a"], network="host", **volume(hostPath="/x"))
    assert said.count("spec.kubernetes.") == 3


def test_what_the_chart_says_is_read_strictly() -> None:
    assert Allowed.read("") == Allowed() and Allowed.read('{"hostNetwork": true}').host_network
    for text in ("{", '{"hostnetwork": true}', '{"hostNetwork": "yes"}', '{"hostPaths": ["mnt"]}', '{"secrets": "x"}'):
        with pytest.raises(ValueError, match="FERRY_JOBS_ALLOW is invalid"):
            Allowed.read(text)


@pytest.mark.parametrize(("kubernetes", "said"), [*NAMED, ({"envFrom": ["ferry-operator"]}, "belongs to Ferry")])
def test_nothing_is_made_for_a_job_that_names_what_it_may_not(kubernetes: dict[str, Any], said: str) -> None:
    """Not for a new one; and of one that runs, the spec before stays in force."""
    world = World()
    rdma, rest = kubernetes.get("rdma", {}), {key: one for key, one in kubernetes.items() if key != "rdma"}
    world.api.create(JOBS, job(kubernetes=rest, transport={"rdma": rdma}))
    world.rounds(5)
    assert world.pods() == [] and world.status["phase"] == "Failed"
    assert world.condition("Degraded")["reason"] == "SpecRefused" and said in world.condition("Degraded")["message"]
