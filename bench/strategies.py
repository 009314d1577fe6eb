"""`make bench-strategies`: latency of records while a quarter of the state moves, by strategy, warm and cold.

Megaphone's question (section 5): what does a move cost, by its steps (the strategy), the size of the state and the number
of bins?
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import product
from pathlib import Path

from rich.console import Console

from bench.parts.strategies.case import AFTER_SECONDS, COUNTS, STREAMS, Case, Moved
from bench.shared.bigstate import SIZES
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.results import Panel, Results, draw, show

METHOD = """\
hash_count: count per text key of 224 bytes, a state of S bytes is S / 250 keys; key_count: per number, S / 24 keys. No \
window fires. nbq5, q4: queries of NEXMark, whose state comes from {fill:g} s of records. After the fill record n is \
created n / {rate:,} seconds later, however fast the system is: open loop, random keys. Latency of a record: from its \
creation (whole milliseconds) to the moment when the sinks have the rows of its epoch, in histograms with 1 % buckets, \
one each 250 ms. Two workers, no replicas, {cores} cores, epochs of {interval} at least, continuous. A quarter of the \
virtual nodes (bins) moves from one worker to the other, which is half of the first worker's, and comes back before the \
next strategy begins. cold: epochs wait while the copies of a step are made, as in Megaphone; warm: epochs go on. \
Bandwidth of copies: {bandwidth} bytes a second (0: no bound). batched: {batch} bins a step. before: the {before:g} s \
before the request to move; during: from then to 1 s after the last switchover. Megaphone's figures have the median of \
3 runs on 4 machines with 32 workers, 256 M keys of 8 bytes; only trends can be compared."""

STRATEGIES = ["all-at-once", "batched", "fluid", "optimized"]
SHARES = [0.8**n for n in range(42)]
"""Shares of records in the pictures, down to one of ten thousand."""


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "strategies.json", help="records; pictures are put beside it")
    p.add_argument("--queries", nargs="+", default=["hash_count"], choices=[*COUNTS, *STREAMS])
    p.add_argument("--fill", type=float, default=20.0, help="seconds of records of nbq5 and q4 before the first move")
    p.add_argument("--sizes", nargs="+", default=["10MB", "100MB", "1GB"], choices=list(SIZES))
    p.add_argument("--bins", nargs="+", type=int, default=[64], help="virtual nodes")
    p.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    p.add_argument("--ways", nargs="+", default=["warm", "cold"], choices=["warm", "cold"])
    p.add_argument("--batch", type=int, default=4, help="bins in each step of 'batched'")
    p.add_argument("--rate", type=float, default=20_000, help="records a second")
    p.add_argument("--bandwidth", default="0", help="bytes a second that copies may use, such as 20M; 0: no limit")
    p.add_argument("--interval", default="10ms", help="shortest interval of epochs")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--before", type=float, default=4.0, help="measured seconds before a move")
    p.add_argument("--settle", type=float, default=5.0, help="seconds before the first move, and between two moves")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.sizes, a.bins, a.strategies, a.rate = ["2MB"], [16], ["batched"], 2_000
    console, found = Console(highlight=False), list[Moved]()
    method = METHOD.format(**vars(a))
    results = Results("strategies", method)
    try:
        with work_directory("strategies") as work:
            states = [(query, size) for query in a.queries for size in (a.sizes if query in COUNTS else [""])]
            for (query, size), bins in product(states, a.bins):
                try:
                    found += Case(a, work, console, query, size, bins).measure()
                except RunFailed as failed:
                    console.print(f"failed: {query} {size}, {bins} bins: {failed}", style="red", markup=False)
                    results.add("Ferry", query, "failed", str(failed)[:500], "text", bins=bins, size=size)
    except KeyboardInterrupt:
        console.print("interrupted")
    if not found:
        return 1
    add(results, found)
    results.write(a.json)
    table(console, found)
    for file in pictures(a.json, found):
        console.print(f"picture: {file}")
    console.print(f"records: {a.json}")
    return 0


def add(results: Results, found: list[Moved]) -> None:
    """The numbers of every move."""
    for one in found:
        about: dict[str, int | str] = {
            "query": one.query,
            "size": one.size,
            "bins": one.bins,
            "strategy": one.strategy,
            "warm": int(one.warm),
        }
        results.add("Ferry", one.name, "duration", one.seconds, "s", **about)
        for name, part in (("before", one.before), ("during", one.during)):
            for quantile, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                results.add("Ferry", one.name, f"{quantile} {name}", part.quantile(share), "s", **about)
        used = [bytes_ for t, bytes_ in one.memory if t < 0]
        grown = [bytes_ for t, bytes_ in one.memory if 0 <= t <= one.seconds]
        if used and grown:
            results.add("Ferry", one.name, "extra memory", max(0.0, max(grown) - max(used)), "bytes", **about)


def table(console: Console, found: list[Moved]) -> None:
    """Milliseconds."""
    rows = [
        [
            f"{one.query} {one.size} {one.bins} {one.name}", one.seconds, one.before.quantile(0.99) * 1000,
            one.during.quantile(0.5) * 1000, one.during.quantile(0.99) * 1000, one.during.quantile(1.0) * 1000,
        ]
        for one in found
    ]  # fmt: skip
    heads = ["", "duration, s", "p99 before, ms", "p50", "p99", "max during"]
    show(console, "A quarter of the bins moves", heads, rows)


def pictures(file: Path, found: list[Moved]) -> list[Path]:
    """Pictures by size and bins: latency, memory, all records; and one of all moves: maximum against duration."""
    made = []
    for query, size, bins in dict.fromkeys((one.query, one.size, one.bins) for one in found):
        mine = [one for one in found if (one.query, one.size, one.bins) == (query, size, bins)]
        last = max(one.seconds for one in mine) + AFTER_SECONDS
        ticks = [t / 4 for t in range(int(-mine[0].looked_at * 4), int(last * 4))]
        longest = {
            one.name: [
                max(part.quantile(1.0), 1e-4) if (part := one.latency(t, t + 0.25)).records else None for t in ticks
            ]
            for one in mine
        }
        memory = {
            one.name: [next((used for at, used in one.memory if t <= at < t + 0.25), None) for t in ticks]
            for one in mine
        }
        nines = [-math.log10(share) for share in SHARES]
        exceeded: dict[str, list[float | None]] = {
            one.name: [max(one.during.quantile(1 - share), 1e-4) for share in SHARES] for one in mine
        }
        panels = [
            Panel("longest latency of 250 ms, asked for at 0", "s", ticks, longest, "times", True),
            Panel("records during the move: one of 10^x takes longer", "s", nines, exceeded, "times", True),
            Panel("memory of the sidecars without mapped files", "bytes", ticks, memory, "times"),
        ]
        made.append(file.with_name(f"{file.stem}-{query}-{size}-{bins}.png"))
        draw(made[-1], f"A quarter of {size} of {query} in {bins} bins moves", panels)
    names = list(dict.fromkeys(one.name for one in found))
    by = {(f"{one.query}\n{one.size}\n{one.bins}", one.name): one for one in found}
    labels = list(dict.fromkeys(label for label, _ in by))

    def series(value: str) -> dict[str, list[float | None]]:
        picked = {name: [by.get((label, name)) for label in labels] for name in names}
        return {
            name: [None if x is None else x.seconds if value == "s" else x.during.quantile(1.0) for x in some]
            for name, some in picked.items()
        }

    panels = [
        Panel("longest latency during a move, by size and bins", "s", labels, series("max"), logarithmic=True),
        Panel("duration of a move", "s", labels, series("s"), logarithmic=True),
        Panel(
            "longest latency (s) against duration (s), of every move", "s", [one.seconds for one in found],
            {name: [one.during.quantile(1.0) if one.name == name else None for one in found] for name in names},
            "points", True,
        ),
    ]  # fmt: skip
    made.append(file.with_suffix(".png"))
    draw(made[-1], "Maximum and duration, by strategy", panels)
    return made


if __name__ == "__main__":
    sys.exit(main())
