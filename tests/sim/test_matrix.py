"""`docs/handover-matrix.md` and `docs/deploy-matrix.md` show the simulated outcomes with a failure in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim import deploy_matrix, matrix

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.sim
def test_the_matrix_is_what_is_published() -> None:
    page = (DOCS / "handover-matrix.md").read_text().splitlines()
    assert list(matrix.rows()) == page, "python -m tests.sim.matrix >docs/handover-matrix.md"


@pytest.mark.sim
def test_the_matrix_of_deploys_is_what_is_published() -> None:
    page = (DOCS / "deploy-matrix.md").read_text().splitlines()
    assert list(deploy_matrix.rows()) == page, "python -m tests.sim.deploy_matrix >docs/deploy-matrix.md"


def test_the_tests_on_the_page_exist() -> None:
    assert deploy_matrix.missing() == []
