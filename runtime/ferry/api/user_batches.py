"""Functions that users write for `map_batches`, as tasks call them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ferry.api.pipeline import Batches, Input, Transform
from ferry.connectors.splits import Splits
from ferry.connectors.users import is_ferrys
from ferry.contract.user_code import at, calling, function_name


def not_arrow(made: object) -> str:
    """What a function has returned that is neither a RecordBatch nor a Table, and what to do about it."""
    kind = type(made).__name__
    if inspect.iscoroutine(made):
        made.close()
    remedies = {
        "NoneType": "is a `return` missing?",
        "coroutine": "leave out `async`",
        "generator": "collect the records, and `return` them instead of `yield`",
        "DataFrame": "pyarrow.Table.from_pandas(frame, preserve_index=False) makes a table of one of pandas",
        "dict": "pyarrow.table(columns) makes a table of columns by name",
        "list": "pyarrow.Table.from_pylist(rows, schema=...) makes a table of rows",
    }
    return f"{kind}; {remedies[kind]}" if kind in remedies else kind


@dataclass(frozen=True, slots=True)
class UserBatches:
    """A function of the user's for `map_batches`."""

    function: Batches
    where: str
    """Which one it is, as in "map_batches on source 'orders'"."""
    given: pa.Schema
    """Of an empty batch, and `schema` of what it returned for that."""
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """What it returns. Raises UserCodeFailed, also for other columns or types than those of an empty batch."""
        with calling(f"{function_name(self.function)} in {self.where}", self.function):
            made = self.function(batch)
            if not isinstance(made, pa.RecordBatch | pa.Table):
                raise TypeError(f"it returned {type(made).__name__}; a RecordBatch or a Table is needed")
            if _columns(batch.schema) != _columns(self.given):
                return made  # Records that pass through Spark's SQL have its types, and so has what is made of them.
            return made if _columns(made.schema) == _columns(self.schema) else self._fitted(made)

    def _fitted(self, made: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """With the declared types where a batch has nothing but nulls: builders of Arrow know no type for these."""
        if made.schema.names == self.schema.names:
            columns = [
                column.cast(field.type) if pa.types.is_null(column.type) else column
                for column, field in zip(made.columns, self.schema, strict=True)
            ]
            made = type(made).from_arrays(columns, names=made.schema.names)
        if (now := _columns(made.schema)) != (declared := _columns(self.schema)):
            raise TypeError(f"it returned columns ({_listed(now)}), and ({_listed(declared)}) for an empty batch")
        return made


def code_of(inputs: Iterable[Input], sources: Mapping[str, Any]) -> str:
    """The user's functions and sources of inputs, each with its place; empty: none is the user's own."""
    found: dict[str, None] = {}
    for one in inputs:
        origin = sources.get(one.origin) if isinstance(one.origin, str) else None
        if isinstance(origin, Splits) and not is_ferrys(origin):
            found[f"source {one.origin!r}{at(type(origin))}"] = None
        for step in one.steps:
            if isinstance(step, Transform) or isinstance(step.function, UserBatches):
                function = step.function.function if isinstance(step.function, UserBatches) else step.function
                found[f"{function_name(function)}{at(function)}"] = None
    return ", ".join(found)


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _listed(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
