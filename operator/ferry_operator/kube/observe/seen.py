"""One observation of the cluster and of the driver. Values only: `view` interprets them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ferry.contract.errors import SpecRefused
from ferry.contract.status import Status
from ferry_operator.control.observed import Submitted
from ferry_operator.job.status import JobMemory, JobStatus
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.facts import KubeNode, Pod, Problem
from ferry_operator.kube.observe.program import WantedProgram


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of the cluster, and of a driver that answers."""

    job: Doc
    pods: tuple[Pod, ...]
    nodes: Mapping[str, KubeNode] | None
    """None: the operator may not list nodes"""
    budget: int | None
    """the number of pods that the PodDisruptionBudget protects; None: it does not exist"""
    status: Status | None
    submitted: Submitted | None
    now: float
    problems: tuple[Problem, ...] = ()
    """errors of the last reconcile, a failed request to the driver, and the problem of Redis"""
    program: WantedProgram | None = None
    """the program that the spec wants; None: without a valid spec, or without its text"""
    heard_epoch: int | None = None
    """the last epoch that this operator has read from a driver of this run"""
    rolled_out: tuple[str, str] = ("", "")
    """reason and message of the roll to other defaults of the installation; empty: all pods have the present ones"""
    definition: str | None = None
    """what the definition of StreamJob in the cluster lacks, and what to do"""
    newest_key: int = 1
    """number of the key that a new run takes"""

    @property
    def uid(self) -> str:
        """Uid of the StreamJob."""
        return str(self.job["metadata"]["uid"])

    @property
    def name(self) -> str:
        """Name of the StreamJob."""
        return str(self.job["metadata"]["name"])

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the StreamJob."""
        return self.job["metadata"].get("annotations") or {}

    @property
    def driver(self) -> Pod | None:
        """The driver's pod."""
        return next((pod for pod in self.pods if pod.name == names.driver_pod(self.name)), None)

    @property
    def workers(self) -> tuple[Pod, ...]:
        """Pods of workers, by index."""
        pods = [p for p in self.pods if p.worker is not None and p.name == names.worker_pod(self.name, p.worker)]
        return tuple(sorted(pods, key=lambda pod: pod.worker or 0))

    @property
    def memory(self) -> JobMemory:
        """The operator's memory of the job. After a loss of the status, the pods have the numbers of the run and its key."""
        written = (self.job.get("status") or {}).get("memory")
        known = isinstance(written, dict) and written.get("uid") == self.uid
        key = max((pod.number(names.KEY, 1) for pod in self.pods), default=self.newest_key)
        with suppress(SpecRefused):
            kept = JobMemory.of(self.job)
            if kept != JobMemory(uid=self.uid, key=kept.key):
                return kept
            key = kept.key if known else key
        return JobMemory(uid=self.uid, run=max([1, *(pod.number(names.RUN) for pod in self.pods)]), key=key)

    @property
    def run(self) -> str:
        """Name of the run."""
        return names.run_name(self.name, self.uid, self.memory.run)

    @property
    def before(self) -> JobStatus:
        """The previous status; without the epoch if it is of another run."""
        status = JobStatus.read(self.job.get("status"))
        return (
            status if status.run in (None, self.run) else status.model_copy(update={"epoch": None, "generation": None})
        )

    @property
    def counted(self) -> Status | None:
        """The driver's status; None while the driver still reads the journal, because its counters begin at zero."""
        status, epoch = self.status, self.before.epoch
        reads = status is not None and status.progress.began is None and status.epoch == -1 and epoch is not None
        return None if reads else status

    @property
    def epoch(self) -> int | None:
        """The last known finished epoch; -1 before the first epoch, None before the first driver of a run."""
        return self.counted.epoch if self.counted is not None else self.last_epoch

    @property
    def last_epoch(self) -> int | None:
        """The last finished epoch that was known before this observation."""
        return max((epoch for epoch in (self.before.epoch, self.heard_epoch) if epoch is not None), default=None)

    @property
    def deleting(self) -> bool:
        """Whether the job is being deleted."""
        return self.job["metadata"].get("deletionTimestamp") is not None

    @property
    def paused(self) -> bool:
        """Whether the user has paused the operator for this job."""
        return self.annotations.get(names.PAUSED) == "true"
