"""Expectations: declared checks of the rows before a sink. Must never import pyspark.

A violation never changes rows. It is counted, and during the probation of a deployed program the job goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.api.expressions import BoundExpression
from ferry.api.pipeline import Expectation
from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import function_name, place_of, reason
from ferry.kernels.row_texts import texts

Holds = Callable[[pa.RecordBatch], Any]


class Broken(NamedTuple):
    """Rows that violate an expectation."""

    number: int
    """Of the expectation, in the order of declaration."""
    rows: int
    example: str
    """A row, or the error of the condition."""


def expected(name: str, condition: pc.Expression | Holds, schema: pa.Schema, place: str, where: str) -> Expectation:
    """An expectation of rows with this schema. Raises SpecRefused; `place`: the step, for the message."""
    if not isinstance(name, str) or not name.strip():
        raise SpecRefused(f"{place}: the first argument is a name, such as 'cents are positive'")
    if not isinstance(condition, pc.Expression) and not callable(condition):
        wanted = "an Arrow expression such as pyarrow.compute.field('cents') >= 0, or a function of a RecordBatch"
        raise SpecRefused(f"{place}, {name!r}: {type(condition).__name__} is no condition; give {wanted}")
    text = place_of(condition) or function_name(condition) if callable(condition) else str(condition)
    try:
        holds = BoundExpression.of(condition, schema).values if isinstance(condition, pc.Expression) else condition
        expectation = Expectation(name, where, holds)
        _flags(expectation, pa.RecordBatch.from_pylist([], schema=schema))
    except BaseException as error:
        raise SpecRefused(
            f"{place}, {name!r}: {text} fails on an empty batch with columns {schema.names}: {reason(error)}"
        ) from error
    return expectation


def _flags(expectation: Expectation, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Whether each row meets the condition; a null does not. Raises errors of the user's function."""
    values = expectation.condition(batch)
    if isinstance(values, np.ndarray):
        values = pa.array(values)
    if not isinstance(values, pa.Array | pa.ChunkedArray) or values.type != pa.bool_():
        kind = getattr(values, "type", type(values).__name__)
        raise TypeError(f"the condition gives {kind}, not an array of true and false")
    if len(values) != batch.num_rows:
        raise ValueError(f"the condition gives {len(values)} values for {batch.num_rows} rows")
    flags: np.ndarray[Any, Any] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _broken(number: int, expectation: Expectation, batch: pa.RecordBatch) -> Broken | None:
    """The rows that violate it, if any do. A condition that fails is violated by all rows."""
    try:
        wrong = np.flatnonzero(~_flags(expectation, batch))
    except Exception as error:
        return Broken(number, batch.num_rows, reason(error)) if batch.num_rows else None
    if not wrong.size:
        return None
    return Broken(number, int(wrong.size), texts(pa.Table.from_batches([batch]).take(wrong[:1]))[0].as_py())


def broken_in(expectations: Iterable[Expectation], batches: Iterable[pa.RecordBatch]) -> Iterator[Broken]:
    """The violations in each batch."""
    known = list(enumerate(expectations))
    for batch in batches:
        for number, expectation in known:
            if (broken := _broken(number, expectation, batch)) is not None:
                yield broken


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Checks rows in Spark's tasks."""

    expectations: tuple[Expectation, ...]

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int]]:
        """Of rows that stay with their instances."""
        for one in broken_in(self.expectations, batches):
            yield one.example, one.number, one.rows

    def frame(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of a DataFrame: columns of `parts`."""
        for part in self.parts(batches):
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in part], names=["example", "number", "rows"])
