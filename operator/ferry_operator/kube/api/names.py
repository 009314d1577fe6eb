"""Labels, annotations and names of the objects of a job. Values only."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

Doc = dict[str, Any]
"""An object of the API as plain maps."""


class JobKey(NamedTuple):
    """A job among all namespaces."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Namespace and name, as in logs."""
        return f"{self.namespace}/{self.name}"


GROUP, VERSION, PLURAL = "ferry.dev", "v1alpha1", "streamjobs"

MANAGED = "app.kubernetes.io/managed-by"
MANAGER = "ferry"
FIELD_MANAGER = "ferry-operator"
"""The operator's name in `managedFields` and in audit logs."""
JOB = "ferry.dev/job"
ROLE = "ferry.dev/role"
WORKER = "ferry.dev/worker"
DRIVER_ROLE, WORKER_ROLE, PLACEHOLDER_ROLE = "driver", "worker", "placeholder"

# Spark's own, by which tools group pods.
SPARK_ROLE, SPARK_NAME = "spark-role", "spark-app-name"
SPARK_ROLES = {DRIVER_ROLE: "driver", WORKER_ROLE: "executor"}
SPARK_APPLICATION, SPARK_EXECUTOR = "spark-app-selector", "spark-exec-id"

LABEL_MAX = 63
"""Characters of the value of a label."""
"""The application of the driver's present life, and the executor that runs in the pod; known once the driver is up."""

HEALTH_PATH = "/healthz"
"""Path in the readiness probe of a driver."""

# On pods, written by the operator.
INSTANCES = "ferry.dev/instances"
"""Wanted instances of a worker; its sidecar reads the annotation as a file."""
REVISION = "ferry.dev/revision"
"""Digest of the fields from which the pod was created: a pod with another digest is outdated."""
SETTINGS = "ferry.dev/settings"
"""On the driver: digest of its run.json."""
PROGRAM = "ferry.dev/program"
"""On the driver: identity of the last program of the spec that it has deployed, refused, or begun with."""
TOKEN = "ferry.dev/token"
"""Fencing token of the operator that last took ownership of the pod: deletions by a deposed operator miss."""
FAILURES = "ferry.dev/failures"
"""Failures in a row before the creation of this pod."""
WITHOUT_SURGE = "ferry.dev/without-surge"
"""On a worker that leaves without a surge worker, for lack of room."""
RUN = "ferry.dev/run"
"""Number of the run of the pod."""
KEY = "ferry.dev/key"
"""Number of the key of the run of the pod."""
REDIS = "ferry.dev/redis"
"""'tls': the pod began with settings that name the TLS port of Redis. Without it the pod speaks clear text to Redis."""
EPOCH = "ferry.dev/epoch"
"""Last known epoch at the creation of the pod."""
SUSPENDING = "ferry.dev/suspending"
"""On the driver: the operator has requested its last checkpoint."""
REPLACE = "ferry.dev/replace"
"""On the driver: the reason of its replacement. Its end is not the end of the job."""

AVOIDS = "ferry.dev/avoids"
"""Nodes that were closed at the creation of the pod, and excluded by its affinity: 'n1,n2'."""

MAY_LEAVE = "ferry.dev/may-leave"
"""Label of a pod that an eviction may delete: it holds no state, or the job has no budget; its value: since when, in seconds
since 1970. The budget does not select such pods."""

EVICTION = "ferry.dev/eviction"
"""On a pod that a client has asked to evict: when first, in seconds since 1970. The pod leaves as from a cordoned node."""

# On the StreamJob, written by users; an invalid value has no effect but a problem in the status (`observe.annotations`).
PAUSED = "ferry.dev/paused"
"""'true': the operator changes nothing."""
DRAIN = "ferry.dev/drain"
"""Workers to drain, whose pods stay: '1,3'."""
PINS = "ferry.dev/pins"
"""Wanted leaders of virtual nodes: '3=1.0,7=0.0'."""
PLAN = "ferry.dev/plan"
"""A plan of a user (`control.plan_file`): JSON, compressed by zlib, in base64."""

ACCEPT_KEY = "ferry.dev/accept-key"
"""The newest key, as the condition of a job without the key of its run shows it: the run may end without a checkpoint."""
CHECKPOINT = "ferry.dev/checkpoint"
"""The request for a checkpoint: {"id": ..., "name": ...}; the driver gets every id once."""


LEAVING = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
    "cloud.google.com/impending-node-termination",
)
"""Default taints of nodes that will be removed. A candidate of the cluster autoscaler may stay, so its taint is not here."""

METRICS_TOKEN = "token"
"""Entry of a Secret with the bearer token of metrics."""


def labels(job: str, role: str, worker: int | None = None) -> dict[str, str]:
    """Labels of a pod."""
    common = {MANAGED: MANAGER, JOB: job, ROLE: role}
    if role in SPARK_ROLES:
        common |= {SPARK_ROLE: SPARK_ROLES[role], SPARK_NAME: f"ferry-{job}"}
    return common if worker is None else {**common, WORKER: str(worker)}


def spark_label(text: str) -> str | None:
    """The value of a label for an id of Spark: the end of a long one, where the life is; None: it can be no value."""
    end = text[-LABEL_MAX:].lstrip("-_.")
    return end if re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", end) else None


def job_of_pod(name: str) -> str | None:
    """The job of a driver or a worker, by the name of its pod; None for other names."""
    match = re.fullmatch(r"(.+)-(?:driver|worker-[0-9]+)", name)
    return match[1] if match else None


def workers_selector(job: str) -> str:
    """The label selector of the worker pods."""
    return f"{JOB}={job},{ROLE}={WORKER_ROLE}"


def driver_pod(job: str) -> str:
    """Name of the driver's pod."""
    return f"{job}-driver"


def placeholder_pod(job: str, revision: str) -> str:
    """Name of the idle pod that finds a node for a driver of this revision."""
    return f"{job}-placeholder-{crc32(revision.encode())}"


def worker_pod(job: str, index: int) -> str:
    """Name of a worker's pod."""
    return f"{job}-worker-{index}"


def run_secret(job: str) -> str:
    """Name of the Secret with run.json."""
    return f"{job}-run"


def budget(job: str) -> str:
    """Name of the PodDisruptionBudget."""
    return f"{job}-workers"


def run_name(job: str, uid: str, number: int = 1) -> str:
    """Name of a run of a StreamJob, unique by uid and number: each resume begins another run."""
    text = uid.replace("-", "") if number == 1 else sha256(f"{uid} {number}".encode()).hexdigest()
    return f"{job}-{text[:8]}"
