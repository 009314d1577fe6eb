"""Megaphone (Hoffmann et al., VLDB 2019): latency of records while state moves, by strategy."""

from __future__ import annotations

from collections.abc import Callable

from bench.parts.papers.rows import Answer, Row, medians
from bench.shared.results import Results


def cut(bins: int, metric: str, unit: str, scale: float) -> Callable[[Results], Answer]:
    """Cold, all at once against fluid."""

    def answer(results: Results) -> Answer:
        one = {"system": "Ferry", "metric": metric, "bins": bins, "warm": 0}
        whole, fluid, best = medians(
            results, {**one, "strategy": "all-at-once"}, {**one, "strategy": "fluid"},
            {**one, "strategy": "fluid", "warm": 1},
        )  # fmt: skip
        every, one_by_one, ours = (
            f"{x * scale:,.0f}" if x * scale >= 10 else f"{x * scale:.2g}" for x in (whole, fluid, best)
        )
        words = f"all at once {every}, fluid {one_by_one} {unit}; warm, Ferry's way: {ours}"
        return words, whole / fluid if fluid else None

    return answer


def finer(results: Results) -> Answer:
    """Cold and fluid, few bins against many."""
    one = {"system": "Ferry", "metric": "max during", "warm": 0, "strategy": "fluid"}
    few, many = medians(results, {**one, "bins": 16}, {**one, "bins": 1024})
    return f"fluid, cold: 16 bins {few * 1000:.0f} ms, 1,024 bins {many * 1000:.0f} ms", few / many


def late(results: Results) -> Answer:
    """Records offered at a pace, beside Flink whose sink is exactly once."""
    ours, theirs = medians(
        results, {"system": "Ferry, continuous", "metric": "p99"}, {"system": "Flink, exactly once", "metric": "p99"}
    )
    return f"p99 {ours * 1000:.0f} ms; Flink, exactly once {theirs * 1000:.0f} ms", theirs / ours


STRATEGIES = ("strategies", "--strategies", "all-at-once", "fluid", "--queries", "hash_count")
CUT = (*STRATEGIES, "--sizes", "1GB", "--bins", "64")

ROWS = (
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
)
