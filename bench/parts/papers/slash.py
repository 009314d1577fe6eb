"""Slash (Del Monte et al., SIGMOD 2022): records a second without repartitioning."""

from __future__ import annotations

from bench.parts.papers.rows import Answer, Row, medians, thrown, thrown_with
from bench.shared.results import Results

ALL = ("ferry", "spark", "uppar")


def skewed(results: Results) -> Answer:
    """What is left of records/s when few keys have most records, beside records that are repartitioned."""
    words, kept = list[str](), dict[str, float]()
    for query in ("ro", "ysb"):
        case = {"case": f"{query}, zipf", "metric": "throughput", "batch": 1_000_000}
        asked = [{"system": name, "skew": skew, **case} for name in ("Ferry", "UpPar") for skew in (0.2, 2.0)]
        even, ours, flat, theirs = medians(results, *asked)
        kept[query] = (ours / even) / (theirs / flat)
        moved = f"{even / 1e6:.2f} -> {ours / 1e6:.2f} M records/s; UpPar {flat / 1e6:.2f} -> {theirs / 1e6:.2f} M"
        words.append(f"{query.upper()}, exponent 0.2 -> 2.0: {moved}")
    return ". ".join(words), kept["ro"]


def cost(results: Results) -> Answer:
    """How many processors Ferry needs to be ahead of one thread, if more of them bring what these do."""
    words, ratios = list[str](), list[float]()
    (cores,) = medians(results, {"case": "about", "metric": "cores"})
    for query in ("ysb", "cm"):
        case = {"case": f"{query}, files", "metric": "throughput", "batch": 1_000_000}
        ours, alone = medians(results, {"system": "Ferry", **case}, {"system": "One thread", **case})
        ratios.append(ours / alone)
        rates = f"{ours / 1e6:.2f} M records/s with {cores:.0f} cores, one thread {alone / 1e6:.2f} M"
        words.append(f"{query.upper()}: {rates}: as much as {cores * alone / ours:.1f} cores")
    return "; ".join(words), ratios[0]


ROWS = (
    Row(
        "slash-9a",
        "Slash, figure 9a (YSB)",
        "Records a second, beside records that are repartitioned",
        "12 times its own repartitioning (UpPar), 25 times Flink, on 16 machines",
        "12",
        thrown_with("ysb", systems=ALL),
        thrown("ysb", "UpPar", "Spark"),
    ),
    Row(
        "slash-9b",
        "Slash, figure 9b (CM)",
        "Records a second, beside records that are repartitioned",
        "up to two orders of magnitude beyond UpPar and Flink, on 16 machines",
        "to 100",
        thrown_with("cm", systems=ALL),
        thrown("cm", "UpPar", "Spark"),
    ),
    Row(
        "slash-9-ro",
        "Slash, figure 10a (RO)",
        "Records a second, beside records that are repartitioned",
        "11.2 GB/s with two threads, UpPar 5.9",
        "1.9",
        thrown_with("ro", systems=ALL),
        thrown("ro", "UpPar", "Spark"),
    ),
    Row(
        "slash-10d",
        "Slash, figure 10d (RO, YSB)",
        "What does it cost that few keys have most records (Zipf, exponents 0.2 to 2.0)?",
        "nothing in RO, YSB gets faster; UpPar loses, as they count, up to 68 % (RO) and 110 % (YSB)",
        "1.7 or 3.1 (RO)",
        (*thrown_with("ro", "ysb", systems=("ferry", "uppar")), "--skew", "0.2", "0.6", "1.0", "1.5", "2.0"),
        skewed,
    ),
    Row(
        "cost",
        "Slash, figure 11 (COST; McSherry et al.)",
        "Records a second, beside one thread: how many cores does Ferry need to be ahead of it?",
        "16 machines 11.6 times LightSaber on one (YSB, CM), 4.4 times (NB7); ahead from two on",
        "11.6",
        thrown_with("ysb", "cm", systems=("ferry", "single")),
        cost,
    ),
)
