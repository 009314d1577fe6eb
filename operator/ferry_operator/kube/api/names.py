"""Labels, annotations and names of the objects of a job. Values only."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from zlib import crc32

Doc = dict[str, Any]
"""An object of the API as plain maps."""

GROUP, VERSION, PLURAL = "ferry.dev", "v1alpha1", "streamjobs"

MANAGED = "app.kubernetes.io/managed-by"
MANAGER = "ferry"
JOB = "ferry.dev/job"
ROLE = "ferry.dev/role"
WORKER = "ferry.dev/worker"
DRIVER_ROLE, WORKER_ROLE, PLACEHOLDER_ROLE = "driver", "worker", "placeholder"

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
EPOCH = "ferry.dev/epoch"
"""Last known epoch at the creation of the pod."""
SUSPENDING = "ferry.dev/suspending"
"""On the driver: the operator has requested its last checkpoint."""
REPLACE = "ferry.dev/replace"
"""On the driver: the reason of its replacement. Its end is not the end of the job."""

AVOIDS = "ferry.dev/avoids"
"""Nodes that were closed at the creation of the pod, and excluded by its affinity: 'n1,n2'."""

# On the StreamJob, written by users; an invalid value has no effect but a problem in the status (`observe.annotations`).
PAUSED = "ferry.dev/paused"
"""'true': the operator changes nothing."""
DRAIN = "ferry.dev/drain"
"""Workers to drain, whose pods stay: '1,3'."""
PINS = "ferry.dev/pins"
"""Wanted leaders of virtual nodes: '3=1.0,7=0.0'."""
PLAN = "ferry.dev/plan"
"""A plan of a user (`control.plan_file`): JSON, compressed by zlib, in base64."""

CHECKPOINT = "ferry.dev/checkpoint"
"""The request for a checkpoint: {"id": ..., "name": ...}; the driver gets every id once."""


def labels(job: str, role: str, worker: int | None = None) -> dict[str, str]:
    """Labels of a pod."""
    common = {MANAGED: MANAGER, JOB: job, ROLE: role}
    return common if worker is None else {**common, WORKER: str(worker)}


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
