"""Templates of pods: the fields that they may have, and a reason for all others."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.job.container_template import TEMPORARY
from ferry_operator.job.models import Spec
from tests.templates import DRIVER, WORKER, container, in_pod, job, mount


def problem(section: dict[str, Any]) -> str:
    """Why a job with this section is refused; '': it is not."""
    try:
        spec.check(job(section))
    except SpecRefused as error:
        return str(error)
    return ""


def test_all_kinds_of_fields_are_read() -> None:
    checked = spec.check(job({"driverPodTemplate": DRIVER, "workerPodTemplate": WORKER})).spec.kubernetes
    assert (checked.driver_pod_template, checked.worker_pod_template) == (DRIVER, WORKER)
    assert Spec.model_fields["kubernetes"] is not None and problem({}) == ""


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostPID": True}}, "spec.hostPID: a template may not set it; Ferry's processes"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
    ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
    ({"spec": {"hostNetwork": True}}, "use spec.kubernetes.network"),
    ({"spec": {"hostUsers": True}}, "spec.hostUsers: a template may not set it; allowed here: nodeSelector"),
    ({"spec": {"serviceAccountName": "admin"}}, "use spec.kubernetes.serviceAccount"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "use spec.kubernetes.user"),
    ({"spec": {"nodeName": "n1"}}, "spec.nodeName"),
    ({"spec": {"priority": 1}}, "spec.priority"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
    ({"spec": {"terminationGracePeriodSeconds": 1}}, "spec.terminationGracePeriodSeconds"),
    ({"spec": {"$patch": "replace"}}, "spec.$patch"),
    ({"spec": {"containers": None}}, "spec.containers: must be a list"),
    ({"kind": "Pod"}, "kind: a template may not set it"),
    ({"metadata": {"name": "x"}}, "metadata.name"),
    ({"metadata": {"finalizers": []}}, "metadata.finalizers"),
    ({"metadata": {"labels": {"ferry.dev/job": "other"}}}, "metadata.labels.ferry.dev/job: belongs to Ferry"),
    ({"metadata": {"labels": {"app.kubernetes.io/name": "ferry"}}}, "belongs to Ferry"),
    ({"metadata": {"labels": {"spark-role": "driver"}}}, "belongs to Ferry"),
    ({"metadata": {"labels": {"a": "no label!"}}}, "metadata.labels.a: must be at most 63"),
    ({"metadata": {"annotations": {"ferry.dev/revision": "x"}}}, "belongs to Ferry"),
    ({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "x"}}}, "belongs to Ferry"),
    ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations.a: must be text"),
    (container(image="evil"), "spec.containers[0].image: a template may not set it; use spec.kubernetes.image"),
    (container(command=["sh"]), "spec.containers[0].command"),
    (container(args=["-c"]), "spec.containers[0].args"),
    (container(securityContext={"privileged": True}), "spec.containers[0].securityContext"),
    (container(lifecycle={}), "spec.containers[0].lifecycle"),
    (container(ports=[]), "spec.containers[0].ports"),
    (container(readinessProbe={}), "spec.containers[0].readinessProbe"),
    (container(resources={"requests": {"cpu": 2}}), "use spec.kubernetes.CONTAINER.cpu"),
    (container(resources={"limits": {"memory": "9Gi"}}), "use spec.kubernetes.CONTAINER.memory"),
    (container(resources={"requests": {"nvidia.com/gpu": 1}}), "a template sets it in 'limits'"),
    (container(resources={"limits": {"kubernetes.io/batteries": 1}}), "no resource of a container"),
    (container(resources={"limits": {"nvidia.com/gpu": 0}}), "must be a number of devices"),
    (container(resources={"limits": {"hugepages-2Mi": "many"}}), "a size is a number"),
    (container(resources={"limits": {"cpu": "100m"}}), "the limit of CPUs is less than 'driver.cpu'"),
    (container(resources={"claims": []}), "resources.claims"),
    (
        container(resources={"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}}),
        "more than the limit",
    ),
    (container(name="other"), "Ferry's containers here are driver"),
    (container(name="sidecar"), "Ferry's containers here are driver"),
    (container(env=[{"name": "A"}]), "give exactly one of value, valueFrom"),
    (container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "'A' is there twice"),
    (container(env=[{"name": "A", "valueFrom": {"fileKeyRef": {}}}]), "valueFrom.fileKeyRef: a template may not"),
    (container(env=[{"name": "A", "valueFrom": {}}]), "valueFrom: give exactly one of"),
    (container(envFrom=[{"prefix": "A"}]), "envFrom[0]: give exactly one"),
    (container(volumeMounts=[mount("/data")]), "the template has no volume 'v'"),
    (in_pod(volumes=[{"name": "settings", "emptyDir": {}}]), "spec.volumes[0].name: 'settings' belongs to Ferry"),
    (in_pod(volumes=[{"name": "user-data", "emptyDir": {}}]), "'user-data' belongs to Ferry"),
    (in_pod(volumes=[{"name": "ferry-no-account", "emptyDir": {}}]), "'ferry-no-account' belongs to Ferry"),
    (in_pod(volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}}]), "spec.volumes[0].nfs"),
    (in_pod(volumes=[{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}]), "give exactly one of"),
    (in_pod(volumes=[{"name": "v", "hostPath": {"path": "/a", "type": "Socket"}}]), "hostPath.type: must be"),
    (in_pod(volumes=[{"name": "v", "hostPath": {"path": "/a/../b", "type": "File"}}]), "hostPath.path: must be an"),
    (in_pod(volumes=[{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {}}}]), "csi.nodePublishSecretRef"),
    (
        in_pod(volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        "audience: req",
    ),
    (
        in_pod(volumes=[{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]),
        "sources[0].clusterTrustBundle",
    ),
    (in_pod(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {}}}}}]), "dataSource"),
    (in_pod(ephemeralContainers=[]), "spec.ephemeralContainers"),
    (in_pod(initContainers=[{"name": "executor", "image": "x"}]), "'executor' is a container of Ferry"),
    (in_pod(initContainers=[{"name": "state-owner", "image": "x"}]), "'state-owner' is a container of Ferry"),
    (in_pod(initContainers=[{"name": "x"}]), "spec.initContainers[0].image: required"),
    (in_pod(initContainers=[{"name": "x", "image": "x", "securityContext": {}}]), "spec.initContainers[0].securityC"),
    (in_pod(initContainers=[{"name": "x", "image": "x", "readinessProbe": {}}]), "use 'startupProbe'"),
    (
        in_pod(initContainers=[{"name": "x", "image": "x", "livenessProbe": {"tcpSocket": {"port": 1, "host": "h"}}}]),
        "a kubelet would ask another host",
    ),
    (
        in_pod(initContainers=[{"name": "x", "image": "x", "ports": [{"containerPort": 1, "hostPort": 1}]}]),
        "hostPort: a template may not set it; use a Service",
    ),
    (in_pod(topologySpreadConstraints=[{"maxSkew": 1}]), "topologyKey: required"),
    (in_pod(tolerations=[{"key": "a", "effect": "Never"}]), "effect: must be"),
    (in_pod(dnsConfig={"nameservers": ["1.1.1.1"], "policy": 1}), "spec.dnsConfig.policy"),
    (in_pod(imagePullSecrets=["a"]), "imagePullSecrets[0]: must be a map"),
    (in_pod(hostAliases=[{"ip": "1.1.1.1", "hostnames": [1]}]), "hostnames[0]: must be text"),
]


@pytest.mark.parametrize(("template", "said"), REFUSED)
def test_everything_else_is_refused_with_its_place(template: dict[str, Any], said: str) -> None:
    refusal = problem({"driverPodTemplate": template})
    assert refusal.startswith("spec.kubernetes") and "driverPodTemplate" in refusal and said in refusal


@pytest.mark.parametrize(
    "variable",
    ["FERRY_HOST", "SPARK_LOCAL_IP", "_SPARK_AUTH_SECRET", "PYSPARK_PYTHON", "LD_PRELOAD", "PYTHONHOME", "POD_IP",
     "KUBERNETES_SERVICE_HOST", "JAVA_HOME", "PATH"],
)  # fmt: skip
def test_variables_of_ferry_and_spark_are_refused(variable: str) -> None:
    given = [{"name": variable, "value": "x"}]
    said = f"{variable!r} belongs to Ferry, Spark, Python or the image"
    assert said in problem({"driverPodTemplate": container(env=given)}) and said in problem({"env": given})
    extra = in_pod(initContainers=[{"name": "x", "image": "x", "env": given}])
    assert problem({"driverPodTemplate": extra}) == "", "a container of the job's own is its own"


@pytest.mark.parametrize(
    "path",
    ["/etc", "/etc/ferry", "/etc/ferry/pod", "/var/lib/ferry/state", "/var", "/opt/ferry/lib", "/opt", "/proc",
     "/var/run/secrets/kubernetes.io/serviceaccount", "/run/secrets/kubernetes.io/x", "/sys/fs", "/dev/shm"],
)  # fmt: skip
def test_no_mount_hides_a_file_of_ferry(path: str) -> None:
    template = in_pod(
        volumes=[{"name": "v", "emptyDir": {}}], containers=[{"name": "driver", "volumeMounts": [mount(path)]}]
    )
    assert f"{path!r} belongs to Ferry, Kubernetes or the image" in problem({"driverPodTemplate": template})


def test_the_directory_for_temporary_files_is_ferrys_and_others_in_it_are_free() -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    for path, refused in ((TEMPORARY, True), (f"{TEMPORARY}/mine", False), ("/data", False)):
        template = in_pod(volumes=volumes, containers=[{"name": "driver", "volumeMounts": [mount(path)]}])
        assert bool(problem({"driverPodTemplate": template})) is refused, path


def test_mounts_and_variables_are_there_once() -> None:
    volumes = [{"name": "in", "mountPath": "/in", "claim": "in"}]
    template = in_pod(
        volumes=[{"name": "v", "emptyDir": {}}], containers=[{"name": "driver", "volumeMounts": [mount("/in")]}]
    )
    assert "is the mountPath of one of 'volumes'" in problem({"volumes": volumes, "driverPodTemplate": template})
    again = [{"name": "A", "value": "1"}]
    assert "'A' is also in 'env'" in problem({"env": again, "driverPodTemplate": container(env=again)})


def test_all_problems_are_said_at_once() -> None:
    said = problem({"workerPodTemplate": {"spec": {"hostPID": True, "nodeName": "n"}, "kind": "Pod"}})
    assert all(path in said for path in ("spec.hostPID", "spec.nodeName", "kind"))


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], [[]], {"spec": []}, {"spec": {"containers": [1]}}, {"metadata": 1}]
)
def test_any_value_is_answered_with_a_problem(value: Any) -> None:
    if value is not None:
        assert "driverPodTemplate" in problem({"driverPodTemplate": value})
