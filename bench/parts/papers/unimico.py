"""UniMiCo (Pham et al.): handover at the boundary of a window, without state."""

from __future__ import annotations

from bench.parts.papers.rows import Answer, Row, runs
from bench.shared.results import Results


def handed(results: Results) -> Answer:
    """Response time of UniMiCo's queries, with and without a handover at a window's boundary."""
    bytes_, words = 0.0, list[str]()
    for query in ("uq1", "uq2", "uq3"):
        one = {"system": "Ferry", "case": query}
        without, moved, sent = runs(
            results,
            {**one, "metric": "mean response without"},
            {**one, "metric": "mean response with"},
            {**one, "metric": "bytes of snapshots"},
        )
        bytes_ += sum(sent.values)
        words.append(f"{without.told(form='.0f')} -> {moved.told(form='.0f')} ms")
    return Answer(f"{', '.join(words)}; {bytes_:.0f} bytes of snapshots")


ROWS = (
    Row(
        "unimico-4",
        "UniMiCo, figures 4 to 6",
        "How long does a response take with a handover without state, and without a handover?",
        "3.751 -> 3.750, 3.155 -> 3.101, 6.568 -> 6.658 ms; no state moves",
        "",
        "The noise of the machine is larger than any difference. The origin sends the changes of each epoch to the target "
        "for the length of a window; the paper's target reads the source. The bytes of the changes are not counted",
        ("unimico",),
        handed,
    ),
)
