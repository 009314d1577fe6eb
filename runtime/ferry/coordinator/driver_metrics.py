"""What the driver counts: records, epochs, stages; the source of status, metrics and the timeline.

Thread-safe: the epoch function writes, the control endpoint reads. Must never influence the protocol.
"""

from __future__ import annotations

import math
import re
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ferry.contract.latency import Counts
from ferry.contract.limits import SLOW_MS, WATERMARK_END, WATERMARK_NONE
from ferry.contract.names import InstanceId
from ferry.contract.notes import EpochCounts, EpochNotes
from ferry.contract.status import CHECKPOINT_DELAYED, CheckpointStatus, ReportedProblem, Status
from ferry.contract.timeline import append_record
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.coordinator.record_latency import RecordLatency
from ferry.coordinator.window_rest import WindowRest
from ferry.protocol.coordinator import Coordinator
from ferry.protocol.coordinator.groups import settled

EPOCH_STAGES = ("spark", "ingest", "prepare", "commit", "emit", "sink")
"""Parts of an epoch, in their order."""

PROBLEM_TEXT_MAX = 1000
"""Characters of what is said of a problem: it travels with every status."""

SLOW_CODE = "SlowCode"
"""What the problem is called."""

NUMBER = re.compile(r"\d+")


def is_settled(machine: Coordinator) -> bool:
    """Whether the groups are what is desired."""
    plan = machine.moves.plan
    return plan is not None and settled(machine.table, plan.placements, dict(machine.alive))


def members_gone(machine: Coordinator) -> int:
    """Members that groups have or should have now, and that are not there."""
    alive, wanted = dict(machine.alive), machine.moves.placements()
    pairs = zip(machine.table.groups, wanted, strict=True)
    return sum(i not in alive for group, placement in pairs for i in {*group.in_sync, *placement})


def prepared(machine: Coordinator) -> str:
    """What plan is to come, and when; empty where none waits for its time."""
    plan, commits = machine.journaling.prepared, machine.commits
    if plan is None or plan.is_due(commits.following.epoch, commits.watermark):
        return ""
    due = [f"with epoch {plan.at_epoch}"] if plan.at_epoch > commits.following.epoch else []
    if plan.at_time is not None and plan.at_time > commits.watermark:
        due.append(f"when the watermark is at {datetime.fromtimestamp(plan.at_time / 1000, UTC).isoformat()}")
    return f"plan {plan.number} begins {', and '.join(due)}"


def is_at_rest(machine: Coordinator) -> bool:
    """Whether the groups are what is desired and nothing else: former members are let go, too."""
    wanted = machine.moves.plan.placements if machine.moves.plan is not None else ()
    return is_settled(machine) and all(
        i in placement for group, placement in zip(machine.table.groups, wanted, strict=True) for i in group.in_sync
    )


def notices(machine: Coordinator) -> tuple[ReportedProblem, ...]:
    """What the coordinator has found and works around; read from another thread."""
    now = machine.now
    found: dict[str, tuple[list[str], int]] = {}

    def add(reason: str, text: str, since: int) -> None:
        texts, first = found.get(reason, ([], since))
        found[reason] = [*texts, text], min(first, since)

    for i, failure in sorted(dict(machine.members.failed).items()):
        if failure.since is not None:
            add("InstanceFailed", f"{i}: {failure.reason}", failure.since)
    for (a, b), backoff in sorted(dict(machine.reachability.apart).items()):
        if now < backoff.until:
            add("InstancesApart", f"{a} and {b} cannot reach each other", backoff.since)
    moves: dict[tuple[InstanceId, str], tuple[int, int]] = {}
    for (i, _), refusal in sorted(dict(machine.moves.refused).items()):
        if now < refusal.backoff.until:
            count, since = moves.get((i, refusal.reason), (0, refusal.backoff.since))
            moves[(i, refusal.reason)] = count + 1, min(since, refusal.backoff.since)
    for (i, reason), (count, since) in moves.items():
        add("MovesGivenUp", f"{count} copies on {i}: {reason}", since)
    return tuple(
        ReportedProblem(reason, "; ".join(texts)[:PROBLEM_TEXT_MAX], time.time() - (now - since) / 1000)
        for reason, (texts, since) in found.items()
    )


def failing_code(machine: Coordinator) -> tuple[ReportedProblem, ...]:
    """The user's code in instances that fails, and keeps the job from going on; read from another thread."""
    code = machine.attempts.code
    if not (reason := code.reason):
        return ()
    since = time.time() - (machine.now - code.since) / 1000
    return (ReportedProblem("UserCode", reason[:PROBLEM_TEXT_MAX], since),)


@dataclass(slots=True)
class EpochRecord:
    """One finished epoch: when it began by the clock on the wall, how long it took, counts, and seconds per stage."""

    epoch: int
    begin: float
    end: float
    rows: int
    fired: int
    late: int
    malformed: int
    stages: dict[str, float] = field(default_factory=dict)
    planned: float = 0.0
    tasks: int = 0
    busy: float = 0.0
    """Seconds, of all its tasks together."""
    ages: Counts = field(default_factory=dict)
    """How old its records were when it was planned, as far as their sources say when they were created."""
    newest: Mapping[int, int] = field(default_factory=dict)
    """By operator: the newest event time of what sources have brought for it."""
    ended: float = 0.0
    """Monotonic: steps of the clock on the wall change no rate."""

    def lasted(self, seconds: float, ended: float) -> None:
        """It took so long, and ended then (monotonic)."""
        self.end, self.ended = self.begin + seconds, ended


class DriverMetrics:
    """Counters of one driver."""

    def __init__(self, job: str, directory: str, slow_ms: int = SLOW_MS) -> None:
        self.job = job
        self.directory = directory
        self.slow_ms = slow_ms
        self._running: dict[object, tuple[str, float]] = {}
        """The user's code that runs for this driver: what it does, and since when (monotonic)."""
        self.rows = self.late = self.malformed = self.fired = 0
        self.epoch = -1
        self.began: int | None = None
        """The epoch that was taken over; None before the groups have answered."""
        self.finished = False
        self.problems: tuple[ReportedProblem, ...] = ()
        self._problem_since: dict[str, float] = {}
        """monotonic"""
        """What fails and is tried again."""
        self.lasting: tuple[ReportedProblem, ...] = ()
        """What should be mended, though the job goes on."""
        self.checkpoint: CheckpointStatus | None = None
        """The last durable one."""
        self.epoch_mode = ""
        """How epochs are run; empty: not known yet."""
        self.unbounded = ""
        """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
        self.window_rest = WindowRest()
        self.latency = RecordLatency(directory)
        self.lags: dict[str, int] = {}
        """Records that wait to be read, by source; of those that know."""
        self.recent: deque[EpochRecord] = deque(maxlen=64)
        self._lock = threading.Lock()

    def resume(self, epoch: int, notes: EpochNotes, late: int, again: bool) -> None:
        """Go on from the counters that were committed; `late` are those of the last step.

        `again`: the sinks get the last committed epoch once more, and it is counted then.
        """
        rows, malformed, earlier = notes.epoch if again else EpochCounts()
        with self._lock:
            self.epoch, self.began = epoch, epoch + again
            self.rows, self.malformed = notes.rows - rows, notes.malformed - malformed
            self.late = notes.late + (-earlier if again else late)

    def finish_epoch(self, record: EpochRecord, generation: int, watermark: int) -> None:
        """Count an epoch whose rows are in the sink."""
        with self._lock:
            self.epoch = record.epoch
            self.rows += record.rows
            self.late += record.late
            self.malformed += record.malformed
            self.fired += record.fired
            self.recent.append(record)
        known = WATERMARK_NONE < watermark < WATERMARK_END
        if known:
            self.window_rest.seen(record.end, watermark, record.newest)
        append_record(
            self.directory,
            {
                "t": record.end,
                "kind": "epoch",
                "epoch": record.epoch,
                "generation": generation,
                "begin": record.begin,
                "end": record.end,
                "up": time.monotonic(),
                "rows": record.rows,
                "fired": record.fired,
                "late": record.late,
                "malformed": record.malformed,
                "stages": {k: round(v, 5) for k, v in record.stages.items()},
                "watermark": watermark if known else None,
            },
        )
        self.latency.add(record.ages, record.end, record.end - record.planned)

    def note(self, kind: str, text: str) -> None:
        """A fact for the timeline."""
        append_record(self.directory, {"t": time.time(), "kind": kind, "text": text})

    def warn(self, reason: str, text: str) -> None:
        """Something should be mended: it stays in the status for as long as this driver lives."""
        self.note("warning", text)
        self.lasting = (*self.lasting, ReportedProblem(reason, text[:PROBLEM_TEXT_MAX], time.time()))

    def delayed(self, reason: str, text: str) -> None:
        """Something is late that the job does not wait for. The timeline hears of it once, the status has the latest.

        Other numbers in the same words, such as the milliseconds of an attempt, are no news: a cluster tells of each.
        """
        known = next((one for one in self.lasting if one.reason == reason), None)
        if known is None:
            self.warn(reason, text)
        elif NUMBER.sub("", known.text) != NUMBER.sub("", text[:PROBLEM_TEXT_MAX]):
            self.lasting = tuple(replace(t, text=text[:PROBLEM_TEXT_MAX]) if t is known else t for t in self.lasting)

    def caught_up(self, reason: str) -> None:
        """It is late no more."""
        if any(one.reason == reason for one in self.lasting):
            self.lasting = tuple(one for one in self.lasting if one.reason != reason)
            self.note("mended", reason)

    def is_late(self) -> bool:
        """Whether a durable checkpoint is."""
        return any(one.reason == CHECKPOINT_DELAYED for one in self.lasting)

    def report_problem(self, reason: str, text: str) -> None:
        """Something fails and is tried again. The timeline hears of it once, the status has its latest text."""
        text = text[:PROBLEM_TEXT_MAX]
        with self._lock:
            known = next((t for t in self.problems if t.reason == reason), None)
            if known is None:
                self.problems = (*self.problems, ReportedProblem(reason, text, time.time()))
                self._problem_since[reason] = time.monotonic()
            else:
                self.problems = tuple(replace(t, text=text) if t is known else t for t in self.problems)
        if known is None:
            self.note("degraded", text)

    def mended(self, reason: str) -> None:
        """It works (again)."""
        with self._lock:
            over = any(one.reason == reason for one in self.problems)
            self.problems = tuple(one for one in self.problems if one.reason != reason)
        if over:
            self.note("mended", f"{reason}, after {time.monotonic() - self._problem_since[reason]:.1f} s")

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Around the user's code in this process, or in tasks that are waited for: what it does."""
        mine = object()
        self._running[mine] = text, time.monotonic()
        try:
            yield
        finally:
            del self._running[mine]

    def tell_slow_code(self, machine: Coordinator) -> None:
        """Say which of the user's code takes long, here and in instances; to be called again and again."""
        now = time.monotonic()
        found = [(text, int((now - since) * 1000)) for text, since in [*self._running.values()]]
        instances = sorted(dict(machine.members.in_code).items())
        found += [(f"{i}: {what}, for", machine.now - since) for i, (what, since) in instances]
        if slow := [f"{text} {ms // 1000} s" for text, ms in found if ms >= self.slow_ms]:
            self.report_problem(SLOW_CODE, "; ".join(slow))
        else:
            self.mended(SLOW_CODE)

    def rates(self) -> tuple[float, float]:
        """(records per second, median epoch seconds) over the last epochs."""
        recent = list(self.recent)[-16:]
        if not recent:
            return 0.0, 0.0
        first = recent[0]
        seconds = max(recent[-1].ended - first.ended + first.end - first.begin, 1e-3)
        return sum(r.rows for r in recent) / seconds, statistics.median(r.end - r.begin for r in recent)

    def lag(self) -> int | None:
        """Records that wait in all sources that know; None: none knows."""
        return sum(self.lags.values()) if self.lags else None

    def stage_seconds(self, stage: str) -> float:
        """Median of the last epochs."""
        return statistics.median([r.stages.get(stage, 0.0) for r in list(self.recent)[-16:]] or [0.0])

    def watermark_lag(self, machine: Coordinator) -> float:
        """Seconds from the watermark to the clock; NaN before any input and after all of it."""
        known = WATERMARK_NONE < machine.commits.watermark < WATERMARK_END
        return time.time() - machine.commits.watermark / 1000 if known else math.nan

    def status(self, machine: Coordinator, move_metrics: MoveMetrics, bandwidth: int = -1) -> Status:
        """A snapshot; the machine's values are frozen, so reading them from another thread is safe."""
        table = machine.table
        rate, seconds = self.rates()
        plan = machine.moves.plan
        known = WATERMARK_NONE < machine.commits.watermark < WATERMARK_END
        return Status(
            job=self.job,
            generation=machine.generation,
            phase=str(machine.phase),
            epoch=self.epoch,
            watermark=machine.commits.watermark if known else None,
            version=(table.version.generation, table.version.number),
            groups=[(list(g.in_sync), list(g.learners)) for g in table.groups],
            settled=is_settled(machine),
            desired=plan.number if plan is not None else 0,
            alive=sorted(machine.alive),
            loads=move_metrics.loads(table, rate),
            replica_lag=move_metrics.replica_lag(self.epoch),
            rows=self.rows,
            late=self.late,
            malformed=self.malformed,
            rows_per_second=rate,
            epoch_seconds=seconds,
            journal_up=machine.journaling.up,
            finished=self.finished,
            problems=(*self.problems, *failing_code(machine)),
            notices=(*self.lasting, *notices(machine), *move_metrics.damages()),
            moves_given_up=sum(machine.now < r.backoff.until for r in list(machine.moves.refused.values())),
            transport=move_metrics.links(),
            began=self.began,
            checkpoint=self.checkpoint,
            epoch_mode=self.epoch_mode,
            members_gone=members_gone(machine),
            prepared=prepared(machine),
            rolled_back=machine.journaling.plan.undone if machine.journaling.plan is not None else "",
            plan_steps=(plan.reached, len(plan.steps)) if plan is not None else (0, 0),
            boundaries=tuple(move_metrics.boundaries()),
            unbounded=self.unbounded,
            bandwidth=bandwidth,
            windows_end_in=self.window_rest.seconds(time.time()),
            latency=self.latency.recent(time.time()),
            work=move_metrics.work.recent(self.lag()),
            quiet_seconds=move_metrics.quiet_seconds(),
            move_costs=move_metrics.costs(),
        )
