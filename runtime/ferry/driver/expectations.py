"""Checks the rows of an epoch before the sinks get them: in this process, or in the tasks that hold them.

A violation changes no row and stops no epoch: what follows from it is decided after the epoch (`driver/probation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.api.expectations import Broken, CheckTask, broken_in
from ferry.api.pipeline import Expectation, Output
from ferry.connectors.sink import RowParts
from ferry.contract.user_code import shown
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver.comparison import Compared

VIOLATED = "ExpectationViolated"
"""The name of the problem in the driver's status."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Rows of one epoch that violate an expectation."""

    expectation: Expectation
    sink: str
    rows: int
    of: int | None
    """All rows; None: they were not counted."""
    example: str
    silent: bool
    """Whether the rows are of a shadow, and no sink gets them."""

    def __str__(self) -> str:
        many = f"{self.rows:,} of {self.of:,} rows" if self.of is not None else f"{self.rows:,} rows"
        where = f" ({self.expectation.where})" if self.expectation.where else ""
        return (
            f"expectation {self.expectation.name!r}{where}: {many} for {self.sink} violate it, such as {self.example}"
        )


class Checks:
    """The violations in one epoch, of all outputs of a program."""

    def __init__(self) -> None:
        self._violations: dict[tuple[int, int], Violation] = {}
        """By output and expectation: a repeated write is checked again."""

    def check(self, output: Output, rows: pa.Table | DataFrame | RowParts) -> None:
        """Check the rows of an output. Raises the errors of a failed read."""
        expectations = output.input.expectations
        if not expectations or (isinstance(output.sink, Compared) and not output.sink.other):
            return  # The rows of the program in force are checked before its own sinks.
        of = None
        if isinstance(rows, pa.Table):
            of, broken = rows.num_rows, list(broken_in(expectations, rows.to_batches()))
        else:
            task = CheckTask(expectations)
            parts = rows.each(task.parts) if isinstance(rows, RowParts) else _parts(rows, task)
            broken = [Broken(number, many, example) for example, number, many in parts]
        silent = isinstance(output.sink, Compared)
        name = output.sink.name if isinstance(output.sink, Compared) else shown(output.sink)
        for number, expectation in enumerate(expectations):
            if mine := [one for one in broken if one.number == number]:
                rest = name, sum(one.rows for one in mine), of, mine[0].example, silent
                self._violations[id(output), number] = Violation(expectation, *rest)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """One for each expectation of each sink."""
        return tuple(self._violations.values())


def tell(violations: Iterable[Violation], metrics: DriverMetrics) -> None:
    """Count the violations of an epoch; the status has the last one, and the timeline the first one."""
    for one in violations:
        if not one.silent:
            metrics.violations[one.expectation.name] += one.rows
            metrics.problems.delayed(VIOLATED, str(one))


def _parts(frame: DataFrame, task: CheckTask) -> list[tuple[str, int, int]]:
    found = frame.mapInArrow(task.frame, "example string, number long, rows long").toArrow()
    return list(zip(*(found.column(name).to_pylist() for name in ("example", "number", "rows")), strict=True))
