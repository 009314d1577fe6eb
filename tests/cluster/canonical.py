"""The canonical runs of the papers' queries, as jobs: `python -m tests.cluster.canonical [--runs A] [--queries q5] [--faults]`.

Prints the rows of each and their fingerprint, and whether they are the oracle's; of whole runs the fingerprint has to be
the published one, too. With `--faults` workers come, die and go, virtual nodes move and a driver is lost meanwhile.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import runner
from tests.cluster.queries import ORACLE, expected, generate_input, rows_of, workload_of

WHOLE = 200_000
"""Events of the runs whose fingerprints are published."""

EPOCHS = 8

FAULTS = (
    "epoch=1:ingest workers=3", "epoch=2:commit kill-instance=0.0", "epoch=3:begin move=5:1.0",
    "epoch=4:prepare kill-worker=1", "epoch=5:begin workers=2", "epoch=6:emit kill-driver",
)  # fmt: skip

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One query on one input."""

    run: str
    query: str
    args: dict[str, Any] = field(hash=False)
    """of the job: the generator's and the query's"""

    def __str__(self) -> str:
        return f"{self.run} {self.query}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job wrote, and what it should have written."""

    actual: Rows
    right: Rows
    problem: str | None
    """how the run itself went wrong, if it did"""


def cases() -> list[Case]:
    """All of them, as the oracle's list of fingerprints has them."""
    tree = ast.parse((ORACLE / "checks" / "fingerprints.py").read_text())
    (runs,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and "RUNS" in ast.unparse(node.targets)]
    found = []
    for run, generator, names, query in eval(compile(ast.Expression(runs), "RUNS", "eval")):
        own = {
            "late_ms" if name == "delay_ms" else name: value for name, value in generator.items() if name != "workload"
        }
        own |= {f"{name}_ms": value for name, value in query.items()}
        found += [Case(run, name, {"seed": 7, **own}) for name in names]
    return found


def published() -> dict[tuple[str, str], tuple[int, str]]:
    """Rows and fingerprint of whole runs, by run and query."""
    lines = (ORACLE / "checks" / "fingerprints.txt").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(run, query): (int(rows), digest) for run, query, rows, digest in cells}


def fingerprint(rows: Rows) -> str:
    """Of rows in order, as the oracle takes it."""
    return hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()[:16]


def carry_out(case: Case, events: int, at: Sequence[str], base: Path) -> Outcome:
    """Run the job, and ask the oracle."""
    sets = [*runner.sets_of(case.args), f"epoch.maxRows={events // EPOCHS}", "workers=2", "state.virtualNodes=16"]
    result = runner.run(case.query, base, events, sets, at)
    generate_input(workload_of(case.query), events, case.args, base / "in")
    con, text = expected(case.query, base / "in", case.args)
    asked = con.execute(text)
    columns, right = ", ".join(column[0] for column in asked.description), asked.fetchall()
    files = rows_of(case.query, result.output)
    found = f"SELECT {columns} FROM read_parquet({files}) ORDER BY ALL"
    actual = con.execute(found).fetchall() if files else []
    return Outcome(actual, right, result.story() if result.code or result.left else None)


def difference(case: Case, events: int, outcome: Outcome) -> str | None:
    """What is wrong with it, or None."""
    if outcome.problem is not None:
        return outcome.problem
    if outcome.actual != outcome.right:
        actual, right = Counter(outcome.actual), Counter(outcome.right)
        missing, extra = [*(right - actual)], [*(actual - right)]
        return f"missing {len(missing)} {missing[:3]}, unexpected {len(extra)} {extra[:3]}"
    if events == WHOLE and (len(outcome.actual), fingerprint(outcome.actual)) != published()[case.run, case.query]:
        return f"published: {published()[case.run, case.query]}"
    return None


def report(case: Case, events: int, at: Sequence[str]) -> tuple[str, bool]:
    """A line about a case, and whether it is right."""
    with tempfile.TemporaryDirectory(prefix="ferry-canonical-") as base:
        outcome = carry_out(case, events, at, Path(base))
    wrong = difference(case, events, outcome)
    line = f"{case.run:4} {case.query:14} {len(outcome.actual):8} {fingerprint(outcome.actual)}"
    return f"{line} {'equal' if wrong is None else f'NOT EQUAL: {wrong}'}", wrong is None


def reports(found: Sequence[Case], events: int, at: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Of each of them; two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda case: report(case, events, at), found)


def main() -> int:
    """Print a line a case."""
    parser = argparse.ArgumentParser(prog="tests.cluster.canonical", description=__doc__)
    parser.add_argument("--runs", nargs="*", default=None, help="labels, such as A B20; else all")
    parser.add_argument("--queries", nargs="*", default=None, help="such as nbq5 q8; else all")
    parser.add_argument("--events", type=int, default=WHOLE)
    parser.add_argument("--faults", action="store_true")
    asked = parser.parse_args()
    found = [case for case in cases() if case.run in (asked.runs or [case.run])]
    found = [case for case in found if case.query in (asked.queries or [case.query])]
    right = []
    for line, equal in reports(found, asked.events, FAULTS if asked.faults else ()):
        right.append(equal)
        print(line, flush=True)
    print(f"{sum(right)} of {len(right)} equal")
    return 0 if right and all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
