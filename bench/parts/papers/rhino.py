"""Rhino (Del Monte et al., SIGMOD 2020): handover and recovery of large state."""

from __future__ import annotations

from collections.abc import Callable

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


def around(*queries: str) -> Callable[[Results], Answer]:
    """How long a record waits at most around an act, beside Flink whose sinks may repeat; the ratio is the first query's."""

    def answer(results: Results) -> Answer:
        words, ratios = list[str](), list[float]()
        for query in queries:
            before, ours, tuned, theirs = medians(
                results, {"system": "Ferry", "case": query, "metric": "max before"},
                *(
                    {"system": system, "case": query, "metric": "max during"}
                    for system in ("Ferry", "Flink, tuned, at least once", "Flink, at least once")
                ),
            )  # fmt: skip
            words.append(
                f"{query.upper()}: at most {before * 1000:.0f} ms before, {ours * 1000:.0f} ms around it; "
                f"Flink, tuned {tuned:.2f} s, as it comes {theirs:.2f} s"
            )
            ratios.append(tuned / ours)
        return ". ".join(words), ratios[0]

    return answer


def alone(query: str) -> Callable[[Results], Answer]:
    """How long a record waits at most around an act; no rival has the query."""

    def answer(results: Results) -> Answer:
        about = {"system": "Ferry", "case": query}
        before, during, p99, around_it = medians(
            results,
            *({**about, "metric": f"{what} {when}"} for what in ("max", "p99") for when in ("before", "during")),
        )
        return (
            f"{query.upper()}: p99 {p99 * 1000:.0f} ms before, {around_it * 1000:.0f} ms around it, at most "
            f"{before * 1000:.0f} and {during * 1000:.0f} ms (not measured with Flink)"
        ), None

    return answer


APART = ("--links", "1gbit", "--rate", "20000", "--minutes", "0.75")
"""Workers are machines of their own, so that what crosses the network is seen; needs root."""

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
        "rhino-4d",
        "Rhino, figures 4d and 4e (scaling)",
        "How long does a record take around the addition of instances?",
        "NBQ8: 146 ms, Flink to 570 s; NBQ5: as before, Flink 1 s",
        "over 1,000 (NBQ8)",
        ("reconfigure", *APART, "--act", "scale", "--queries", "nbq8", "nbq5"),
        around("nbq8", "nbq5"),
    ),
    Row(
        "rhino-4g",
        "Rhino, figures 4g and 4h (load balancing)",
        "How long does a record take when half of the virtual nodes of an instance go to another?",
        "NBQ8: 110 ms, then 60 more for a minute; NBQ5: 60 ms, then 20, Flink 500; Flink is rescaled instead: NBQ8 to 570 s",
        "over 1,000 (NBQ8)",
        ("reconfigure", *APART, "--act", "balance", "--queries", "nbq8", "nbq5"),
        around("nbq8", "nbq5"),
    ),
    Row(
        "rhino-4i",
        "Rhino, figure 4i (load balancing, NBQX)",
        "The same with five joins at once, four of them of sessions",
        "about 4 s, and no more around it; Flink is rescaled instead: to 3.5 min",
        "about 50",
        ("reconfigure", *APART, "--act", "balance", "--queries", "nbqx"),
        alone("nbqx"),
    ),
    Row(
        "rhino-6",
        "Rhino, figure 6",
        "The same while the rate goes up and down in steps",
        "NBQ8: 205 ms on average, and no more around it; Flink to 225 s",
        "about 1,000",
        ("reconfigure", *APART, "--act", "balance", "--profile", "varying", "--queries", "nbq8"),
        around("nbq8"),
    ),
    Row(
        "rhino-5.1",
        "Rhino, section 5.1.4 (NBQ5)",
        "Records a second",
        "135 M on 8 machines, as Flink",
        "1",
        thrown_with("nbq5"),
        thrown("nbq5", "Spark"),
    ),
)
