"""Slash (Del Monte et al., SIGMOD 2022): records a second without repartitioning."""

from __future__ import annotations

from bench.parts.papers.rows import Answer, Row, runs, throughputs, thrown_with
from bench.shared.results import Results

ALL = ("ferry", "spark", "uppar")
NAMES = ("Ferry", "UpPar", "Spark")

UPPAR = (
    "UpPar here is a process of Ferry that keeps rows, a slower operator than its rival; in Slash both have the same "
    "operator. No Flink; one machine; Ferry without replicas; Spark with the same batch of 1 M records"
)


def skewed(results: Results) -> Answer:
    """Records/s when few keys have most records, beside repartitioning."""
    words = list[str]()
    for query in ("ro", "ysb"):
        case = {"case": f"{query}, zipf", "metric": "throughput", "batch": 1_000_000}
        wanted = [{"system": name, "skew": skew, **case} for name in ("Ferry", "UpPar") for skew in (0.2, 2.0)]
        even, ours, flat, theirs = (one.told(1e-6) for one in runs(results, *wanted))
        words.append(f"{query.upper()}, exponent 0.2 -> 2.0: {even} -> {ours} M records/s; UpPar {flat} -> {theirs} M")
    return Answer(". ".join(words))


def cost(results: Results) -> Answer:
    """Records/s beside one thread."""
    words = list[str]()
    (cores,) = runs(results, {"case": "about", "metric": "cores"})
    for query in ("ysb", "cm"):
        case = {"case": f"{query}, files", "metric": "throughput", "batch": 1_000_000}
        ours, alone = runs(results, {"system": "Ferry", **case}, {"system": "One thread", **case})
        reached = "" if ours.median > alone.median else ": not reached on this machine"
        rates = f"{ours.told(1e-6)} M records/s with {cores.told(form='.0f')} cores, one thread {alone.told(1e-6)} M"
        words.append(f"{query.upper()}: {rates}{reached}")
    return Answer("; ".join(words))


ROWS = (
    Row(
        "slash-9a",
        "Slash, figure 9a (YSB)",
        "Records a second, beside repartitioning",
        "12 times Slash with repartitioning (UpPar), 25 times Flink, on 16 machines",
        "",
        UPPAR,
        thrown_with("ysb", systems=ALL),
        throughputs("ysb", *NAMES),
    ),
    Row(
        "slash-9b",
        "Slash, figure 9b (CM)",
        "Records a second, beside repartitioning",
        "up to two orders of magnitude more than UpPar and Flink, on 16 machines",
        "",
        UPPAR,
        thrown_with("cm", systems=ALL),
        throughputs("cm", *NAMES),
    ),
    Row(
        "slash-9-ro",
        "Slash, section 8 (RO)",
        "Records a second, beside repartitioning",
        "figure 10a has bytes a second of one link (11.2 GB/s with two threads, UpPar 5.9); `channel.py` measures this",
        "",
        UPPAR,
        thrown_with("ro", systems=ALL),
        throughputs("ro", *NAMES),
    ),
    Row(
        "slash-10d",
        "Slash, figure 10d (RO, YSB)",
        "How do records a second change if few keys have most records (Zipf, exponents 0.2 to 2.0)?",
        "no change in RO, YSB gets faster; UpPar loses, by the paper's count, up to 68 % (RO) and 110 % (YSB)",
        "",
        "The effect of the paper cannot appear: all receivers share two processors here; in the paper the hot key has its "
        "own machine. UpPar as above",
        (*thrown_with("ro", "ysb", systems=("ferry", "uppar")), "--skew", "0.2", "0.6", "1.0", "1.5", "2.0"),
        skewed,
    ),
    Row(
        "cost",
        "Slash, figure 11 (COST; McSherry et al.)",
        "With how many cores is Ferry ahead of one thread?",
        "16 machines: 11.6 times LightSaber on one machine (YSB, CM), 4.4 times (NB7); ahead from two machines on",
        "",
        "The thread is a program of this repository in place of LightSaber. NB7 was not measured",
        thrown_with("ysb", "cm", systems=("ferry", "single")),
        cost,
    ),
)
