"""UniMiCo (Pham et al.): handover at the boundary of a window, without state."""

from __future__ import annotations

from bench.parts.papers.rows import Answer, Row, medians
from bench.shared.results import Results


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


ROWS = (
    Row(
        "unimico-4",
        "UniMiCo, figures 4 to 6",
        "How long does a response take around a handover without state, beside none?",
        "3.751 -> 3.750, 3.155 -> 3.101, 6.568 -> 6.658 ms; no state moves",
        "1",
        ("unimico",),
        handed,
    ),
)
