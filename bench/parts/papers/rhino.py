"""Rhino (Del Monte et al., SIGMOD 2020): handover and recovery of large state."""

from __future__ import annotations

from bench.parts.papers.rows import Answer, Row, medians, thrown, thrown_with
from bench.shared.results import Results


def paused(results: Results) -> Answer:
    """A planned move at the largest size, beside Flink."""
    move = {"case": "move to 4", "metric": "pause", "size": "1GB"}
    ours, theirs = medians(results, {"system": "Ferry", **move}, {"system": "Flink", **move})
    return f"1 GB, 2 to 4 workers: {ours:.2f} s; Flink {theirs:.1f} s", theirs / ours


def recovered(results: Results) -> Answer:
    """`kill -9` of a worker whose state has a copy, beside Flink as it is tuned."""
    found = {"metric": "total", "gigabytes": 1.0}
    ours, theirs = medians(
        results, {"system": "Ferry", "case": "in-sync replica", **found},
        {"system": "flink-tuned", "case": "store, one worker lost", **found},
    )  # fmt: skip
    return f"1 GB: {ours:.2f} s; Flink, tuned {theirs:.1f} s", theirs / ours


ROWS = (
    Row(
        "rhino-1",
        "Rhino, figure 1",
        "How long does the output stop when state moves, by its size?",
        "1 TB: 50 times less than Flink, 15 times less than Megaphone; flat by size",
        "50",
        (
            "handover",
            "--sizes",
            "10MB",
            "1GB",
            "--systems",
            "ferry",
            "flink",
            "--rows",
            "800",
            "--interval",
            "20ms",
            "--repeats",
            "1",
            "--driver-kills",
            "0",
        ),
        paused,
    ),
    Row(
        "rhino-table-1",
        "Rhino, table 1",
        "How long does the output stop when a machine is lost?",
        "1 TB: 4.7 s (3.0 scheduling, 0.2 fetching, 1.5 loading); Flink 257 s",
        "55",
        ("recovery", "--gigabytes", "1", "--systems", "ferry", "flink-tuned", "--repeats", "1"),
        recovered,
    ),
    Row(
        "rhino-5.1",
        "Rhino, section 5.1.4 (NBQ5)",
        "Records a second",
        "135 M on 8 machines, as Flink",
        "1",
        thrown_with("nbq5"),
        thrown("nbq5"),
    ),
)
