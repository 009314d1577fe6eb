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
"""How many instances a worker should have; its sidecar reads it as a file."""
REVISION = "ferry.dev/revision"
"""Digest of what the pod was made from: with another digest it is out of date."""
SETTINGS = "ferry.dev/settings"
"""On the driver: which run.json it was started with."""
TOKEN = "ferry.dev/token"
"""Fencing token of the operator that last took the pod over: a deposed one's deletions miss."""
FAILURES = "ferry.dev/failures"
"""Ends in a row before this pod was made."""
WITHOUT_SURGE = "ferry.dev/without-surge"
"""On a worker that is replaced: there was no room for a surge worker."""
RUN = "ferry.dev/run"
"""Which of the job's runs the pod belongs to."""
EPOCH = "ferry.dev/epoch"
"""Last epoch that was known when the pod was made."""
SUSPENDING = "ferry.dev/suspending"
"""On the driver: it was asked for its last checkpoint."""
REPLACE = "ferry.dev/replace"
"""On the driver: why it is being replaced. Its end is not the end of the job."""

AVOIDS = "ferry.dev/avoids"
"""Nodes that were about to go away when the pod was made, and that it may not be put on: 'n1,n2'."""

# On the StreamJob, written by users; mistakes are said, and not followed (`observe.asked`).
PAUSED = "ferry.dev/paused"
"""'true': nothing is changed."""
DRAIN = "ferry.dev/drain"
"""Workers that are to be emptied and stay: '1,3'."""
PINS = "ferry.dev/pins"
"""Instances that are to lead a virtual node: '3=1.0,7=0.0'."""
PLAN = "ferry.dev/plan"
"""A plan that was handed in (`control.plan_file`): JSON, compressed by zlib, in base64."""

CHECKPOINT = "ferry.dev/checkpoint"
"""A checkpoint that is to be taken now: {"id": ..., "name": ...}; every id is asked for once."""


def labels(job: str, role: str, worker: int | None = None) -> dict[str, str]:
    """Labels of a pod."""
    found = {MANAGED: MANAGER, JOB: job, ROLE: role}
    return found if worker is None else {**found, WORKER: str(worker)}


def workers_selector(job: str) -> str:
    """The worker pods, as a label selector in text."""
    return f"{JOB}={job},{ROLE}={WORKER_ROLE}"


def driver_pod(job: str) -> str:
    """Name of the driver's pod."""
    return f"{job}-driver"


def placeholder_pod(job: str, revision: str) -> str:
    """Name of the pod that looks for a node for a driver of this revision."""
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
    """Name of a run of a StreamJob. It depends on the uid, and on the number: each resume begins another run."""
    text = uid.replace("-", "") if number == 1 else sha256(f"{uid} {number}".encode()).hexdigest()
    return f"{job}-{text[:8]}"
