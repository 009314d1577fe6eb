"""The pods of a job: one driver, and workers of a sidecar and a Spark executor. Pure builders of manifests.

The same arguments give the same manifest and the same name, so that making a pod twice makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferry.contract import limits, ports, variables
from ferry.contract.run_directory import WORKERS
from ferry_operator.job.models import StreamJob
from ferry_operator.job.models_kubernetes import Resources
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests import allowed, parts
from ferry_operator.kube.manifests.objects import journal_name
from ferry_operator.kube.manifests.release import DIRECTORY, Installation

GRACE_SECONDS = 15
"""A driver finishes its epoch, an instance leaves."""

LASTING_GRACE_SECONDS = GRACE_SECONDS + int(limits.SYNC_SECONDS)
"""And has its files on the disk, where they are found again after a reboot of the node."""

PYTHON = "python3"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

FLIGHT: Doc = {"tcpSocket": {"port": ports.FLIGHT}}
"""Whether it listens, with TLS or without."""


def driver(job: Doc, spec: StreamJob, release: Installation, annotations: Mapping[str, str]) -> Doc:
    """The pod of the driver. It ends when the job does; a new one is the operator's to make."""
    uid, name = job["metadata"]["uid"], spec.metadata.name
    control, master, metrics = (f(spec, uid) for f in (parts.control_port, parts.master_port, parts.metrics_port))
    arguments = [PYTHON, "-m", "ferry.driver", parts.RUN_JSON]
    main = parts.container("driver", spec, release, arguments, spec.spec.kubernetes.driver)
    given = {
        variables.SPARK: variables.STANDALONE,
        variables.CONTROL_PORT: str(control),
        variables.MASTER_PORT: str(master),
        variables.METRICS_PORT: str(metrics),
        variables.JOURNAL: f"{release.namespace}/{journal_name(job, int(annotations.get(names.RUN, 1)))}",
        **({variables.BEGUN: "yes"} if int(annotations.get(names.EPOCH, -1)) >= 0 else {}),
    }
    main["env"] = parts.environment(spec, given)
    main["env"] += parts.metrics_token(release)
    main |= parts.given_secrets(spec)
    main["ports"] = [_port("control", control, spec), _port("master", master, spec), _port("metrics", metrics, spec)]
    # It says whether its loop comes round; one that is not well for long is replaced (`lifecycle.hangs`).
    asked = {"path": "/healthz", "port": control, **({} if spec.spec.security.tls == "off" else {"scheme": "HTTPS"})}
    main["readinessProbe"] = _answers({"httpGet": asked}, failures=3)
    main["volumeMounts"] = [*parts.base_mounts(), *parts.checkpoint_mount(spec), *parts.user_mounts(spec)]
    pod = _pod(job, spec, release, names.driver_pod(name), names.DRIVER_ROLE, None, annotations)
    pod["spec"] |= {
        "restartPolicy": "Never",
        # For its journal. Pods of workers have no token, whatever the account may do.
        "automountServiceAccountToken": True,
        "containers": [main],
        "volumes": [*parts.base_volumes(spec, with_instances=False), *parts.user_volumes(spec)],
    }
    affinity = spec.spec.kubernetes.affinity
    if affinity:
        pod["spec"]["affinity"] = affinity
    return pod


def placeholder(job: Doc, spec: StreamJob, release: Installation, revision: str, annotations: Mapping[str, str]) -> Doc:
    """A pod that does nothing, and asks of a node what the driver does; but for ports of the host, which the old one has."""
    one = driver(job, spec, release, annotations)
    (main,) = one["spec"]["containers"]
    idle = [PYTHON, "-c", "import signal; signal.sigwait({signal.SIGTERM})"]
    kept = {key: main[key] for key in ("image", "imagePullPolicy", "securityContext", "resources")}
    one["spec"] |= {
        "containers": [{"name": names.PLACEHOLDER_ROLE, "args": idle, **kept}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    one["metadata"]["name"] = names.placeholder_pod(spec.metadata.name, revision)
    one["metadata"]["labels"][names.ROLE] = names.PLACEHOLDER_ROLE
    return one


def kept_from(pod: Doc, nodes: Sequence[str]) -> Doc:
    """The pod, which is not put on these nodes whatever taints it tolerates; it may be one that is drained."""
    if not nodes:
        return pod
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = pod["spec"].get("affinity") or {}
    given = affinity.get("nodeAffinity") or {}
    terms = (given.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    # Each term is a way of its own to be let in.
    terms = [{**term, "matchFields": [*(term.get("matchFields") or []), *away]} for term in terms]
    pod["spec"]["affinity"] = {**affinity, "nodeAffinity": {**given, REQUIRED: {"nodeSelectorTerms": terms}}}
    pod["metadata"]["annotations"][names.AVOIDS] = ",".join(nodes)
    return pod


def worker(job: Doc, spec: StreamJob, release: Installation, index: int, annotations: Mapping[str, str]) -> Doc:
    """The pod of a worker; `annotations` say how many instances its sidecar should have."""
    name, kubernetes = spec.metadata.name, spec.spec.kubernetes
    noted = {**annotations, **parts.networks(spec)}
    pod = _pod(job, spec, release, names.worker_pod(name, index), names.WORKER_ROLE, index, noted)
    volumes = [*parts.base_volumes(spec, with_instances=True), _state_volume(job, spec), *parts.user_volumes(spec)]
    pod["spec"] |= {
        "terminationGracePeriodSeconds": LASTING_GRACE_SECONDS if kubernetes.state_volume.lasting else GRACE_SECONDS,
        "restartPolicy": "Always",
        "initContainers": [*_owner_of_state(spec, release), _sidecar(job, spec, release, index)],
        "containers": [_executor(spec, release, index)],
        "volumes": volumes,
        "affinity": {"podAntiAffinity": _apart(name), **(kubernetes.affinity or {})},
    }
    return pod


def _pod(
    job: Doc,
    spec: StreamJob,
    release: Installation,
    name: str,
    role: str,
    index: int | None,
    annotations: Mapping[str, str],
) -> Doc:
    account = spec.spec.kubernetes.service_account or release.service_account
    labels = {**allowed.labels(spec, release.allow), **names.labels(spec.metadata.name, role, index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": release.namespace,
            "labels": labels,
            "annotations": dict(annotations),
            "ownerReferences": [parts.owner(job)],
        },
        "spec": {
            **({"serviceAccountName": account} if account else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": parts.pod_security(spec, release),
            **parts.placement(spec),
        },
    }


def _sidecar(job: Doc, spec: StreamJob, release: Installation, index: int) -> Doc:
    """A native sidecar: it starts before the executor, and ends after it."""
    arguments = [PYTHON, "-m", "ferry.sidecar", parts.RUN_JSON, "--worker", str(index)]
    one = parts.container("sidecar", spec, release, arguments, spec.spec.kubernetes.sidecar)
    one["restartPolicy"] = "Always"
    metrics = parts.metrics_port(spec, job["metadata"]["uid"], index)
    given = {variables.INSTANCES_FILE: parts.INSTANCES_FILE, variables.METRICS_PORT: str(metrics)}
    one["env"] = [*parts.environment(spec, given), *parts.metrics_token(release)]
    # A container that starts again in a pod that was replaced must not take the worker back.
    one["env"].append({"name": variables.PLACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
    mine = parts.mount("state", str(DIRECTORY / WORKERS))
    one["volumeMounts"] = [*parts.base_mounts(), mine, *parts.sidecar_mounts(spec)]
    one |= parts.given_secrets(spec)
    one["ports"] = [_port("metrics", metrics, spec)]
    if not parts.on_host(spec):
        one["ports"] += [_port("channel", ports.CHANNEL, spec), _port("flight", ports.FLIGHT, spec)]
        # The executor waits for it; compiling the kernels at a first start takes a while.
        one["startupProbe"] = {**_answers(FLIGHT, failures=300), "periodSeconds": 1}
        one["readinessProbe"] = _answers(FLIGHT, failures=3)
    rdma = spec.spec.transport.rdma
    if rdma.mode != "off" and rdma.resource is not None:
        # Nothing else: what a container may lock anyway is enough, and a capability does nothing for its user.
        one["resources"]["requests"][rdma.resource] = "1"
        one["resources"]["limits"][rdma.resource] = "1"
    return one


def _executor(spec: StreamJob, release: Installation, index: int) -> Doc:
    arguments = [PYTHON, "-m", "ferry.worker", parts.RUN_JSON, "--worker", str(index)]
    one = parts.container("executor", spec, release, arguments, spec.spec.kubernetes.executor)
    one["env"] = parts.environment(spec, {variables.WORKER: str(index)})
    one |= parts.given_secrets(spec)
    one["volumeMounts"] = [*parts.base_mounts(), *parts.user_mounts(spec)]
    return one


def _state_volume(job: Doc, spec: StreamJob) -> Doc:
    volume = spec.spec.kubernetes.state_volume
    if volume.medium == "hostPath":
        path = f"{volume.path}/{job['metadata']['namespace']}/{spec.metadata.name}"
        return {"name": "state", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    empty: dict[str, Any] = {"medium": "Memory"} if volume.medium == "memory" else {}
    if volume.size is not None:
        empty["sizeLimit"] = str(volume.size)
    return {"name": "state", "emptyDir": empty}


def _owner_of_state(spec: StreamJob, release: Installation) -> list[Doc]:
    """A directory of the node is made by root; it is given to the user of the sidecar."""
    if spec.spec.kubernetes.state_volume.medium != "hostPath":
        return []
    path, user = str(DIRECTORY / WORKERS), parts.user(spec, release)
    one = parts.container("state-owner", spec, release, ["chown", f"{user}:{user}", path], Resources())
    # Root runs the program of whoever has installed Ferry, never that of a job.
    one |= {"image": release.image, "imagePullPolicy": "IfNotPresent"}
    one["securityContext"] |= {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    one["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}}
    one["volumeMounts"] = [parts.mount("state", path)]
    return [one]


def _apart(job: str) -> Doc:
    """Workers prefer nodes without another one of the job, and zones before nodes."""
    workers = {"matchLabels": {names.JOB: job, names.ROLE: names.WORKER_ROLE}}
    keys = (("kubernetes.io/hostname", 100), ("topology.kubernetes.io/zone", 50))
    terms = [
        {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": workers}} for key, weight in keys
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def _port(name: str, number: int, spec: StreamJob) -> Doc:
    return {"name": name, "containerPort": number, **({"hostPort": number} if parts.on_host(spec) else {})}


def _answers(asked: Doc, failures: int) -> Doc:
    return {**asked, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": failures}
