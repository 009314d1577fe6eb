"""`make paper FIGURE=rhino-1`: the question of a figure of the papers, asked of Ferry; and the table of all answers.

A row says what the paper found, what was found here, and by how much each of them is ahead of its rival. The measurements
are those of the other commands, with the arguments of the row; answers are kept in `papers.json`, of which `PAPERS.md` is
made. What all processes of a measurement have used over time is put beside its records, for every row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.shared import resources
from bench.shared.ferry_job import RESULTS, ROOT
from bench.shared.results import Results

KEPT, PAGE = ROOT / "bench" / "papers.json", ROOT / "bench" / "PAPERS.md"

Answer = tuple[str, float | None]
"""What was found, in words, and how many times Ferry is ahead of the rival; None where no rival can do it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, table or section."""

    key: str
    where: str
    question: str
    paper: str
    """what it found"""
    ratio: str
    """its way ahead of the rival"""
    command: tuple[str, ...]
    """a command of this folder, and its arguments"""
    answer: Callable[[Results], Answer]


def medians(results: Results, *wanted: dict[str, Any]) -> list[float]:
    """Of each of these; raises LookupError for one that was not measured."""
    found = [results.median(**one) for one in wanted]
    if missing := [one for one, value in zip(wanted, found, strict=True) if value is None]:
        raise LookupError(f"not measured: {missing[0]}")
    return [value for value in found if value is not None]


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


def cut(bins: int, metric: str, unit: str, scale: float) -> Callable[[Results], Answer]:
    """Cold, all at once against fluid."""

    def answer(results: Results) -> Answer:
        one = {"system": "Ferry", "metric": metric, "bins": bins, "warm": 0}
        whole, fluid, best = medians(
            results, {**one, "strategy": "all-at-once"}, {**one, "strategy": "fluid"},
            {**one, "strategy": "fluid", "warm": 1},
        )  # fmt: skip
        ours = (
            f"all at once {whole * scale:.3g}, fluid {fluid * scale:.3g} {unit}; warm, Ferry's way: {best * scale:.3g}"
        )
        return ours, whole / fluid if fluid else None

    return answer


def finer(results: Results) -> Answer:
    """Cold and fluid, few bins against many."""
    one = {"system": "Ferry", "metric": "max during", "warm": 0, "strategy": "fluid"}
    few, many = medians(results, {**one, "bins": 16}, {**one, "bins": 1024})
    return f"fluid, cold: 16 bins {few * 1000:.0f} ms, 1,024 bins {many * 1000:.0f} ms", few / many


def thrown(query: str) -> Callable[[Results], Answer]:
    """Records/s of files beside vanilla Spark, the same batch."""

    def answer(results: Results) -> Answer:
        case = {"case": f"{query}, files", "metric": "throughput", "batch": 1_000_000}
        ours, theirs = medians(results, {"system": "Ferry", **case}, {"system": "Spark", **case})
        return f"{ours / 1e6:.2f} M records/s; Spark {theirs / 1e6:.2f} M", ours / theirs

    return answer


def late(results: Results) -> Answer:
    """Records offered at a pace, beside Flink whose sink is exactly once."""
    ours, theirs = medians(
        results, {"system": "Ferry, continuous", "metric": "p99"}, {"system": "Flink, exactly once", "metric": "p99"}
    )
    return f"p99 {ours * 1000:.0f} ms; Flink, exactly once {theirs * 1000:.0f} ms", theirs / ours


def handed(results: Results) -> Answer:
    """UniMiCo's queries, response time with a handover at a window's boundary beside none."""
    bytes_, words, worst = 0.0, list[str](), 0.0
    for query in ("uq1", "uq2", "uq3"):
        one = {"system": "Ferry", "case": query}
        without, moved, sent = medians(
            results,
            {**one, "metric": "mean response without"},
            {**one, "metric": "mean response with"},
            {**one, "metric": "bytes of state"},
        )
        bytes_, worst = bytes_ + sent, max(worst, moved / without)
        words.append(f"{without:.0f} -> {moved:.0f} ms")
    return f"{', '.join(words)}; {bytes_:.0f} bytes of state", worst


def thrown_with(*queries: str) -> tuple[str, ...]:
    """Arguments of `throughput.py` for nothing but these queries."""
    return ("throughput", "--queries", *queries, "--cases", "--larger", "1", "--repeats", "1")


STRATEGIES = ("strategies", "--strategies", "all-at-once", "fluid", "--queries", "hash_count")
CUT = (*STRATEGIES, "--sizes", "1GB", "--bins", "64")

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
        "megaphone-1",
        "Megaphone, figures 1 and 5 to 12",
        "How long does a record wait at most while state moves, by strategy?",
        "all at once and fluid are orders of magnitude apart",
        "over 10",
        CUT,
        cut(64, "max during", "ms", 1000),
    ),
    Row(
        "megaphone-16",
        "Megaphone, figure 16",
        "What do more bins do for the longest wait?",
        "it falls with the state of a bin, and the move takes no longer",
        "about the ratio of bins",
        (*STRATEGIES, "--sizes", "100MB", "--bins", "16", "1024"),
        finer,
    ),
    Row(
        "megaphone-19",
        "Megaphone, figure 19",
        "How much memory does a move take beside the state?",
        "all at once as much as moves; fluid and batched little",
        "large",
        CUT,
        cut(64, "extra memory", "MB", 1e-6),
    ),
    Row(
        "megaphone-5",
        "Megaphone, section 5 (records at a fixed rate)",
        "How long does a record take at 100,000/s when nothing moves?",
        "",
        "",
        ("latency", "--queries", "nbq5", "--rates", "100000", "--systems", "continuous", "flink", "--minutes", "0.5"),
        late,
    ),
    Row(
        "unimico-4",
        "UniMiCo, figures 4 to 6",
        "How long does a response take around a handover without state, beside none?",
        "3.751 -> 3.750, 3.155 -> 3.101, 6.568 -> 6.658 ms; no state moves",
        "1",
        ("unimico",),
        handed,
    ),
    Row(
        "slash-9a",
        "Slash, figure 9a (YSB)",
        "Records a second",
        "12 times its own repartitioning, 25 times Flink, on 16 machines",
        "25",
        thrown_with("ysb"),
        thrown("ysb"),
    ),
    Row(
        "slash-9b",
        "Slash, figure 9b (CM)",
        "Records a second",
        "104 times Flink, on 16 machines",
        "104",
        thrown_with("cm"),
        thrown("cm"),
    ),
    Row(
        "slash-9-ro",
        "Slash, figure 11 (RO)",
        "Records a second",
        "11.6 times LightSaber, on 16 machines",
        "11.6",
        thrown_with("ro"),
        thrown("ro"),
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


def main() -> int:
    """Measure some rows, and write the page."""
    by_key = {row.key: row for row in ROWS}
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("figures", nargs="*", metavar="FIGURE", help=f"none: only the page is written. {', '.join(by_key)}")
    p.add_argument("--from", dest="source", type=Path, help="records of one measurement that is there already")
    p.add_argument("--quick", action="store_true", help="small and once, and nothing is kept: to see that it works")
    a = p.parse_args()
    if unknown := [one for one in a.figures if one not in by_key]:
        p.error(f"{unknown[0]} is none of {', '.join(by_key)}")
    console, kept = Console(highlight=False, stderr=True), json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for key in a.figures:
        row = by_key[key]
        command = [*row.command, *(["--quick"] if a.quick else [])]
        source = a.source or measured(key, command, console)
        if source is None:
            return 1
        results = Results("papers", "")
        results.records = json.loads(source.read_text())
        if a.quick:
            continue
        try:
            ours, ratio = row.answer(results)
        except LookupError as missing:
            console.print(f"{key}: {missing}", style="red", markup=False)
            return 1
        machine = next((r["value"] for r in results.records if r["metric"] == "machine"), "")
        kept[key] = {"ours": ours, "ratio": ratio, "date": time.strftime("%Y-%m-%d"), "machine": machine}
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        console.print(f"{key}: {ours}")
    PAGE.write_text(page(kept))
    return 0


def measured(key: str, command: Sequence[str], console: Console) -> Path | None:
    """Run it; where its records are, or None when it failed."""
    file = RESULTS / f"paper-{key}.json"
    line = [sys.executable, "-m", f"bench.{command[0]}", *command[1:], "--json", str(file)]
    console.print(f"{key}: {' '.join(line[2:])}", markup=False)
    code, seen = resources.run(line, ROOT)
    for made in resources.write(file.with_name(f"{file.stem}-resources.json"), key, seen):
        console.print(f"{key}: processes, memory, disks and network: {made}", markup=False)
    if code:
        console.print(f"{key}: it ended with {code}", style="red")
        return None
    return file


HEAD = """\
# The papers' questions, and our answers

Generated by `bench/papers.py` (`make paper FIGURE=KEY` measures a row again). The papers had clusters of 4 to 16 machines
with fast networks, and states to 1 TB; here all of it is on the processors of one machine, so no number can be set beside
one of theirs. What can be compared is the *ratio*: how far the paper's system is ahead of its rival, and Ferry of its own
in the same run. Rows without an answer were not measured yet with this command; bench/README.md has older ones.

| key | paper | question | the paper | ours | ratio there | ratio here | measured |
|---|---|---|---|---|---|---|---|
"""


def page(kept: dict[str, Any]) -> str:
    """The table."""
    lines = []
    for row in ROWS:
        one = kept.get(row.key, {})
        ratio = "" if one.get("ratio") is None else f"{one['ratio']:.3g}"
        when = f"{one['date']}, {one['machine']}" if one else ""
        cells = [f"`{row.key}`", row.where, row.question, row.paper, one.get("ours", ""), row.ratio, ratio, when]
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
