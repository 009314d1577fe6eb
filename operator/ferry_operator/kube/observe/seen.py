"""One look at the cluster and at the driver. Values only: the view understands them."""

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
from ferry_operator.kube.observe.older_notes import OlderNotes, older_notes


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the cluster, and at the driver if it answered."""

    job: Doc
    pods: tuple[Pod, ...]
    nodes: Mapping[str, KubeNode] | None
    """None: they may not be read"""
    budget: bool
    """the PodDisruptionBudget is there"""
    status: Status | None
    submitted: Submitted | None
    now: float
    problems: tuple[Problem, ...] = ()
    """errors of the last pass, and the problem of Redis"""
    heard_epoch: int | None = None
    """the last epoch that a driver of this run told this operator"""

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
        found = [p for p in self.pods if p.worker is not None and p.name == names.worker_pod(self.name, p.worker)]
        return tuple(sorted(found, key=lambda pod: pod.worker or 0))

    @property
    def memory(self) -> JobMemory:
        """The operator's notes about the job. After the loss of the status, the pods tell the number of the run."""
        if (older := self.older) is not None:
            return older.memory
        with suppress(SpecRefused):
            if (kept := JobMemory.of(self.job)) != JobMemory(uid=self.uid):
                return kept
        return JobMemory(uid=self.uid, run=max([1, *(pod.number(names.RUN) for pod in self.pods)]))

    @property
    def older(self) -> OlderNotes | None:
        """The notes of an older release about the job; None when this release has a memory of it."""
        return older_notes(self.job)

    @property
    def run(self) -> str:
        """Name of the run."""
        return names.run_name(self.name, self.uid, self.memory.run)

    @property
    def before(self) -> JobStatus:
        """The status that was written last, without the epoch when it is of another run."""
        found = JobStatus.read(self.job.get("status"))
        return found if found.run in (None, self.run) else found.model_copy(update={"epoch": None, "generation": None})

    @property
    def counted(self) -> Status | None:
        """The driver's status; None while the driver still reads the journal, and counts from nothing."""
        status, epoch = self.status, self.before.epoch
        reads = status is not None and status.progress.began is None and status.epoch == -1 and epoch is not None
        return None if reads else status

    @property
    def epoch(self) -> int | None:
        """The last finished one, as far as is known; -1 before the first, None before the first driver of a run."""
        return self.counted.epoch if self.counted is not None else self.last_epoch

    @property
    def last_epoch(self) -> int | None:
        """The last finished epoch that was heard or written before this look."""
        return max((one for one in (self.before.epoch, self.heard_epoch) if one is not None), default=None)

    @property
    def deleting(self) -> bool:
        """The job is going away."""
        return self.job["metadata"].get("deletionTimestamp") is not None

    @property
    def paused(self) -> bool:
        """The user wants nothing to be changed."""
        return self.annotations.get(names.PAUSED) == "true"
