"""Megaphone (Hoffmann et al., VLDB 2019): latency of records while state moves, by strategy."""

from __future__ import annotations

from collections.abc import Callable

from bench.parts.papers.rows import Answer, Row, Runs, runs
from bench.shared.results import Results

BINS, MOVED = 64, 0.25
"""Bins of the state, and the share of them that moves."""


def strategies(results: Results, metric: str) -> list[Runs]:
    """Cold and all at once, cold and fluid, warm and fluid."""
    one = {"system": "Ferry", "metric": metric, "bins": BINS}
    ways = (("all-at-once", 0), ("fluid", 0), ("fluid", 1))
    return runs(results, *({**one, "strategy": strategy, "warm": warm} for strategy, warm in ways))


def waits(results: Results) -> Answer:
    """Longest wait of a record."""
    whole, fluid, warm = strategies(results, "max during")
    every, one_by_one, ours = (one.told(1e3, ",.0f") for one in (whole, fluid, warm))
    words = f"cold: all at once {every}, fluid {one_by_one} ms; warm, as Ferry moves: {ours} ms"
    return Answer(words, whole.median / fluid.median)


def memory(results: Results) -> Answer:
    """Memory of a move beside the state."""
    whole, fluid, warm = (one.told(1e-6, ".1f") for one in strategies(results, "extra memory"))
    return Answer(
        f"of {MOVED * 1000:.0f} MB that move: all at once {whole}, fluid {fluid} MB; warm, as Ferry moves: {warm} MB"
    )


def finer(bins: tuple[int, ...]) -> Callable[[Results], Answer]:
    """Cold and fluid, by the number of bins."""

    def answer(results: Results) -> Answer:
        one = {"system": "Ferry", "metric": "max during", "warm": 0, "strategy": "fluid"}
        found = runs(results, *({**one, "bins": number} for number in bins))
        pairs = zip(bins, found, strict=True)
        return Answer("fluid, cold: " + ", ".join(f"{n:,} bins {seen.told(1e3, '.0f')} ms" for n, seen in pairs))

    return answer


STRATEGIES = ("strategies", "--strategies", "all-at-once", "fluid", "--queries", "hash_count")
CUT = (*STRATEGIES, "--sizes", "1GB", "--bins", str(BINS))

ROWS = (
    Row(
        "megaphone-1",
        "Megaphone, figures 1 and 5 to 12",
        "What is the longest wait of a record while state moves, by strategy?",
        "all at once and fluid are orders of magnitude apart",
        "over 10 (fluid to all at once)",
        "One query (counts) in place of eight NEXMark queries",
        CUT,
        waits,
    ),
    Row(
        "megaphone-16",
        "Megaphone, figure 16",
        "How does the longest wait change with more bins?",
        "the wait falls with the state of a bin, and the move takes no longer",
        "",
        "The effect of the paper cannot appear at this size: a bin of 100 kB is copied in less than an epoch, and a cold "
        "step holds back all keys for two epochs, so more steps increase the wait",
        (*STRATEGIES, "--sizes", "100MB", "--bins", "16", "1024"),
        finer((16, 1024)),
    ),
    Row(
        "megaphone-19",
        "Megaphone, figure 19",
        "How much memory does a move take beside the state?",
        "all at once: as much as the moved state; fluid and batched: little",
        "",
        "Anonymous memory only: both copies of the state are mapped files, which are not counted",
        CUT,
        memory,
    ),
)
