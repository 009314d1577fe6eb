"""Who may roll: another default image or account replaces the pods of a few jobs at a time. Thread-safe.

All that must survive this process is in the status of the jobs (`observe.turns`). This class holds only the turns that were
given a moment ago, and are not in a status yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ferry.contract.errors import SpecRefused
from ferry_operator.job.status import JobMemory, JobStatus, PodDefaults
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.observe import turns as t
from ferry_operator.kube.observe.facts import Pod, stamp
from ferry_operator.kube.observe.turns import Turn

FRESH_SECONDS = 1.0
"""Age of the list of jobs that roll."""

GIVEN_SECONDS = 30.0
"""A turn without a note in the status is given back after this."""

REDIS = "status.memory.defaults.redis"

MEMORY = ("status.memory", "status.memory.defaults", "status.memory.roll")
"""Fields without which the API server drops the notes about turns."""


class Turns:
    """The turns of all jobs of an operator."""

    def __init__(self, jobs: Callable[[], Iterable[Doc]], at_once: int, deadline: float) -> None:
        self._jobs = jobs
        self._at_once = at_once
        self._deadline = deadline
        self._rolling: tuple[float, list[Doc]] = (-FRESH_SECONDS, [])
        self._given: dict[str, float] = {}
        """uids of jobs that were given a turn: times"""
        self._lock = threading.Lock()

    def of(self, job: Doc, pods: Sequence[Pod], release: Installation, now: float, lacking: Sequence[str] = ()) -> Turn:
        """The defaults in force for a job. `lacking`: fields that the definition in the cluster lacks."""
        try:
            memory = JobMemory.of(job)
        except SpecRefused:
            return Turn(release)
        dropped, new = any(path in lacking for path in MEMORY), t.present(release)
        old, address = memory.defaults or t.of_pods(job, pods, memory, release), new.redis_at
        if old.redis is None:  # a note of an operator that did not write this
            old = t.with_redis(old, new)
        if pods and old.redis != new.redis and t.works(job, memory) and not t.matters(job, old, new):
            new = t.with_redis(new, old)
            release = t.with_defaults(release, new)
        if old == new:
            known = memory.defaults is not None and (memory.defaults == new or REDIS in lacking)
            turn = Turn(release, None if dropped or known else (new, memory.roll))
            if memory.roll is not None:
                return self._under_way(job, turn, now)
            return turn if old.redis_at == address else replace(turn, reason="OtherRedis", message=_moved(old, address))
        if not pods or not t.matters(job, old, new) or not t.works(job, memory):
            return Turn(release, None if dropped else (new, None))
        held, keeps = t.with_defaults(release, old), f"this job keeps {_words(old, new)} until its turn"
        if memory.roll is not None:  # the defaults have changed during its turn
            note = memory.roll.model_copy(update={"since": stamp(now), "pods": 0})
            return Turn(held, (new, note), "Rolling", f"from {_words(old, new)} to {_words(new, old)}")
        if dropped:
            return Turn(held, None, "DefinitionOlder", f"{keeps}: first apply the definitions of the chart")
        if not t.is_ready(JobStatus.read(job.get("status"))):
            return Turn(held, None, "NotReady", f"{keeps}, which needs a job that is ready; or edit its spec")
        if (why := self._refusal(job, now)) is not None:
            return Turn(held, None, *why[:1], f"{keeps}: {why[1]}")
        return Turn(held, (new, t.begin(job, now)), "Rolling", f"to {_words(new, old)}")

    def stopped(self, now: float) -> list[str]:
        """Names of jobs whose rolls stand still, so that no other job begins one."""
        with self._lock:
            return [_name(job) for job in self._list(now) if t.overdue(job, now, self._deadline)]

    def _under_way(self, job: Doc, turn: Turn, now: float) -> Turn:
        text = f"to {turn.release.image}"
        if not t.has_turn(job) or not t.overdue(job, now, self._deadline):
            return Turn(turn.release, turn.note, "Rolling", text)
        text += f": no pod was replaced for {self._deadline:.0f} s"
        if t.was_edited(job):
            text += (
                ". Its spec was edited in its turn, so other jobs do not wait for it. "
                "The condition Degraded has the reason: mend this job"
            )
            return Turn(turn.release, turn.note, "Edited", text)
        text += (
            ", so no other job begins its roll. The condition Degraded has the reason. "
            "Mend or pause this job, or give the installation the previous default"
        )
        return Turn(turn.release, turn.note, "Stopped", text)

    def _refusal(self, job: Doc, now: float) -> tuple[t.Reason, str] | None:
        """Why a job gets no turn now; None: it has one."""
        uid, namespace = str(job["metadata"]["uid"]), job["metadata"].get("namespace")
        with self._lock:
            rolling = [each for each in self._list(now) if each["metadata"]["uid"] != uid]
            late = next((each for each in rolling if t.overdue(each, now, self._deadline)), None)
            if late is not None:
                mine = late["metadata"].get("namespace") == namespace
                which = late["metadata"]["name"] if mine else "a job of another namespace"
                return "Stopped", f"the roll has stopped, because {which} did not become ready under the new default"
            uids = {str(each["metadata"]["uid"]) for each in rolling}
            self._given = {key: at for key, at in self._given.items() if now - at < GIVEN_SECONDS and key != uid}
            if len(uids | self._given.keys()) >= self._at_once:
                return "Waiting", f"at most {self._at_once} jobs roll at a time"
            self._given[uid] = now
            return None

    def _list(self, now: float) -> list[Doc]:
        if not 0.0 <= now - self._rolling[0] < FRESH_SECONDS:
            self._rolling = (now, [job for job in self._jobs() if t.has_turn(job)])
        return [job for job in self._rolling[1] if not (t.overdue(job, now, self._deadline) and t.was_edited(job))]


def _moved(old: PodDefaults, address: str | None) -> str:
    return (
        f"its pods began with Redis at {old.redis_at}, and stay there; new pods use Redis at {address}: "
        "if this is another server, suspend and resume the job"
    )


def _words(mine: PodDefaults, other: PodDefaults) -> str:
    """What differs between two defaults."""
    account = f"account {mine.service_account}" if mine.service_account != other.service_account else ""
    return " and ".join(filter(None, (mine.image if mine.image != other.image else "", account)))


def _name(job: Doc) -> str:
    return f"{job['metadata'].get('namespace')}/{job['metadata']['name']}"
