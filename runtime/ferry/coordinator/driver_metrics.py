"""Counters of the driver: records, epochs, stages; the source of status, metrics and the timeline.

Thread-safe: the epoch function writes, the control endpoint reads. Must never influence the protocol.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ferry.contract.latency import Counts
from ferry.contract.limits import SLOW_MS, WATERMARK_END, WATERMARK_NONE
from ferry.contract.notes import EpochCounts, EpochNotes
from ferry.contract.status import CheckpointStatus, SparkStatus
from ferry.contract.timeline import append_record
from ferry.coordinator.problems import Problems
from ferry.coordinator.record_latency import RecordLatency
from ferry.coordinator.window_rest import WindowRest
from ferry.protocol.coordinator import Coordinator

EPOCH_STAGES = ("spark", "ingest", "prepare", "commit", "emit", "sink")
"""Parts of an epoch, in their order."""


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
    """Busy seconds of all its tasks together."""
    ages: Counts = field(default_factory=dict)
    """Records by age when the epoch was planned, of sources that know when records were created."""
    newest: Mapping[int, int] = field(default_factory=dict)
    """By operator: the newest event time among the records of its sources."""
    ended: float = 0.0
    """Monotonic: a changed wall clock changes no rate."""

    def lasted(self, seconds: float, ended: float) -> None:
        """Set its duration and its end (monotonic)."""
        self.end, self.ended = self.begin + seconds, ended


PROGRAMS = 4
"""Newest programs whose epochs are counted apart."""


@dataclass(slots=True)
class ProgramCounts:
    """The epochs of one program under this driver."""

    epochs: int = 0
    seconds: float = 0.0
    rows: int = 0
    fired: int = 0
    late: int = 0
    malformed: int = 0

    def add(self, record: EpochRecord) -> None:
        """Count an epoch of it."""
        self.epochs += 1
        self.seconds += record.end - record.begin
        self.rows += record.rows
        self.fired += record.fired
        self.late += record.late
        self.malformed += record.malformed


class DriverMetrics:
    """Counters of one driver."""

    def __init__(self, job: str, directory: str, slow_ms: int = SLOW_MS) -> None:
        self.job = job
        self.directory = directory
        self.problems = Problems(self.note, slow_ms)
        self.rows = self.late = self.malformed = self.fired = 0
        self.epoch = -1
        self.began: int | None = None
        """The epoch that was taken over; None until the groups have answered."""
        self.finished = False
        self.checkpoint: CheckpointStatus | None = None
        """The last durable checkpoint."""
        self.spark = SparkStatus()
        self.epoch_mode = ""
        """How epochs are run; empty: not known yet."""
        self.unbounded = ""
        """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
        self.window_rest = WindowRest()
        self.latency = RecordLatency(directory)
        self.lags: dict[str, int] = {}
        """Records that wait to be read, by source; of sources that know their backlog."""
        self.violations: Counter[str] = Counter()
        """Rows that violate an expectation, by its name."""
        self.recent: deque[EpochRecord] = deque(maxlen=64)
        self.programs: dict[int, ProgramCounts] = {}
        """By number, of the newest programs."""
        self._lock = threading.Lock()

    def resume(self, epoch: int, notes: EpochNotes, late: int, again: bool) -> None:
        """Go on from the committed counters; `late`: late records of the last step.

        `again`: the sinks get the last committed epoch once more, and it is counted then.
        """
        rows, malformed, earlier = notes.epoch if again else EpochCounts()
        with self._lock:
            self.epoch, self.began = epoch, epoch + again
            self.rows, self.malformed = notes.rows - rows, notes.malformed - malformed
            self.late = notes.late + (-earlier if again else late)

    def finish_epoch(self, record: EpochRecord, generation: int, watermark: int, program: int = 1) -> None:
        """Count an epoch, of this program, whose rows are in the sink."""
        with self._lock:
            programs = self.programs | {program: self.programs.get(program, ProgramCounts())}
            programs[program].add(record)
            self.programs = {number: programs[number] for number in sorted(programs)[-PROGRAMS:]}
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
        """Write a record to the timeline."""
        append_record(self.directory, {"t": time.time(), "kind": kind, "text": text})

    def rates(self) -> tuple[float, float]:
        """(records per second, median epoch seconds) over the last epochs."""
        recent = list(self.recent)[-16:]
        if not recent:
            return 0.0, 0.0
        first = recent[0]
        seconds = max(recent[-1].ended - first.ended + first.end - first.begin, 1e-3)
        return sum(r.rows for r in recent) / seconds, statistics.median(r.end - r.begin for r in recent)

    def lag(self) -> int | None:
        """Waiting records of all sources that know their backlog; None: no source knows it."""
        return sum(self.lags.values()) if self.lags else None

    def stage_seconds(self, stage: str) -> float:
        """Median of the last epochs."""
        return statistics.median([r.stages.get(stage, 0.0) for r in list(self.recent)[-16:]] or [0.0])

    def watermark_lag(self, machine: Coordinator) -> float:
        """Seconds from the watermark to the clock; NaN before any input and after all of it."""
        known = WATERMARK_NONE < machine.commits.watermark < WATERMARK_END
        return time.time() - machine.commits.watermark / 1000 if known else math.nan
