"""Users' functions for `map_batches`, as tasks call them."""

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


def not_arrow(result: object) -> str:
    """The type of a result that is neither a RecordBatch nor a Table, and the remedy."""
    kind = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()
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
    """A user's function for `map_batches`."""

    function: Batches
    where: str
    """The step's place in the pipeline, as in "map_batches on source 'orders'"."""
    input_schema: pa.Schema
    """The schema of the empty batch at declaration."""
    schema: pa.Schema
    """The schema of the result for the empty batch."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """The function's result. Raises UserCodeFailed, also if its columns differ from the columns for an empty batch."""
        with calling(f"{function_name(self.function)} in {self.where}", self.function):
            result = self.function(batch)
            if not isinstance(result, pa.RecordBatch | pa.Table):
                raise TypeError(f"it returned {type(result).__name__}; a RecordBatch or a Table is needed")
            if _columns(batch.schema) != _columns(self.input_schema):
                return result  # Records that pass through Spark SQL have Spark's types, and so does the result.
            return result if _columns(result.schema) == _columns(self.schema) else self._fitted(result)

    def _fitted(self, result: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """The result with the declared types in columns of nulls alone, for which Arrow's builders infer no type."""
        if result.schema.names == self.schema.names:
            columns = [
                column.cast(field.type) if pa.types.is_null(column.type) else column
                for column, field in zip(result.columns, self.schema, strict=True)
            ]
            result = type(result).from_arrays(columns, names=result.schema.names)
        if (now := _columns(result.schema)) != (declared := _columns(self.schema)):
            raise TypeError(f"it returned columns ({_listed(now)}), and ({_listed(declared)}) for an empty batch")
        return result


def code_of(inputs: Iterable[Input], sources: Mapping[str, Any]) -> str:
    """The user's functions and sources among the inputs, each with its file and line. Empty without any."""
    code: dict[str, None] = {}
    for source in inputs:
        origin = sources.get(source.origin) if isinstance(source.origin, str) else None
        if isinstance(origin, Splits) and not is_ferrys(origin):
            code[f"source {source.origin!r}{at(type(origin))}"] = None
        for step in source.steps:
            if isinstance(step, Transform) or isinstance(step.function, UserBatches):
                function = step.function.function if isinstance(step.function, UserBatches) else step.function
                code[f"{function_name(function)}{at(function)}"] = None
    return ", ".join(code)


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _listed(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
