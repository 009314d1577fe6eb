"""`docs/handover-matrix.md` shows the simulated outcomes of a move with a failure in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim import matrix

PAGE = Path(__file__).resolve().parents[2] / "docs" / "handover-matrix.md"


@pytest.mark.sim
def test_the_matrix_is_what_is_published() -> None:
    assert list(matrix.rows()) == PAGE.read_text().splitlines(), "python -m tests.sim.matrix >docs/handover-matrix.md"
