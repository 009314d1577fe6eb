"""The canonical runs with fewer events, under faults; which of them are tried moves with the commit. `make canonical`: all, whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster import canonical
from tests.cluster.queries import oracle
from tests.moving import first_seed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EVENTS = 16_000
FAULTS = canonical.FAULTS[:-1]
"""But the driver's death: another Spark takes as long as all the rest."""

AT_ONCE = 2
"""How many cases are tried: seconds are scarce."""

CASES = canonical.cases()


def test_rows_that_are_not_the_same_are_told() -> None:
    case, digest = CASES[0], canonical.fingerprint([(1,)])
    wrong = canonical.Outcome([(1,), (1,)], [(1,), (2,)], None)
    assert canonical.difference(case, 10, wrong) == "missing 1 [(2,)], unexpected 1 [(1,)]"
    same = canonical.Outcome([(1,)], [(1,)], None)
    assert canonical.difference(case, 10, same) is None and digest not in dict(canonical.published().values()).values()
    assert "published" in str(canonical.difference(case, canonical.WHOLE, same))
    assert canonical.difference(case, 10, canonical.Outcome([], [], "exit code 1")) == "exit code 1"


def test_the_canonical_runs_are_those_that_are_published() -> None:
    assert [(case.run, case.query) for case in canonical.cases()] == list(canonical.published())
    assert {case.query for case in canonical.cases()} == oracle.QUERIES.keys() - {"q5_counts"}


@pytest.mark.parametrize("case", random.Random(first_seed()).sample(CASES, AT_ONCE), ids=str)
def test_a_canonical_run_under_faults(case: canonical.Case, tmp_path: Path) -> None:
    outcome = canonical.carry_out(case, EVENTS, FAULTS, tmp_path)
    assert outcome.right and canonical.difference(case, EVENTS, outcome) is None
