"""Manifests: restricted pod security, names that are always the same, and everything the processes are told."""

from __future__ import annotations

import copy
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from ferry.contract import journals, limits, variables
from ferry.contract.errors import SpecRefused
from ferry.contract.settings import TransportSettings
from ferry_operator.job import spec
from ferry_operator.job.models import Spec, StreamJob
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.cluster import driver_url
from ferry_operator.kube.manifests import objects, parts, pods
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.manifests.release import Installation, redis_tag, redis_url, run_key, settings_of
from ferry_operator.kube.observe import facts
from tests.unit.kube.fakes.fake_world import job

ROOT = Path(__file__).resolve().parents[3]
RELEASE = Installation("jobs", "ferry:1", "redis://:pw@redis:6379/0", "key", "ferry-job")
UID = "0a1b2c3d-1111-2222-3333-444455556666"
MEMORY = JobMemory(uid=UID)

VOLUMES = [
    {"name": "data", "mountPath": "/data", "claim": "inputs"},
    {"name": "in", "mountPath": "/in", "hostPath": "/srv/in", "readOnly": True},
]


SHARED = {"mode": "shared", "resource": "rdma/hca"}
SRIOV = {"mode": "sriov", "resource": "rdma/vf", "networks": "fast, other/slow@eth2"}
HOST = {"mode": "hostNetwork", "resource": "rdma/hca"}
ON_HOST = {"transport": {"rdma": HOST}, "kubernetes": {"network": "host"}}


def made(**changes: Any) -> tuple[Doc, StreamJob]:
    document = job(**changes)
    document["metadata"] |= {"uid": UID, "namespace": "jobs"}
    return document, spec.check(document)


def driver(**changes: Any) -> Doc:
    document, one = made(**changes)
    return pods.driver(document, one, RELEASE, {names.REVISION: "r"})


def worker(index: int = 1, **changes: Any) -> Doc:
    document, one = made(**changes)
    return pods.worker(document, one, RELEASE, index, {names.INSTANCES: "2"})


def containers(pod: Doc) -> list[Doc]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def env(container: Doc) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


def restricted(pod: Doc) -> list[str]:
    """What breaks the restricted profile of the pod security standards."""
    found = []
    one = pod["spec"]
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        found += [key] if one.get(key) else []
    found += ["hostPath" for volume in one["volumes"] if "hostPath" in volume]
    for container in containers(pod):
        security = container["securityContext"]
        found += ["escalation"] if security["allowPrivilegeEscalation"] is not False else []
        found += ["root"] if not security["runAsNonRoot"] or security.get("runAsUser") == 0 else []
        found += ["capabilities"] if security["capabilities"] != {"drop": ["ALL"]} else []
        found += ["seccomp"] if security["seccompProfile"]["type"] != "RuntimeDefault" else []
        found += ["writable root"] if not security.get("readOnlyRootFilesystem") else []
        found += ["host port"] if any("hostPort" in port for port in container.get("ports", [])) else []
    return found


@pytest.mark.parametrize("pod", [driver(), worker(), worker(kubernetes={"volumes": VOLUMES[:1]})])
def test_pods_are_restricted(pod: Doc) -> None:
    assert restricted(pod) == []
    drives = pod["metadata"]["labels"][names.ROLE] == names.DRIVER_ROLE
    assert pod["spec"]["automountServiceAccountToken"] is drives, "of the two, drivers have a journal"
    assert pod["spec"]["serviceAccountName"] == "ferry-job"
    assert pod["spec"]["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"kubernetes": {"network": "host"}}, {"hostNetwork", "host port"}, id="host network"),
        pytest.param(
            {"kubernetes": {"stateVolume": {"medium": "hostPath", "path": "/srv/state"}}},
            {"hostPath", "root", "capabilities"},
            id="state on the node: its owner is set by root",
        ),
        pytest.param({"kubernetes": {"volumes": VOLUMES}}, {"hostPath"}, id="a directory of the node"),
        pytest.param({"transport": {"rdma": SHARED}}, set(), id="an RDMA device"),
        pytest.param({"transport": {"mode": "rdma", "rdma": SRIOV}}, set(), id="a virtual function of its own"),
        pytest.param(ON_HOST, {"hostNetwork", "host port"}, id="an RDMA device on the network of the node"),
    ],
)
def test_only_what_is_asked_for_breaks_the_restrictions(changes: dict[str, Any], expected: set[str]) -> None:
    assert {*restricted(driver(**changes)), *restricted(worker(**changes))} == expected


def test_a_driver_is_told_where_its_journal_is_and_whether_there_must_be_one() -> None:
    document, one = made()
    found = objects.journal(document, 1)
    (main,) = containers(driver())
    assert env(main)[variables.JOURNAL] == f"jobs/{found['metadata']['name']}" and UID in found["metadata"]["name"]
    assert found["metadata"]["ownerReferences"][0]["uid"] == UID and found["spec"] == {}
    for epoch, begun in (("-1", None), ("0", "yes"), ("7", "yes")):
        (main,) = containers(pods.driver(document, one, RELEASE, {names.EPOCH: epoch}))
        assert env(main).get(variables.BEGUN) == begun
    (main,) = containers(pods.driver(document, one, RELEASE, {names.RUN: "3"}))
    assert env(main)[variables.JOURNAL] == f"jobs/{objects.journal_name(document, 3)}"


def test_the_definition_of_journals_is_what_the_contract_says() -> None:
    definition = yaml.safe_load((ROOT / "crds" / f"{journals.PLURAL}.{journals.GROUP}.yaml").read_text())
    assert definition["metadata"]["name"] == f"{journals.PLURAL}.{journals.GROUP}"
    assert (definition["spec"]["group"], definition["spec"]["names"]["kind"]) == (journals.GROUP, journals.KIND)
    (version,) = definition["spec"]["versions"]
    fields = set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    assert version["name"] == journals.VERSION
    assert fields == set(re.findall(r"`(\w+)`", journals.__doc__ or "")) - {"spec"}


def test_the_driver() -> None:
    pod = driver()
    assert pod["metadata"]["name"] == "nbq5-driver" and pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "ferry", "ferry.dev/job": "nbq5", "ferry.dev/role": "driver",
        "spark-role": "driver", "spark-app-name": "ferry-nbq5",
    }  # fmt: skip
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("StreamJob", UID, True)
    (one,) = pod["spec"]["containers"]
    assert one["args"] == ["python3", "-m", "ferry.driver", "/etc/ferry/run.json"]
    assert env(one)["FERRY_SPARK"] == "standalone" and env(one)["FERRY_CONTROL_PORT"] == "7070"
    assert env(one)["FERRY_HOST"] == "$(POD_IP)" and env(one)["FERRY_PORTS"] == "fixed"
    assert one["resources"] == {"requests": {"cpu": "500m", "memory": "1536Mi"}, "limits": {"memory": "1536Mi"}}
    assert one["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("changes", "scheme"),
    [({}, "https"), ({"security": {"tls": "run"}}, "https"), ({"security": {"tls": "off"}}, "http")],
)
def test_a_driver_is_asked_as_it_answers(changes: dict[str, Any], scheme: str) -> None:
    (one,) = driver(**changes)["spec"]["containers"]
    assert one["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower() == scheme
    pod = facts.pod({**driver(**changes), "status": {"podIP": "10.1.2.3"}})
    seen: Any = SimpleNamespace(driver=pod, uid=UID)
    _, parsed = made(**changes)
    assert driver_url(seen, parsed) == f"{scheme}://10.1.2.3:7070"
    assert settings_of(parsed, MEMORY, RELEASE).encrypted == (scheme == "https")


def test_secrets_of_the_job_are_variables_of_its_processes_alone() -> None:
    """Not of what runs as root to make a directory theirs."""
    given = {"envFrom": ["store", "more"], "stateVolume": {"medium": "hostPath", "path": "/srv/state"}}
    expected = [{"secretRef": {"name": "store"}}, {"secretRef": {"name": "more"}}]
    for container in (*containers(driver(kubernetes=given)), *containers(worker(kubernetes=given))):
        assert container.get("envFrom") == (None if container["name"] == "state-owner" else expected)
    assert not any("envFrom" in container for container in (*containers(driver()), *containers(worker())))


def test_a_sidecar_writes_where_checkpoints_are() -> None:
    catalog = {"state": {"checkpoint": {"location": "/data/checkpoints"}}, "kubernetes": {"volumes": VOLUMES}}
    file = {"pipeline": {"module": None, "file": "/data/jobs/a.py"}}
    for changes, expected in (({}, None), (catalog, {}), (file, None), ({**catalog, **file}, {})):
        (sidecar,) = worker(**{"kubernetes": {"volumes": VOLUMES}, **changes})["spec"]["initContainers"]
        found = {one["name"]: one for one in sidecar["volumeMounts"]}
        assert "user-in" not in found
        if changes == file:
            assert found["user-data"]["readOnly"]
        elif expected is None:
            assert "user-data" not in found
        else:
            assert found["user-data"] == {"name": "user-data", "mountPath": "/data"}


def test_processes_with_metrics_get_their_token() -> None:
    release = replace(RELEASE, metrics_secret="ferry-metrics")
    document, one = made()
    (main,) = pods.driver(document, one, release, {})["spec"]["containers"]
    pod = pods.worker(document, one, release, 0, {})["spec"]
    (sidecar,), (executor,) = pod["initContainers"], pod["containers"]
    reference = {"name": "ferry-metrics", "key": "token", "optional": True}
    for container in (main, sidecar):
        assert {"name": "FERRY_METRICS_TOKEN", "valueFrom": {"secretKeyRef": reference}} in container["env"]
        assert {"name": "metrics", "containerPort": 7071} in container["ports"]
    for container in (executor, *(c for pod in (driver(), worker()) for c in containers(pod))):
        assert "FERRY_METRICS_TOKEN" not in env(container)


def test_pods_on_the_hosts_network_serve_their_metrics_each_at_a_port_of_its_own() -> None:
    release = replace(RELEASE, metrics_secret="ferry-metrics")
    document, one = made(kubernetes={"network": "host"})
    served = [pods.driver(document, one, release, {})["spec"]["containers"][0]]
    served += [pods.worker(document, one, release, k, {})["spec"]["initContainers"][0] for k in range(3)]
    found = []
    for container in served:
        port = next(p for p in container["ports"] if p["name"] == "metrics")
        assert port["hostPort"] == port["containerPort"], "the scheduler keeps two from clashing"
        assert any(e["name"] == "FERRY_METRICS_TOKEN" for e in container["env"])
        assert env(container)["FERRY_METRICS_PORT"] == str(port["containerPort"])
        found.append(port["containerPort"])
    others = {parts.control_port(one, UID), parts.master_port(one, UID)}
    assert len(set(found)) == 4 and not others & set(found) and all(17000 <= port < 21000 for port in found)


@pytest.mark.parametrize("uid", [UID, "another", "17", "18"])
def test_pods_of_one_job_never_wait_for_a_port_of_each_other(uid: str) -> None:
    """Two that wanted the same one would never run on one node, however often they are made anew."""
    _, one = made(kubernetes={"network": "host"})
    found = [parts.metrics_port(one, uid, worker) for worker in (None, *range(512))]
    assert len(set(found)) == 513 and all(17000 <= port < 21000 for port in found)


def test_a_worker_is_a_native_sidecar_and_an_executor() -> None:
    pod = worker()
    (sidecar,), (executor,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert pod["metadata"]["name"] == "nbq5-worker-1" and pod["metadata"]["labels"]["ferry.dev/worker"] == "1"
    assert pod["metadata"]["labels"]["spark-role"] == "executor"
    assert pod["spec"]["restartPolicy"] == sidecar["restartPolicy"] == "Always"
    assert sidecar["args"] == ["python3", "-m", "ferry.sidecar", "/etc/ferry/run.json", "--worker", "1"]
    assert executor["args"] == ["python3", "-m", "ferry.worker", "/etc/ferry/run.json", "--worker", "1"]
    uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert {"name": "FERRY_PLACE", "valueFrom": uid} in sidecar["env"]
    assert env(sidecar)["FERRY_INSTANCES_FILE"] == "/etc/ferry/pod/instances" and env(executor)["FERRY_WORKER"] == "1"
    assert "startupProbe" in sidecar
    settings = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "settings")
    assert settings["projected"]["sources"][1]["downwardAPI"]["items"][0]["path"] == "pod/instances"
    assert "state" not in [m["name"] for m in executor["volumeMounts"]], "state is the sidecar's alone"
    preferred = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_jobs_on_one_host_have_ports_of_their_own() -> None:
    document, one = made(kubernetes={"network": "host"})
    other = {**document, "metadata": {**document["metadata"], "uid": "another"}}
    ports = [pods.driver(d, one, RELEASE, {})["spec"]["containers"][0]["ports"] for d in (document, other)]
    numbers = [{port["hostPort"] for port in some} for some in ports]
    assert not numbers[0] & numbers[1] and all(len(some) == 2 for some in numbers)
    sidecar = pods.worker(document, one, RELEASE, 0, {})["spec"]["initContainers"][0]
    assert [port["name"] for port in sidecar["ports"]] == ["metrics"] and "FERRY_PORTS" not in env(sidecar)


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({}, {"emptyDir": {}}),
        ({"medium": "disk", "size": "2Gi"}, {"emptyDir": {"sizeLimit": "2Gi"}}),
        ({"medium": "memory", "size": "64Mi"}, {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
        (
            {"medium": "hostPath", "path": "/srv"},
            {"hostPath": {"path": "/srv/jobs/nbq5", "type": "DirectoryOrCreate"}},
        ),
    ],
)
def test_state_volumes(volume: dict[str, Any], expected: Doc) -> None:
    pod = worker(kubernetes={"stateVolume": volume, "user": 1000})
    found = next(v for v in pod["spec"]["volumes"] if v["name"] == "state")
    assert found == {"name": "state", **expected}
    # Instances have time for the disk where their files are found again.
    _, one = made(kubernetes={"stateVolume": volume, "user": 1000})
    seconds = pod["spec"]["terminationGracePeriodSeconds"]
    assert settings_of(one, MEMORY, RELEASE).lasting == (seconds > limits.SYNC_SECONDS) == ("hostPath" in expected)


def test_volumes_of_the_user_and_the_checkpoint_on_one_of_them() -> None:
    pod = driver(kubernetes={"volumes": VOLUMES, "checkpoint": "/data/offsets/nbq5"})
    mounts = {m["mountPath"]: m for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/var/lib/ferry/checkpoint"] == {
        "name": "user-data", "mountPath": "/var/lib/ferry/checkpoint", "subPath": "offsets/nbq5",
    }  # fmt: skip
    assert mounts["/in"]["readOnly"] is True
    by_name = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert by_name["user-data"]["persistentVolumeClaim"]["claimName"] == "inputs"
    sidecar = worker(kubernetes={"volumes": VOLUMES})["spec"]["initContainers"][0]
    assert not [m for m in sidecar["volumeMounts"] if m["name"].startswith("user-")]
    # Instances load the file of a pipeline that has a process, and write nothing beside it.
    file = {"module": None, "file": "/data/jobs/mine.py"}
    sidecar = worker(pipeline=file, kubernetes={"volumes": VOLUMES})["spec"]["initContainers"][0]
    mine = [m for m in sidecar["volumeMounts"] if m["name"].startswith("user-")]
    assert mine == [{"name": "user-data", "mountPath": "/data", "readOnly": True}]


def test_placement_of_the_user_is_kept_and_a_silent_node_is_tolerated() -> None:
    own = {"key": "spot", "operator": "Exists"}
    affinity = {"nodeAffinity": {"x": 1}}
    pod = worker(kubernetes={"tolerations": [own], "nodeSelector": {"disk": "fast"}, "affinity": affinity})
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"} and own in pod["spec"]["tolerations"]
    assert {t["key"] for t in pod["spec"]["tolerations"]} >= {"node.kubernetes.io/unreachable"}
    assert pod["spec"]["affinity"]["nodeAffinity"] == {"x": 1} and "podAntiAffinity" in pod["spec"]["affinity"]


@pytest.mark.parametrize("mode", ["auto", "rdma"])
@pytest.mark.parametrize("rdma", [SHARED, SRIOV, HOST], ids=lambda one: one["mode"])
def test_rdma_goes_to_the_sidecar_only(rdma: dict[str, str], mode: str) -> None:
    network = "host" if rdma is HOST else "pod"
    changes: dict[str, Any] = {"transport": {"mode": mode, "rdma": rdma}, "kubernetes": {"network": network}}
    pod, plain = worker(**changes), worker(kubernetes={"network": network})
    sidecar, executor = pod["spec"]["initContainers"][0], pod["spec"]["containers"][0]
    resource = rdma["resource"]
    assert sidecar["resources"]["limits"].pop(resource) == sidecar["resources"]["requests"].pop(resource) == "1"
    assert executor == plain["spec"]["containers"][0]
    noted = {parts.NETWORKS: rdma["networks"]} if "networks" in rdma else {}
    assert pod["metadata"]["annotations"] == {names.INSTANCES: "2", **noted}
    # With the resource taken away it is the pod that any other job has: no capability, no user, no directory of the node.
    assert pod["spec"] == plain["spec"]
    assert driver(**changes) == driver(kubernetes={"network": network}), "nothing for those who run the user's code"


def test_without_rdma_nothing_is_asked_for() -> None:
    for changes in ({}, {"transport": {"mode": "tcp"}}, {"transport": {"rdma": {**SHARED, "mode": "off"}}}):
        assert worker(**changes) == worker()


@pytest.mark.parametrize(
    ("allowed", "there"), [((), set()), (("team",), {"team"}), (("*",), {"team", "app"}), (("a*",), {"app"})]
)
def test_pods_get_the_labels_of_the_job_that_are_allowed(allowed: tuple[str, ...], there: set[str]) -> None:
    """No Service or policy of others takes a pod for its own by a label that nobody allows, nor does one of Ferry's ever."""
    document, _ = made()
    chosen = {"app.kubernetes.io/component": "operator", names.JOB: "other", names.WORKER: "0"}
    document["metadata"]["labels"] = {"team": "a", "app": "postgres", **chosen}
    release = replace(RELEASE, allow=Allowed(labels=allowed))
    pod = pods.driver(document, spec.check(document), release, {})
    mine = names.labels("nbq5", names.DRIVER_ROLE)
    assert pod["metadata"]["labels"].keys() - mine.keys() == there and pod["metadata"]["labels"].items() >= mine.items()


def test_the_same_arguments_give_the_same_manifest() -> None:
    assert driver() == driver() and worker() == worker()


def test_the_settings_of_a_run() -> None:
    document, one = made(events=500, output="/data/out")
    settings = settings_of(one, MEMORY, RELEASE)
    assert settings.run == "nbq5-0a1b2c3d" and settings.directory == "/var/lib/ferry"
    user = urlsplit(settings.redis)
    assert (user.hostname, user.port, user.path, user.username) == (
        "redis",
        6379,
        "/0",
        f"ferry.{redis_tag(RELEASE)}.{settings.run}",
    )
    assert user.password is not None and len(user.password) == 64 and "pw" not in settings.redis
    assert settings.events == 500 and settings.output == "/data/out"
    assert settings.transport == TransportSettings() and settings.executor_bytes == 1536 << 20
    assert settings.secret == run_key(RELEASE, UID) != run_key(RELEASE, "another") and len(settings.secret) == 48
    secret = objects.secret(document, settings)
    assert (
        secret["metadata"]["name"] == "nbq5-run" and settings.secret in b64decode(secret["data"]["run.json"]).decode()
    )


@pytest.mark.parametrize(("patience", "milliseconds"), [(None, None), ("90s", 90_000)])
def test_how_long_a_sink_may_fail_is_in_the_settings(patience: str | None, milliseconds: int | None) -> None:
    _, one = made(sink={"patience": patience})
    assert settings_of(one, MEMORY, RELEASE).sink_patience_ms == milliseconds


def test_the_transport_of_a_run() -> None:
    asked = {
        **SHARED,
        "device": "mlx5_1",
        "gidIndex": 3,
        "slots": 4,
        "slotBytes": 4096,
        "notify": "imm",
        "pinned": "1Mi",
        "lend": "64Ki",
    }
    settings = settings_of(made(transport={"mode": "rdma", "rdma": asked})[1], MEMORY, RELEASE)
    assert settings.transport == TransportSettings("rdma", True, "mlx5_1", 3, 4, 4096, "imm", 1 << 20, 64 << 10)


@pytest.mark.parametrize("field", ["output", "pipeline.file", "deadLetter.directory"])
def test_a_relative_path_is_refused(field: str) -> None:
    changes: dict[str, Any] = {
        "output": {"output": "out"}, "pipeline.file": {"pipeline": {"file": "p.py"}},
        "deadLetter.directory": {"deadLetter": {"directory": "dead"}},
    }[field]  # fmt: skip
    with pytest.raises(Exception, match=f"spec.{field}"):
        settings_of(made(**changes)[1], MEMORY, RELEASE)


@pytest.mark.parametrize(
    ("url", "password", "expected"),
    [
        ("redis://h:1/0", "p@ss", "redis://:p%40ss@h:1/0"),
        ("redis://h:1/0", "", "redis://h:1/0"),
        ("redis://:own@h:1/0", "other", "redis://:own@h:1/0"),
    ],
)
def test_the_password_goes_into_the_url(url: str, password: str, expected: str) -> None:
    assert redis_url(url, password) == expected


def test_the_budget_protects_all_workers_that_hold_state() -> None:
    document, _ = made()
    budget = objects.budget(document, 3)["spec"]
    assert budget["minAvailable"] == 3 and budget["selector"]["matchLabels"][names.JOB] == "nbq5"
    assert budget["selector"]["matchExpressions"] == [{"key": names.MAY_LEAVE, "operator": "DoesNotExist"}]


def test_root_runs_the_program_of_the_installation_and_never_that_of_a_job() -> None:
    state = {"medium": "hostPath", "path": "/srv/state"}
    pod = worker(kubernetes={"stateVolume": state, "image": "evil:1", "imagePullPolicy": "Never"})
    images = {one["name"]: one["image"] for one in containers(pod)}
    assert images == {"state-owner": RELEASE.image, "sidecar": "evil:1", "executor": "evil:1"}
    assert [one["name"] for one in containers(pod) if one["securityContext"].get("runAsUser") == 0] == ["state-owner"]


def test_names_are_labels_of_hosts() -> None:
    longest = "j" * 52
    assert len(names.worker_pod(longest, 511)) <= 63 and len(names.run_name(longest, UID)) <= 63
    assert parts.RUN_JSON.startswith("/etc/")


def test_users_of_pods_are_the_jobs_own_or_the_installations_or_the_clusters() -> None:
    document, one = made()
    mine = made(kubernetes={"user": 2000})[1]
    nobody = replace(RELEASE, user=None)
    found = [parts.pod_security(*pair).get("runAsUser") for pair in ((one, RELEASE), (one, nobody), (mine, nobody))]
    assert found == [10001, None, 2000]
    assert parts.pod_security(mine, RELEASE)["fsGroup"] == 2000 and "fsGroup" not in parts.pod_security(one, nobody)
    state = {"stateVolume": {"medium": "hostPath", "path": "/srv/state"}}
    with pytest.raises(SpecRefused, match=r"set spec\.kubernetes\.user"):
        settings_of(made(kubernetes=state)[1], MEMORY, nobody)
    owner = pods.worker(document, made(kubernetes={**state, "user": 2000})[1], nobody, 0, {})["spec"]["initContainers"][
        0
    ]
    assert owner["args"][:2] == ["chown", "2000:2000"]


def test_the_files_of_a_driver_have_a_bound() -> None:
    (run,) = (volume for volume in driver()["spec"]["volumes"] if volume["name"] == "run")
    assert run["emptyDir"] == {"sizeLimit": parts.RUN_LIMIT}
    assert parts.RUN_LIMIT in (Spec.model_fields["output"].description or ""), "it is told where it matters"


@pytest.mark.parametrize("of_nodes", ["no map", {pods.REQUIRED: [{"nodeSelectorTerms": []}]}, {pods.REQUIRED: {"nodeSelectorTerms": ["n0"]}}])  # fmt: skip
def test_an_affinity_that_is_none_is_left_to_the_api_server(of_nodes: Any) -> None:
    """It would end every reconcile of its job without a word in the status, as soon as a node is cordoned."""
    pod = {"metadata": {"annotations": {}}, "spec": {"affinity": {"nodeAffinity": of_nodes}}}
    assert pods.excluding(copy.deepcopy(pod), ["n1"]) == pod
