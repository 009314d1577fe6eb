"""Steps that say what they do: conditions and columns as Arrow expressions, in place of a function of batches.

What is said can be planned: a source reads the columns that are needed and no others, and a condition on a text of a Parquet
file is judged once for each word of its dictionary, not for each record. Must never import pyspark.
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
    """What is wanted of records."""

    columns: Columns | None
    """None: all, for nobody knows what a function that says nothing reads."""
    words: Columns = ()
    """Columns that a condition reads alone: it is judged once for each word when they are dictionaries."""
    plain: Columns = ()
    """Columns that something else reads, which may know no dictionaries."""


class BoundExpression(NamedTuple):
    """An expression, and the columns that it reads."""

    expression: pc.Expression
    reads: Columns

    @staticmethod
    def of(expression: pc.Expression, schema: pa.Schema) -> BoundExpression:
        """Of records with this schema. Raises pa.ArrowInvalid or pa.ArrowNotImplementedError when it does not fit them."""
        empty = schema.empty_table()
        _evaluated(expression, empty)
        return BoundExpression(
            expression, tuple(name for name in schema.names if not _does_without(expression, empty, name))
        )

    @property
    def stays(self) -> bool:
        """Whether it is a column as it is."""
        return len(self.reads) == 1 and self.expression.equals(pc.field(self.reads[0]))

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Of each record."""
        if self.stays:
            return batch.column(self.reads[0])
        # An expression of constants has as many values as there are records, so one column is needed.
        return _evaluated(self.expression, pa.Table.from_batches([batch.select(self.reads or batch.schema.names[:1])]))


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Keeps the records for which all conditions hold; a null does not. See `filter`."""

    expressions: tuple[pc.Expression, ...]
    terms: tuple[BoundExpression, ...] = ()
    keeps: Columns | None = None
    """Columns of the records that stay; None: all."""
    judged: dict[int, tuple[pa.Array, Flags]] = field(default_factory=dict, repr=False)
    """By condition, the words of the last dictionary and for which of them it holds: batches of a file have the same."""

    def bound(self, schema: pa.Schema) -> Filter:
        """The same for records with this schema. Raises SpecRefused for a condition that does not fit them."""
        terms = tuple(_term(expression, schema, "ferry.filter") for expression in self.expressions)
        for term in terms:
            if (kind := term.values(_empty(schema)).type) != pa.bool_():
                raise SpecRefused(f"ferry.filter: {term.expression} is {kind}, not true or false")
        return replace(self, terms=terms)

    def narrowed(self, need: Need) -> tuple[Filter, Need]:
        """One that keeps no more than is wanted of it, and what it needs."""
        reads = [term.reads for term in self.terms]
        columns = None if need.columns is None else _once([*need.columns, *(c for some in reads for c in some)])
        words = _once([*need.words, *(some[0] for some in reads if len(some) == 1)])
        return replace(self, keeps=need.columns or None), Need(
            columns, words, _once([*need.plain, *(c for some in reads if len(some) > 1 for c in some)])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that stay."""
        if not self.terms:
            return self.bound(batch.schema)(batch)
        stay = self._holds(0, batch)
        for number in range(1, len(self.terms)):
            stay = stay & self._holds(number, batch)
        kept = batch if self.keeps is None else batch.select(self.keeps)
        positions = np.flatnonzero(stay)
        # To take by position costs half of what a filter by flags does.
        return kept if positions.size == len(kept) else kept.take(pa.array(positions))

    def _holds(self, number: int, batch: pa.RecordBatch) -> Flags:
        """For which records a condition holds; of a dictionary it is judged once for each word."""
        term = self.terms[number]
        column = batch.column(term.reads[0]) if len(term.reads) == 1 else None
        if column is None or not pa.types.is_dictionary(column.type) or len(column) < len(column.dictionary):
            return _flags(term.values(batch))
        words, holds = self.judged.get(number, (None, NO_FLAGS))
        if words is None or not column.dictionary.equals(words):
            words = column.dictionary
            null = pa.concat_arrays([words, pa.nulls(1, words.type)])
            holds = _flags(term.values(pa.RecordBatch.from_arrays([null], names=list(term.reads))))
            self.judged[number] = words, holds
        indices = column.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(pa.scalar(len(words), pa.int64()))
        codes, found = indices.to_numpy(), np.flatnonzero(holds)
        return codes == found[0] if found.size == 1 else holds[codes]


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Makes records of these columns. See `select`."""

    expressions: dict[str, pc.Expression]
    terms: tuple[tuple[str, BoundExpression], ...] = ()

    def bound(self, schema: pa.Schema) -> Select:
        """The same for records with this schema. Raises SpecRefused for a column that does not fit them."""
        return replace(
            self, terms=tuple((name, _term(e, schema, "ferry.select")) for name, e in self.expressions.items())
        )

    def narrowed(self, need: Need) -> tuple[Select, Need]:
        """One that makes no more than is wanted of it, and what it needs."""
        terms = tuple(x for x in self.terms if need.columns is None or x[0] in need.columns) or self.terms[:1]
        stay = {name: term.reads[0] for name, term in terms if term.stays}
        words = _once(stay[name] for name in need.words if name in stay)
        made = (column for _, term in terms if not term.stays for column in term.reads)
        plain = _once([*made, *(stay[name] for name in need.plain if name in stay)])
        return replace(self, terms=terms), Need(_once(c for _, term in terms for c in term.reads), words, plain)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As many records, of these columns."""
        if not self.terms:
            return self.bound(batch.schema)(batch)
        columns = [term.values(batch) for _, term in self.terms]
        return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.terms])


def filter(*conditions: pc.Expression) -> Filter:
    """Keep the records for which all conditions hold, for `map_batches`.

    A source then reads the columns that are needed, and no others. A condition on a single column of text is judged once
    for each word where the source can tell them apart (`parquet_files` does), so give conditions one by one.

    Parameters:
        conditions: Arrow expressions (`pyarrow.compute.field`) that are true or false; a null counts as false.
    Returns: a step, for `.map_batches(...)`.
    Raises: SpecRefused, if there is none, or one is no expression; and by `map_batches`, if one does not fit the columns.
    Example:
        >>> import pyarrow.compute as pc
        >>> dear = bids.map_batches(ferry.filter(pc.field("price") > 10_000, pc.field("bidder") != 7))
    """
    if not conditions:
        raise SpecRefused("ferry.filter: give at least one condition, such as pyarrow.compute.field('price') > 10")
    return Filter(tuple(_expression(one, "ferry.filter") for one in conditions))


def select(*columns: str, **made: pc.Expression) -> Select:
    """Records of these columns, for `map_batches`: some as they are, others made by expressions.

    Parameters:
        columns: names of columns that stay.
        made: Arrow expressions (`pyarrow.compute.field`, and its functions) by the name of the column that they make.
    Returns: a step, for `.map_batches(...)`.
    Raises: SpecRefused, if no column is named, one is named twice, or one is no expression; and by `map_batches`, if one is
        not there, or does not fit.
    Example:
        >>> import pyarrow.compute as pc
        >>> bids.map_batches(ferry.select("ts", "auction", euros=pc.field("price") * 0.89)).columns
        ['ts', 'auction', 'euros']
    """
    if lists := [one for one in columns if isinstance(one, list | tuple)]:
        raise SpecRefused(f'ferry.select: {type(lists[0]).__name__} is no name of a column; write select("a", "b")')
    named = {name: pc.field(require_name(name, "ferry.select: column")) for name in columns}
    if not named and not made:
        raise SpecRefused("ferry.select: name at least one column")
    if twice := [name for name in named if name in made or columns.count(name) > 1]:
        raise SpecRefused(f"ferry.select: column {twice[0]!r} is named twice")
    return Select({**named, **{name: _expression(one, "ferry.select") for name, one in made.items()}})


def planned(steps: Sequence[Batches], need: Need) -> tuple[tuple[Batches, ...], Columns | None, Columns]:
    """Steps that make no more than is wanted: (they, the columns they read, which of these may be dictionaries)."""
    made: list[Batches] = []
    for step in reversed(steps):
        if isinstance(step, Filter | Select):
            step, need = step.narrowed(need)
        else:
            need = Need(None)
        made.insert(0, step)
    words = () if need.columns is None else tuple(name for name in need.words if name not in need.plain)
    return tuple(made), need.columns, words


def _once(columns: Iterable[str]) -> Columns:
    return tuple(dict.fromkeys(columns))


def _expression(given: object, what: str) -> pc.Expression:
    if not isinstance(given, pc.Expression):
        column = isinstance(given, str) and what.startswith("ferry.select")
        example = f"pyarrow.compute.field({given!r})" if column else "pyarrow.compute.field('price') > 10"
        raise SpecRefused(f"{what}: {given!r} is no Arrow expression; write {example}")
    return given


def _term(expression: pc.Expression, schema: pa.Schema, what: str) -> BoundExpression:
    try:
        return BoundExpression.of(expression, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as wrong:
        raise SpecRefused(f"{what}: {expression} does not fit columns {schema.names}: {wrong}") from wrong


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _does_without(expression: pc.Expression, table: pa.Table, column: str) -> bool:
    """Whether an expression that fits these records fits them without a column."""
    try:
        # In place of the last column another one: a table has to have some.
        _evaluated(expression, table.drop_columns([column]).append_column(f"{column}'", pa.array([], pa.null())))
    except pa.ArrowInvalid:
        return False
    return True


def _evaluated(expression: pc.Expression, table: pa.Table) -> pa.Array:
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return made.column(0).combine_chunks()


def _flags(values: pa.Array) -> Flags:
    return values.fill_null(False).to_numpy(zero_copy_only=False)
