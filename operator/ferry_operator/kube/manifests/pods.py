"""The pods of a job: one driver, and workers with a sidecar and a Spark executor. Pure builders of manifests.

The same arguments give the same manifest and the same name, so a second create makes no second pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferry.contract import limits, ports, variables
from ferry.contract.run_directory import WORKERS
from ferry_operator.job.models import StreamJob
from ferry_operator.job.models_kubernetes import HUGE_RESOURCE, Resources
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests import allowed, parts, shaping
from ferry_operator.kube.manifests.objects import journal_name
from ferry_operator.kube.manifests.release import DIRECTORY, Installation

GRACE_SECONDS = 15
"""Time for a driver to finish its epoch, and for an instance to leave."""

LASTING_GRACE_SECONDS = GRACE_SECONDS + int(limits.SYNC_SECONDS)
"""Time for an instance to leave and to sync its files, which survive a reboot of the node."""

PYTHON = "python3"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

FLIGHT: Doc = {"tcpSocket": {"port": ports.FLIGHT}}
"""Probe of the Flight port, with TLS or without."""


def driver(job: Doc, spec: StreamJob, release: Installation, annotations: Mapping[str, str]) -> Doc:
    """The pod of the driver. Kubernetes never restarts it: the operator creates a new pod."""
    uid, name = job["metadata"]["uid"], spec.metadata.name
    control, master, metrics = (f(spec, uid) for f in (parts.control_port, parts.master_port, parts.metrics_port))
    arguments = [PYTHON, "-m", "ferry.driver", parts.RUN_JSON]
    main = parts.container("driver", spec, release, arguments, spec.spec.kubernetes.driver)
    environment = {
        variables.SPARK: variables.EXECUTORS,
        variables.CONTROL_PORT: str(control),
        variables.MASTER_PORT: str(master),
        variables.METRICS_PORT: str(metrics),
        variables.JOURNAL: f"{release.namespace}/{journal_name(job, int(annotations.get(names.RUN, 1)))}",
        **({variables.BEGUN: "yes"} if int(annotations.get(names.EPOCH, -1)) >= 0 else {}),
    }
    main["env"] = parts.environment(spec, environment)
    main["env"] += parts.metrics_token(release, spec.metadata.name)
    main |= parts.env_from(spec)
    main["ports"] = [_port("control", control, spec), _port("metrics", metrics, spec)]
    # The driver's loop answers. The operator replaces a driver that stays not ready for long (`lifecycle.hangs`).
    scheme = {} if spec.spec.security.tls == "off" else {"scheme": "HTTPS"}
    health = {"path": names.HEALTH_PATH, "port": control, **scheme}
    main["readinessProbe"] = _probe({"httpGet": health}, failures=3)
    main["volumeMounts"] = [*parts.base_mounts(), *parts.checkpoint_mount(spec), *parts.user_mounts(spec)]
    pod = _pod(job, spec, release, names.driver_pod(name), names.DRIVER_ROLE, None, annotations)
    pod["spec"] |= {
        "restartPolicy": "Never",
        # For the journal. Pods of workers never have a token.
        "automountServiceAccountToken": True,
        "containers": [main],
        "volumes": [*parts.base_volumes(spec, with_instances=False), *parts.user_volumes(spec)],
    }
    affinity = spec.spec.kubernetes.affinity
    if affinity:
        pod["spec"]["affinity"] = affinity
    return shaping.shaped(pod, spec, spec.spec.kubernetes.driver_pod_template)


def placeholder(job: Doc, spec: StreamJob, release: Installation, revision: str, annotations: Mapping[str, str]) -> Doc:
    """An idle pod with the resources and the scheduling of the driver, without host ports, which the old driver occupies."""
    pod = driver(job, spec, release, annotations)
    (main,) = pod["spec"]["containers"]
    idle = [PYTHON, "-c", "import signal; signal.sigwait({signal.SIGTERM})"]
    kept = {key: main[key] for key in ("image", "imagePullPolicy", "securityContext", "resources")}
    pod["spec"] |= {
        "containers": [{"name": names.PLACEHOLDER_ROLE, "args": idle, **kept}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    pod["spec"].pop("initContainers", None)
    pod["metadata"]["name"] = names.placeholder_pod(spec.metadata.name, revision)
    pod["metadata"]["labels"] |= names.labels(spec.metadata.name, names.PLACEHOLDER_ROLE)
    del pod["metadata"]["labels"][names.SPARK_ROLE]  # It is no driver of Spark's.
    return pod


def excluding(pod: Doc, nodes: Sequence[str]) -> Doc:
    """The pod with an affinity that excludes these nodes: tolerations of the pod may allow even a node that is drained."""
    if not nodes:
        return pod
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = pod["spec"].get("affinity") or {}
    try:
        of_nodes = affinity.get("nodeAffinity") or {}
        terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        # Terms are alternatives: each of them needs the exclusion.
        terms = [{**term, "matchFields": [*(term.get("matchFields") or []), *away]} for term in terms]
    except (AttributeError, TypeError):
        return pod  # its user wrote no affinity: the API server refuses the pod and says why
    pod["spec"]["affinity"] = {**affinity, "nodeAffinity": {**of_nodes, REQUIRED: {"nodeSelectorTerms": terms}}}
    pod["metadata"]["annotations"][names.AVOIDS] = ",".join(nodes)
    return pod


def worker(job: Doc, spec: StreamJob, release: Installation, index: int, annotations: Mapping[str, str]) -> Doc:
    """The pod of a worker; `annotations` contain the number of its instances."""
    name, kubernetes = spec.metadata.name, spec.spec.kubernetes
    noted = {**annotations, **parts.networks(spec)}
    pod = _pod(job, spec, release, names.worker_pod(name, index), names.WORKER_ROLE, index, noted)
    volumes = [*parts.base_volumes(spec, with_instances=True), _state_volume(job, spec), *parts.user_volumes(spec)]
    pod["spec"] |= {
        "terminationGracePeriodSeconds": LASTING_GRACE_SECONDS if kubernetes.state_volume.lasting else GRACE_SECONDS,
        "restartPolicy": "Always",
        "initContainers": [*_state_owner(spec, release), _sidecar(job, spec, release, index)],
        "containers": [_executor(spec, release, index)],
        "volumes": volumes,
        "affinity": {"podAntiAffinity": _anti_affinity(name), **(kubernetes.affinity or {})},
    }
    return shaping.shaped(pod, spec, kubernetes.worker_pod_template)


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
            "annotations": {**allowed.inherited_annotations(spec, release.allow), **annotations},
            "ownerReferences": [parts.owner(job)],
        },
        "spec": {
            **({"serviceAccountName": account} if account else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": parts.pod_security(spec, release),
            **parts.scheduling(spec),
        },
    }


def _sidecar(job: Doc, spec: StreamJob, release: Installation, index: int) -> Doc:
    """A native sidecar container: it starts before the executor, and ends after the executor."""
    arguments = [PYTHON, "-m", "ferry.sidecar", parts.RUN_JSON, "--worker", str(index)]
    sidecar = parts.container("sidecar", spec, release, arguments, spec.spec.kubernetes.sidecar)
    sidecar["restartPolicy"] = "Always"
    metrics = parts.metrics_port(spec, job["metadata"]["uid"], index)
    environment = {variables.INSTANCES_FILE: parts.INSTANCES_FILE, variables.METRICS_PORT: str(metrics)}
    sidecar["env"] = [*parts.environment(spec, environment), *parts.metrics_token(release, spec.metadata.name)]
    # A restarted container of a replaced pod must not claim the worker again: the uid tells the pods apart.
    sidecar["env"].append({"name": variables.PLACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
    mine = parts.mount("state", str(DIRECTORY / WORKERS))
    sidecar["volumeMounts"] = [*parts.base_mounts(), mine, *parts.sidecar_mounts(spec)]
    sidecar |= parts.env_from(spec)
    sidecar["ports"] = [_port("metrics", metrics, spec)]
    if not parts.on_host(spec):
        sidecar["ports"] += [_port("channel", ports.CHANNEL, spec), _port("flight", ports.FLIGHT, spec)]
        # The executor waits for this probe; the first start compiles the kernels.
        sidecar["startupProbe"] = {**_probe(FLIGHT, failures=300), "periodSeconds": 1}
        sidecar["readinessProbe"] = _probe(FLIGHT, failures=3)
    huge = spec.spec.kubernetes.sidecar.huge_pages
    if huge.bytes:
        sidecar["resources"]["requests"][HUGE_RESOURCE] = sidecar["resources"]["limits"][HUGE_RESOURCE] = str(huge)
    rdma = spec.spec.transport.rdma
    if rdma.mode != "off" and rdma.resource is not None:
        # No IPC_LOCK: a capability has no effect for a user other than root. The default limit of locked memory suffices.
        sidecar["resources"]["requests"][rdma.resource] = "1"
        sidecar["resources"]["limits"][rdma.resource] = "1"
    return sidecar


def _executor(spec: StreamJob, release: Installation, index: int) -> Doc:
    arguments = [PYTHON, "-m", "ferry.worker", parts.RUN_JSON, "--worker", str(index)]
    executor = parts.container("executor", spec, release, arguments, spec.spec.kubernetes.executor)
    executor["env"] = parts.environment(spec, {variables.WORKER: str(index)})
    executor |= parts.env_from(spec)
    executor["volumeMounts"] = [*parts.base_mounts(), *parts.user_mounts(spec)]
    return executor


def _state_volume(job: Doc, spec: StreamJob) -> Doc:
    volume = spec.spec.kubernetes.state_volume
    if volume.medium == "hostPath":
        path = f"{volume.path}/{job['metadata']['namespace']}/{spec.metadata.name}"
        return {"name": "state", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    empty: dict[str, Any] = {"medium": "Memory"} if volume.medium == "memory" else {}
    if volume.size is not None:
        empty["sizeLimit"] = str(volume.size)
    return {"name": "state", "emptyDir": empty}


def _state_owner(spec: StreamJob, release: Installation) -> list[Doc]:
    """The init container that makes the user of the sidecar the owner of a directory of the node."""
    if spec.spec.kubernetes.state_volume.medium != "hostPath":
        return []
    path, user = str(DIRECTORY / WORKERS), parts.user(spec, release)
    chown = parts.container("state-owner", spec, release, ["chown", f"{user}:{user}", path], Resources())
    # It runs as root: with the image of the installation, never with an image of a job.
    chown |= {"image": release.image, "imagePullPolicy": "IfNotPresent"}
    chown["securityContext"] |= {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    chown["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}}
    chown["volumeMounts"] = [parts.mount("state", path)]
    return [chown]


def _anti_affinity(job: str) -> Doc:
    """Workers prefer a zone without another worker of the job, else a node without another worker."""
    workers = {"matchLabels": {names.JOB: job, names.ROLE: names.WORKER_ROLE}}
    keys = (("kubernetes.io/hostname", 100), ("topology.kubernetes.io/zone", 50))
    terms = [
        {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": workers}} for key, weight in keys
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def _port(name: str, number: int, spec: StreamJob) -> Doc:
    return {"name": name, "containerPort": number, **({"hostPort": number} if parts.on_host(spec) else {})}


def _probe(check: Doc, failures: int) -> Doc:
    return {**check, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": failures}
