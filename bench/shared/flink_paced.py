"""A job of Flink whose records come at their own pace: `PacedJob.java`. Its sinks say how old records are, in two ways:

when their effect is made, and when a checkpoint has made that durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.shared.ferry_paced import Step
from bench.shared.flink import FAST
from ferry.contract.latency import LatencyHistogram, bucket_of

SOURCE = Path(__file__).with_name("PacedJob.java")
SYSTEMS = {"at-once": "Flink, at least once", "committed": "Flink, exactly once"}
MANAGERS = 2


def settings(work: Path, cores: int, checkpoint: str) -> dict[str, str]:
    """Tuned for latency: records are not held back in buffers, nor copied; state is small, so it is on the heap."""
    return {
        "taskmanager.cpu.cores": str(cores), "state.backend.type": "hashmap",
        "execution.checkpointing.interval": checkpoint, "execution.checkpointing.dir": f"file://{work}/checkpoints",
        "execution.buffer-timeout.interval": "1 ms", "pipeline.object-reuse": "true",
        "pipeline.auto-watermark-interval": "50 ms", **FAST,
    }  # fmt: skip


def steps_of(out: Path, what: str) -> Iterator[Step]:
    """What the sinks have written, in order."""
    lines = [line for file in out.glob(f"*-{what}.txt") for line in file.read_text().splitlines(keepends=True)]
    steps = []
    for line in lines:
        now, _, *ages = line.split()
        if ages and line.endswith("\n"):
            counts: dict[int, int] = {}
            for age, count in (each.split(":") for each in ages):
                bucket = bucket_of(int(age) / 1000)
                counts[bucket] = counts.get(bucket, 0) + int(count)
            steps.append((int(now) / 1000, LatencyHistogram(counts)))
    yield from sorted(steps, key=lambda step: step[0])


def is_behind(steps: Sequence[Step], end: float) -> bool:
    """Whether all records that were created until then have come to the sinks: those after them have."""
    return any(t - one.quantile(1.0) >= end for t, one in steps[-20:])


def first_records(out: Path, since: float) -> dict[str, float]:
    """By subtask: when its newest sink, if it was opened since, told of a record first."""
    found = {}
    for file in sorted(out.glob("*-at-once.txt")):
        opened, subtask, *_ = file.name.split("-")
        told = [line.split(maxsplit=3) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        times = [int(words[0]) / 1000 for words in told if len(words) > 2]
        if int(opened) / 1000 >= since and times:
            found[subtask] = times[0]
    return found
