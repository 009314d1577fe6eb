"""Rhino (Del Monte et al., SIGMOD 2020): handover and recovery of large state."""

from __future__ import annotations

from collections.abc import Callable

from bench.parts.papers.rows import Answer, Row, runs
from bench.shared.results import Results

SIZES = ("10MB", "1GB")


def paused(results: Results) -> Answer:
    """Pause of a planned move by the size of the state, beside Flink; the ratio is for the largest size."""
    move = {"case": "move to 4", "metric": "pause"}
    words, longest = list[str](), list[float]()
    for system in ("Ferry", "Flink"):
        small, large = runs(results, *({"system": system, "size": size, **move} for size in SIZES))
        slope = large.median / small.median
        words.append(f"{system} {small.told()} -> {large.told()} s, {slope:.1f} times as long")
        longest.append(large.median)
    return Answer(f"2 to 4 workers, {SIZES[0]} -> {SIZES[1]}: {'; '.join(words)}", longest[1] / longest[0])


def recovered(results: Results) -> Answer:
    """`kill -9` of a worker whose state has a copy, beside tuned Flink."""
    parts = ("total", "scheduling", "fetching", "loading")
    cases = (("Ferry", "in-sync replica"), ("flink-tuned", "store, one worker lost"))
    words, totals = list[str](), list[float]()
    for system, case in cases:
        wanted = ({"system": system, "case": case, "metric": part, "gigabytes": 1.0} for part in parts)
        total, *rest = runs(results, *wanted)
        named = ", ".join(f"{part.median:.2f} {name}" for name, part in zip(parts[1:], rest, strict=True))
        words.append(f"{'Flink, tuned' if system != 'Ferry' else 'Ferry'} {total.told()} s ({named})")
        totals.append(total.median)
    return Answer(f"1 GB: {'; '.join(words)}", totals[1] / totals[0])


def replicated(results: Results) -> Answer:
    """Records/s by the number of copies; the ratio is two copies to no copies."""
    case = {"system": "Ferry", "case": "replicas", "metric": "throughput"}
    found = runs(results, *({**case, "replicas": number} for number in (0, 1, 2)))
    rates = ", ".join(one.told(1e-6) for one in found)
    return Answer(f"{rates} M records/s with 0, 1, 2 replicas", found[-1].median / found[0].median)


def around(*queries: str) -> Callable[[Results], Answer]:
    """Longest wait of a record around an act, beside Flink with at-least-once sinks."""

    def answer(results: Results) -> Answer:
        words = list[str]()
        for query in queries:
            before, ours, tuned, theirs = runs(
                results, {"system": "Ferry", "case": query, "metric": "max before"},
                *(
                    {"system": system, "case": query, "metric": "max during"}
                    for system in ("Ferry", "Flink, tuned, at least once", "Flink, at least once")
                ),
            )  # fmt: skip
            words.append(
                f"{query.upper()}: at most {before.told(1e3, '.0f')} ms before, {ours.told(1e3, '.0f')} ms around it; "
                f"Flink, tuned {tuned.told()} s, as it comes {theirs.told()} s"
            )
        return Answer(". ".join(words))

    return answer


def alone(query: str) -> Callable[[Results], Answer]:
    """Longest wait of a record around an act; no rival has the query."""

    def answer(results: Results) -> Answer:
        about = {"system": "Ferry", "case": query}
        wanted = ({**about, "metric": f"{what} {when}"} for what in ("p99", "max") for when in ("before", "during"))
        p99, around_it, before, during = (one.told(1e3, ".0f") for one in runs(results, *wanted))
        return Answer(
            f"{query.upper()}: p99 {p99} ms before, {around_it} ms around it, at most {before} and {during} ms"
        )

    return answer


APART = ("--links", "1gbit", "--rate", "20000", "--minutes", "0.75")
"""Each worker is a separate machine, so that traffic over the network is measured; needs root."""

SMALL = (
    "The state has some MB, in the paper up to 220 GB; the paper says that with small state Flink is as fast. "
    "The longest wait of one run"
)

ROWS = (
    Row(
        "rhino-1",
        "Rhino, figure 1",
        "How long does the output stop when state moves, by its size?",
        "1 TB: 50 times less than Flink, 15 times less than Megaphone",
        "50 (Flink, 1 TB)",
        "Counts per key in place of NBQ8. The pause of Ferry is the longest time between the ends of two epochs, without "
        "the start of the new workers. Flink with RocksDB on the local disk; its ForSt backend was not measured",
        (
            "handover",
            "--sizes",
            *SIZES,
            "--systems",
            "ferry",
            "flink",
            "--rows",
            "800",
            "--interval",
            "20ms",
            "--repeats",
            "2",
            "--driver-kills",
            "0",
        ),
        paused,
    ),
    Row(
        "rhino-table-1",
        "Rhino, table 1",
        "How long does the output stop when a worker process is killed (in the paper, a machine)?",
        "1 TB: 4.7 s (3.0 scheduling, 0.2 fetching, 1.5 loading); Flink 257 s",
        "55 (Flink, 1 TB)",
        "A killed process closes its connections, so both systems notice it at once. A lost machine is noticed after "
        "`failure.timeout` (2.5 s) by Ferry and 3 s by Flink: not counted. The store of Flink is on the same machine",
        ("recovery", "--gigabytes", "1", "--systems", "ferry", "flink-tuned", "--repeats", "1"),
        recovered,
    ),
    Row(
        "rhino-4d",
        "Rhino, figures 4d and 4e (scaling)",
        "How long does a record take around the addition of a worker?",
        "instances are added on existing workers. NBQ8: 146 ms, Flink up to 570 s; NBQ5: as before, Flink 1 s",
        "",
        f"Another act: the paper scales vertically. {SMALL}",
        ("reconfigure", *APART, "--act", "scale", "--queries", "nbq8", "nbq5"),
        around("nbq8", "nbq5"),
    ),
    Row(
        "rhino-4g",
        "Rhino, figures 4g and 4h (load balancing)",
        "How long does a record take when half of the virtual nodes of an instance go to another?",
        "NBQ8: 110 ms, then 60 more for a minute; NBQ5: 60 ms, then 20, Flink 500; Flink is rescaled instead: NBQ8 "
        "up to 570 s",
        "",
        SMALL,
        ("reconfigure", *APART, "--act", "balance", "--queries", "nbq8", "nbq5"),
        around("nbq8", "nbq5"),
    ),
    Row(
        "rhino-4i",
        "Rhino, figure 4i (load balancing, NBQX)",
        "Figure 4g, with five joins at once, four of them session joins",
        "about 4 s, no increase around the move; Flink is rescaled instead: up to 3.5 min",
        "",
        f"This bench has no such query for Flink. {SMALL}",
        ("reconfigure", *APART, "--act", "balance", "--queries", "nbqx"),
        alone("nbqx"),
    ),
    Row(
        "rhino-6",
        "Rhino, figure 6",
        "Figure 4g, with a rate that rises and falls in steps",
        "a server is drained. NBQ8: 205 ms on average, no increase around the move; Flink up to 225 s",
        "",
        f"Half of a worker's state moves; the worker is not drained. {SMALL}",
        ("reconfigure", *APART, "--act", "balance", "--profile", "varying", "--queries", "nbq8"),
        around("nbq8"),
    ),
    Row(
        "rhino-5.1",
        "Rhino, section 5.1.4 (NBQ5)",
        "How many records a second do the copies of the state cost?",
        "135 M/s on 8 machines with copies, the same as Flink without copies",
        "1 (with copies to without)",
        "Ferry without copies in place of Flink; three workers share two cores",
        ("throughput", "--queries", "nbq5", "--systems", "ferry", "--cases", "replicas", "--repeats", "3"),
        replicated,
    ),
)
