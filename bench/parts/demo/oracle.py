"""Asks the oracle (tests/oracle, a second and independent program) what is right, and compares.

The oracle runs as a process of its own: nothing of Ferry is in it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.shared.ferry_job import ROOT, RunFailed, environment


@dataclass(frozen=True, slots=True)
class Verdict:
    """Multiset difference of two results."""

    rows: int
    """expected"""
    missing: int
    unexpected: int
    text: str
    """as the oracle printed it"""

    @property
    def equal(self) -> bool:
        """No row too few and none too many, and there were rows at all."""
        return self.missing == 0 and self.unexpected == 0 and self.rows > 0


def _oracle(*words: str, may_fail: bool = False) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "oracle", *words], cwd=ROOT / "tests" / "oracle", env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0 and not (may_fail and made.stdout.startswith("missing")):
        raise RunFailed(f"oracle {words[0]} failed:\n{made.stdout}{made.stderr}")
    return made.stdout


def generate(workload: str, events: int, directory: Path, **options: int | float | str) -> None:
    """Write the records of a workload as the oracle's own generator makes them."""
    extra = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    _oracle("generate", "--workload", workload, "--events", str(events), *extra, "--out", str(directory))


def expect(query: str, directory: Path, until_ms: int | None = None) -> Path:
    """Write the exact result of a query on the records in `directory`; of windows final at `until_ms`, if given."""
    out = directory / f"expected-{query}.parquet"
    limit = [] if until_ms is None else ["--until-ms", str(until_ms)]
    _oracle("expect", "--query", query, "--in", str(directory), *limit, "--out", str(out))
    return out


def compare(expected: Path, actual: str) -> Verdict:
    """Compare as multisets; `actual` is a glob of parquet files."""
    import pyarrow.parquet as pq

    text = _oracle("compare", "--expected", str(expected), "--actual", actual, may_fail=True)
    numbers = [int(word.rstrip(",")) for word in text.splitlines()[0].split() if word.rstrip(",").isdigit()]
    missing, unexpected = numbers
    return Verdict(pq.read_metadata(expected).num_rows, missing, unexpected, text)
