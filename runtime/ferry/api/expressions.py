"""Declarative steps: conditions and columns as Arrow expressions, in place of a function of batches.

Ferry plans these steps. A source reads only the columns that the steps need. A condition on a text column of a Parquet file
is evaluated once for each word of the column's dictionary, not for each record. Must never import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from ferry.api.pipeline import Batches
from ferry.contract.errors import SpecRefused
from ferry.contract.texts import require_name

Columns = tuple[str, ...]
Flags = npt.NDArray[np.bool_]

NO_FLAGS: Flags = np.empty(0, np.bool_)


class Need(NamedTuple):
    """The columns that later steps and the operator read."""

    columns: Columns | None
    """None: all. A function of batches does not declare the columns that it reads."""
    words: Columns = ()
    """Columns that a condition reads alone. As dictionaries, the condition is evaluated once for each word."""
    plain: Columns = ()
    """Columns that other readers read, which may not know dictionaries."""


class BoundExpression(NamedTuple):
    """An expression, and the columns that it reads."""

    expression: pc.Expression
    reads: Columns

    @staticmethod
    def of(expression: pc.Expression, schema: pa.Schema) -> BoundExpression:
        """The expression for records of this schema.

        Raises pa.ArrowInvalid or pa.ArrowNotImplementedError if the expression does not fit the schema.
        """
        empty = schema.empty_table()
        _evaluated(expression, empty)
        return BoundExpression(
            expression, tuple(name for name in schema.names if not _does_without(expression, empty, name))
        )

    @property
    def stays(self) -> bool:
        """Whether the expression is an unchanged column."""
        return len(self.reads) == 1 and self.expression.equals(pc.field(self.reads[0]))

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The value of each record."""
        if self.stays:
            return batch.column(self.reads[0])
        # An expression of constants has one value for each record, so the table needs a column.
        return _evaluated(self.expression, pa.Table.from_batches([batch.select(self.reads or batch.schema.names[:1])]))


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """The step of `filter`: keeps the records for which all conditions are true. A null is not true."""

    expressions: tuple[pc.Expression, ...]
    terms: tuple[BoundExpression, ...] = ()
    keeps: Columns | None = None
    """Columns that the kept records have. None: all."""
    word_flags: dict[int, tuple[pa.Array, Flags]] = field(default_factory=dict, repr=False)
    """By condition: (the words of the last dictionary, whether the condition is true for each word).

    All batches of a file have the same dictionary.
    """

    def bound(self, schema: pa.Schema) -> Filter:
        """The step for records of this schema. Raises SpecRefused for a condition that does not fit the schema."""
        terms = tuple(_term(expression, schema, "ferry.filter") for expression in self.expressions)
        for term in terms:
            if (kind := term.values(_empty(schema)).type) != pa.bool_():
                raise SpecRefused(f"ferry.filter: {term.expression} is {kind}, not true or false")
        return replace(self, terms=terms)

    def narrowed(self, need: Need) -> tuple[Filter, Need]:
        """(The step that keeps only the needed columns, the columns that the step needs)."""
        reads = [term.reads for term in self.terms]
        columns = None if need.columns is None else _once([*need.columns, *(c for names in reads for c in names)])
        words = _once([*need.words, *(names[0] for names in reads if len(names) == 1)])
        return replace(self, keeps=need.columns or None), Need(
            columns, words, _once([*need.plain, *(c for names in reads if len(names) > 1 for c in names)])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records for which all conditions are true."""
        if not self.terms:
            return self.bound(batch.schema)(batch)
        stay = self._holds(0, batch)
        for number in range(1, len(self.terms)):
            stay = stay & self._holds(number, batch)
        kept = batch if self.keeps is None else batch.select(self.keeps)
        positions = np.flatnonzero(stay)
        # Taking rows by position costs half as much as filtering by flags.
        return kept if positions.size == len(kept) else kept.take(pa.array(positions))

    def _holds(self, number: int, batch: pa.RecordBatch) -> Flags:
        """Whether a condition is true for each record. For a dictionary it is evaluated once for each word."""
        term = self.terms[number]
        column = batch.column(term.reads[0]) if len(term.reads) == 1 else None
        if column is None or not pa.types.is_dictionary(column.type) or len(column) < len(column.dictionary):
            return _flags(term.values(batch))
        words, holds = self.word_flags.get(number, (None, NO_FLAGS))
        if words is None or not column.dictionary.equals(words):
            words = column.dictionary
            null = pa.concat_arrays([words, pa.nulls(1, words.type)])
            holds = _flags(term.values(pa.RecordBatch.from_arrays([null], names=list(term.reads))))
            self.word_flags[number] = words, holds
        indices = column.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(pa.scalar(len(words), pa.int64()))
        codes, matching = indices.to_numpy(), np.flatnonzero(holds)
        return codes == matching[0] if matching.size == 1 else holds[codes]


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """The step of `select`: makes records of these columns."""

    expressions: dict[str, pc.Expression]
    terms: tuple[tuple[str, BoundExpression], ...] = ()

    def bound(self, schema: pa.Schema) -> Select:
        """The step for records of this schema. Raises SpecRefused for an expression that does not fit the schema."""
        return replace(
            self, terms=tuple((name, _term(e, schema, "ferry.select")) for name, e in self.expressions.items())
        )

    def narrowed(self, need: Need) -> tuple[Select, Need]:
        """(The step that makes only the needed columns, the columns that the step needs)."""
        terms = tuple(x for x in self.terms if need.columns is None or x[0] in need.columns) or self.terms[:1]
        stay = {name: term.reads[0] for name, term in terms if term.stays}
        words = _once(stay[name] for name in need.words if name in stay)
        computed = (column for _, term in terms if not term.stays for column in term.reads)
        plain = _once([*computed, *(stay[name] for name in need.plain if name in stay)])
        return replace(self, terms=terms), Need(_once(c for _, term in terms for c in term.reads), words, plain)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same records with these columns."""
        if not self.terms:
            return self.bound(batch.schema)(batch)
        columns = [term.values(batch) for _, term in self.terms]
        return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.terms])


def filter(*conditions: pc.Expression) -> Filter:
    """Keep the records for which all conditions are true; a step for `map_batches`.

    A source before this step reads only the columns that the pipeline needs. If the source provides dictionaries (as
    `parquet_files` does), a condition on a single text column is evaluated once for each word of the dictionary. Therefore
    pass conditions as separate arguments.

    Parameters:
        conditions: Arrow expressions (`pyarrow.compute.field`) of type boolean. A null counts as false.
    Returns: a step, for `.map_batches(...)`.
    Raises: SpecRefused, if there is no condition, or a condition is not an expression. `map_batches` raises SpecRefused, if
        a condition does not fit the columns.
    Example:
        >>> import pyarrow.compute as pc
        >>> dear = bids.map_batches(ferry.filter(pc.field("price") > 10_000, pc.field("bidder") != 7))
    """
    if not conditions:
        raise SpecRefused("ferry.filter: give at least one condition, such as pyarrow.compute.field('price') > 10")
    return Filter(tuple(_expression(condition, "ferry.filter") for condition in conditions))


def select(*columns: str, **expressions: pc.Expression) -> Select:
    """Keep columns and compute columns; a step for `map_batches`.

    Parameters:
        columns: names of the columns to keep unchanged.
        expressions: Arrow expressions (`pyarrow.compute.field`, and its functions) by the name of the computed column.
    Returns: a step, for `.map_batches(...)`.
    Raises: SpecRefused, if no column is named, a column is named twice, or a value is not an expression. `map_batches`
        raises SpecRefused, if a column is missing, or an expression does not fit the columns.
    Example:
        >>> import pyarrow.compute as pc
        >>> bids.map_batches(ferry.select("ts", "auction", euros=pc.field("price") * 0.89)).columns
        ['ts', 'auction', 'euros']
    """
    if lists := [column for column in columns if isinstance(column, list | tuple)]:
        raise SpecRefused(f'ferry.select: {type(lists[0]).__name__} is not a column name; write select("a", "b")')
    named = {name: pc.field(require_name(name, "ferry.select: column")) for name in columns}
    if not named and not expressions:
        raise SpecRefused("ferry.select: name at least one column")
    if twice := [name for name in named if name in expressions or columns.count(name) > 1]:
        raise SpecRefused(f"ferry.select: column {twice[0]!r} is named twice")
    return Select({**named, **{name: _expression(value, "ferry.select") for name, value in expressions.items()}})


def planned(steps: Sequence[Batches], need: Need) -> tuple[tuple[Batches, ...], Columns | None, Columns]:
    """(The steps reduced to the needed columns, the columns they read, the columns that may be dictionaries)."""
    reduced: list[Batches] = []
    for step in reversed(steps):
        if isinstance(step, Filter | Select):
            step, need = step.narrowed(need)
        else:
            need = Need(None)
        reduced.insert(0, step)
    words = () if need.columns is None else tuple(name for name in need.words if name not in need.plain)
    return tuple(reduced), need.columns, words


def _once(columns: Iterable[str]) -> Columns:
    return tuple(dict.fromkeys(columns))


def _expression(value: object, step: str) -> pc.Expression:
    if not isinstance(value, pc.Expression):
        column = isinstance(value, str) and step.startswith("ferry.select")
        example = f"pyarrow.compute.field({value!r})" if column else "pyarrow.compute.field('price') > 10"
        raise SpecRefused(f"{step}: {value!r} is not an Arrow expression; write {example}")
    return value


def _term(expression: pc.Expression, schema: pa.Schema, step: str) -> BoundExpression:
    try:
        return BoundExpression.of(expression, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as wrong:
        raise SpecRefused(f"{step}: {expression} does not fit columns {schema.names}: {wrong}") from wrong


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _does_without(expression: pc.Expression, table: pa.Table, column: str) -> bool:
    """Whether an expression of these records also fits the records without a column."""
    try:
        # A column of another name takes the place of the dropped column, because a table needs a column.
        _evaluated(expression, table.drop_columns([column]).append_column(f"{column}'", pa.array([], pa.null())))
    except pa.ArrowInvalid:
        return False
    return True


def _evaluated(expression: pc.Expression, table: pa.Table) -> pa.Array:
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    projected = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return projected.column(0).combine_chunks()


def _flags(values: pa.Array) -> Flags:
    return values.fill_null(False).to_numpy(zero_copy_only=False)
