"""Aggregators: the state of a group of rows, and the result read from it; functions of pipelines, and users' own.

An aggregator sees many groups at once: the rows of a group are adjacent, and no group is empty. So each of its three
functions is a few calls of numpy or Arrow. Sessions, windows of rows and windows of time are built on it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor
from ferry.contract.errors import OVERFLOW, DataRefused, SpecRefused
from ferry.kernels import columns, values
from ferry.kernels.aggregates import (
    PlacedAggregate,
    merge_codes,
    places,
    reads_times,
    reads_values,
    result_type,
    state_columns,
)
from ferry.kernels.contributions import contribute, records_at_once
from ferry.kernels.declared import check_state, typed
from ferry.kernels.folding import merge_found
from ferry.kernels.grouping import CELLS, COUNT, Ints
from ferry.kernels.keys import text_of
from ferry.kernels.values import TEXTS, arrow_type
from ferry.process.api import Work, batch_of
from ferry.process.groups import begins_of
from ferry.process.users import users_code

TIME = "_time"
"""Column of event times, for an aggregator that uses them."""

CODED = "_order of "
"""Prefix of the name of a column that holds numbers in place of texts."""

TAKEN = re.compile(r"n|s\d+|entry|last|timer")
"""Reserved names of state columns; a column that is the whole state of one function has the name of its result
instead."""


class Aggregator(ABC):
    """A user-defined aggregate function: a dataclass whose fields have JSON types.

    `begins` of its functions is int64[groups]: the first row of each group, which ends where the next one begins, as
    `numpy.add.reduceat` and the like expect.

    Attributes:
        state: columns that are kept of a group.
        output: columns that are read from them.
        timed: whether rows have their event times, in milliseconds, as a column `_time`.
        commutative: `merge` gives the same in whatever order the states come. Then tasks condense the records of sessions
            before they send them, as for the functions of pipelines.
    Example:
        >>> import dataclasses, numpy, pyarrow as pa
        >>> @dataclasses.dataclass
        ... class Product(ferry.Aggregator):
        ...     column: str
        ...     state = output = pa.schema([("product", pa.float64())])
        ...     def update(self, rows, begins):
        ...         factors = rows.column(self.column).to_numpy()
        ...         return {"product": numpy.multiply.reduceat(factors, begins)}
        ...     def merge(self, states, begins):
        ...         return {"product": numpy.multiply.reduceat(states.column("product").to_numpy(), begins)}
        ...     def result(self, states):
        ...         return states
        >>> rows = pa.record_batch({"price": [2.0, 3.0, 7.0]})
        >>> Product("price").update(rows, numpy.array([0, 2]))
        {'product': array([6., 7.])}
    """

    state: pa.Schema
    output: pa.Schema
    timed: bool = False
    commutative: bool = False

    def open(self, rows: pa.Schema) -> None:  # noqa: B027
        """Read the columns of the rows, and set fields that depend on them. Raises SpecRefused."""

    @abstractmethod
    def update(self, rows: pa.RecordBatch, begins: Ints) -> Any:
        """The state of each group of these rows, which are in order: a batch, or arrays by column."""

    @abstractmethod
    def merge(self, states: pa.RecordBatch, begins: Ints) -> Any:
        """One state per group of states; states of earlier rows come first."""

    @abstractmethod
    def result(self, states: pa.RecordBatch) -> Any:
        """The result of each state: columns of `output`."""

    def running(self, states: pa.RecordBatch, begins: Ints) -> Any:
        """Each state merged with all earlier ones of its group; for each row `begins` has the first row of its group.

        The default merges all rows a few times: each pass includes rows twice as far back.
        """
        numbers, distance = np.arange(begins.size), 1
        while (later := np.flatnonzero(numbers - distance >= begins)).size:
            pairs = np.stack([later - distance, later], axis=1).reshape(-1)
            pairs_begin = np.arange(0, pairs.size, 2)
            both = _called(self, "merge", states.schema, later.size, states.take(pa.array(pairs)), pairs_begin)
            source = numbers.copy()
            source[later] = numbers.size + np.arange(later.size)
            states = pa.concat_batches([states, both]).take(pa.array(source))
            distance *= 2
        return states


@dataclass
class Functions(Aggregator):
    """The aggregate functions of pipelines, one output column each: `{"n": ferry.count(), "s": ferry.sum("price")}`.

    A group has the number of its records, and the state columns of `ferry.kernels.aggregates`. Texts are no words of
    state: during a merge, numbers in the order of their bytes replace them.
    """

    aggregates: dict[str, Aggregate]
    commutative = True

    def open(self, rows: pa.Schema) -> None:
        """Types of states and results follow from the types of the columns."""
        typed_aggregates = tuple(_typed(out, a, rows) for out, a in self.aggregates.items())
        self._table = table = OperatorDescriptor(
            "functions", 0, "aggregate", (), GLOBAL, tuple(map(_coded, typed_aggregates))
        )
        check_state(table)
        self.timed = any(map(reads_times, typed_aggregates))
        self._texts: dict[int, tuple[str | None, pa.DataType]] = {}
        """of state columns that keep texts: their source column and type"""
        for place, a in zip(places(table), typed_aggregates, strict=True):
            for number, kept in enumerate(place.columns, place.first):
                column, value = (a.by, a.by_number) if kept.source == "by" else (a.column, a.number)
                if kept.source in ("by", "column") and value in TEXTS:
                    self._texts[number] = column, arrow_type(value)
        kinds = [self._texts[i][1] if i in self._texts else kept.type for i, kept in enumerate(state_columns(table))]
        names = {p.first: p.aggregate.name for p in places(table) if len(p.columns) == 1}
        named = [(f"s{i}" if TAKEN.fullmatch(names.get(i, "n")) else names[i], kind) for i, kind in enumerate(kinds)]
        self.state = pa.schema([("n", pa.int64()), *named])
        self.output = pa.schema([(a.name, result_type(a)) for a in typed_aggregates])

    def update(self, rows: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """Each record is a state; a bounded number of records is merged at a time."""
        texts = {column: numbered(rows.column(column).cast(kind)) for column, kind in self._texts.values()}
        codes, names = [codes for codes, _ in texts.values()], [f"{CODED}{column}" for column in texts]
        rows = pa.RecordBatch.from_arrays([*rows.columns, *codes], [*rows.schema.names, *names])
        times = rows.column(TIME) if self.timed else None
        into = self._words(begins.size)
        for start in range(0, rows.num_rows, step := records_at_once(self._table)):
            piece = self._words(min(step, rows.num_rows - start))
            piece[:, COUNT] = 1
            of_piece = None if times is None else times.slice(start, step)
            contribute(self._table, rows.slice(start, step), of_piece, piece[:, CELLS:])
            self._merge(into, begins, piece, start)
        return self._states(into, {i: texts[column][1] for i, (column, _) in self._texts.items()})

    def merge(self, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """With the kernel that merges all state."""
        rows, texts = self._rows(states)
        into = self._words(begins.size)
        self._merge(into, begins, rows, 0)
        return self._states(into, texts)

    def running(self, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """In one pass: each row includes all rows before it."""
        rows, texts = self._rows(states)
        later = np.flatnonzero(np.arange(begins.size) > begins)
        merge_found(rows, later, later - 1, rows, merge_codes(self._table))
        return self._states(rows, texts)

    def result(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """Each function on its own."""
        rows, texts = self._rows(states)
        kept, records, out = columns.cell_arrays(self._table, rows[:, CELLS:]), pa.array(rows[:, COUNT].copy()), []
        for place in places(self._table):
            with _named(place):
                found = place.results(kept[place.state], records, rows[:, -1])
            text = texts.get(place.state.stop - 1) if place.columns else None
            out.append(found if text is None else text.take(found))
        return pa.RecordBatch.from_arrays(out, schema=self.output)

    def _words(self, rows: int) -> Ints:
        """Rows in the form of `ferry.kernels.grouping`, without slice, hash and key."""
        return np.zeros((rows, CELLS + merge_codes(self._table).size), np.int64)

    def _merge(self, into: Ints, begins: Ints, rows: Ints, start: int) -> None:
        """Merge rows into groups; the first of them is row number `start`."""
        low, high = np.searchsorted(begins, [start, start + len(rows)])
        is_first = np.zeros(len(rows), np.bool_)
        is_first[begins[low:high] - start] = True
        into[low:high] = rows[is_first]
        others = np.flatnonzero(~is_first)
        group = low - 1 + np.cumsum(is_first)[others]
        merge_found(into, group, others, rows, merge_codes(self._table))

    def _states(self, rows: Ints, texts: dict[int, pa.Array]) -> pa.RecordBatch:
        for place in places(self._table):
            with _named(place):
                place.check(rows[:, -1])
        kept = columns.cell_arrays(self._table, rows[:, CELLS:])
        for i, text in texts.items():
            codes = kept[i].to_numpy()
            none = (codes < 0) | (codes >= len(text))
            kept[i] = text.take(pa.array(codes, mask=none))
        return pa.RecordBatch.from_arrays([pa.array(rows[:, COUNT].copy()), *kept], schema=self.state)

    def _rows(self, states: pa.RecordBatch) -> tuple[Ints, dict[int, pa.Array]]:
        """Inverse of `_states`."""
        n, *kept = states.columns
        texts: dict[int, pa.Array] = {}
        for i in self._texts:
            codes, texts[i] = numbered(kept[i])
            kept[i] = codes.fill_null(int(state_columns(self._table)[i].neutral))
        rows = self._words(states.num_rows)
        rows[:, COUNT] = n.to_numpy()
        columns.fill_cells(self._table, kept, rows[:, CELLS:])
        return rows, texts


def taken_in(
    aggregator: Aggregator, kept: pa.RecordBatch, kept_group: Ints, rows: pa.RecordBatch, row_group: Ints
) -> pa.RecordBatch:
    """The state of each group, from kept states and new rows in order; groups are numbered and not empty."""
    states, groups = kept.select(aggregator.state.names), kept_group
    if rows.num_rows:
        order = np.argsort(row_group, kind="stable")
        begins = begins_of(row_group[order])
        with _numbered_anew(row_group[order][begins]):
            new = updated(aggregator, rows.take(pa.array(order)), begins)
        states = pa.concat_batches([states.cast(new.schema), new])
        groups = np.concatenate([kept_group, row_group[order][begins]])
    order = np.argsort(groups, kind="stable")
    return merged_states(aggregator, states.take(pa.array(order)), groups[order])


def merged_states(aggregator: Aggregator, states: pa.RecordBatch, group: Ints) -> pa.RecordBatch:
    """One state of each group; groups ascend."""
    begins = begins_of(group)
    if begins.size == group.size:
        return states
    with _numbered_anew(group[begins]):
        return _called(aggregator, "merge", aggregator.state, begins.size, states, begins)


def updated(aggregator: Aggregator, rows: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
    """The state of each group of these rows."""
    return _called(aggregator, "update", aggregator.state, begins.size, rows, begins)


def ran(aggregator: Aggregator, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
    """Each state merged with all earlier ones of its group."""
    return _called(aggregator, "running", aggregator.state, states.num_rows, states, begins)


def _called(aggregator: Aggregator, name: str, schema: pa.Schema, rows: int, *arguments: Any) -> pa.RecordBatch:
    """The result of a function of the aggregator; it must have this many rows of this schema.

    Raises UserCodeFailed if the aggregator is the user's own.
    """
    function = getattr(aggregator, name)
    with users_code(f"{name} of {type(aggregator).__name__}", function):
        batch = batch_of(function(*arguments), schema, name)
        if batch.num_rows != rows:
            raise SpecRefused(f"{name}: {batch.num_rows} rows were given for {rows} groups; give one row a group")
        return batch


def results(
    aggregator: Aggregator, states: pa.RecordBatch, before: Sequence[pa.Array], output: pa.Schema
) -> pa.RecordBatch:
    """Rows of `output`: these columns, and the aggregator's result of each state."""
    found = _called(aggregator, "result", aggregator.output, states.num_rows, states)
    return pa.RecordBatch.from_arrays([*before, *found.columns], schema=output)


def open_aggregator(aggregator: Aggregator, rows: pa.Schema) -> pa.Schema:
    """Open the aggregator for these rows, as `rows_of` gives them. Raises SpecRefused."""
    aggregator.open(rows)
    if not aggregator.timed:
        return rows
    if TIME in rows.names:
        raise SpecRefused(
            f"column {TIME!r}: this name is reserved for event times; rename the column before the operator"
        )
    return rows.append(pa.field(TIME, pa.int64()))


def rows_of(aggregator: Aggregator, work: Work) -> pa.RecordBatch:
    """The rows of an epoch, as an aggregator gets them."""
    return timed_rows(aggregator, work.rows(), work.times())


def timed_rows(aggregator: Aggregator, rows: pa.RecordBatch, times: Ints) -> pa.RecordBatch:
    """Rows and their event times, as an aggregator gets them."""
    return rows.append_column(TIME, pa.array(times)) if aggregator.timed else rows


def numbered(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """A number for each text, in the order of their bytes, null for null; and the text of each number."""
    found = texts.dictionary_encode()
    order = pc.sort_indices(found.dictionary)
    return pc.sort_indices(order).cast(pa.int64()).take(found.indices), found.dictionary.take(order)


def _typed(out: str, aggregate: Aggregate, rows: pa.Schema) -> Aggregate:
    made = typed(out, aggregate, rows)
    for column in (aggregate.column, aggregate.by) if reads_values(aggregate) else ():
        if column is not None and rows.field(column).type == pa.uint64():
            raise SpecRefused(f"{out}: column {column!r} is uint64; make it an int64 or a double before the operator")
    return made


def _coded(aggregate: Aggregate) -> Aggregate:
    """The same aggregate over the numbers that replace texts."""
    if aggregate.number in TEXTS:
        aggregate = replace(aggregate, column=f"{CODED}{aggregate.column}", number="int")
    if aggregate.by_number in TEXTS:
        aggregate = replace(aggregate, by=f"{CODED}{aggregate.by}", by_number="int")
    return aggregate


@contextmanager
def of_operator(name: str) -> Iterator[None]:
    """Adds the operator's name to DataRefused."""
    try:
        yield
    except DataRefused as refused:
        raise DataRefused(str(refused).replace(OVERFLOW, f"{OVERFLOW}operator {name}: ", 1)) from refused


class TooGreat(DataRefused):
    """A sum of a group overflows; `row` is the group."""

    def __init__(self, what: str, way: str, row: int) -> None:
        super().__init__(f"{OVERFLOW}{what}; {way}")
        self.what = what
        self.way = way
        self.row = row


@contextmanager
def of_key(work: Work, numbers: Ints) -> Iterator[None]:
    """Adds the key to an overflow of a sum; `numbers`: the key index of each group."""
    try:
        yield
    except TooGreat as sum_:
        key = text_of(work.keys.columns, int(numbers[sum_.row]))
        raise DataRefused(f"{OVERFLOW}{sum_.what}, key {key}; {sum_.way}") from sum_


@contextmanager
def _numbered_anew(numbers: Ints) -> Iterator[None]:
    """Translates the group of an overflow to the caller's numbering."""
    try:
        yield
    except TooGreat as sum_:
        raise TooGreat(sum_.what, sum_.way, int(numbers[sum_.row])) from sum_


@contextmanager
def _named(place: PlacedAggregate) -> Iterator[None]:
    """Adds the column to an overflow of a sum."""
    try:
        yield
    except values.Beyond as beyond:
        a = place.aggregate
        what = f"a sum is {beyond}: {a.name}={a.function}({a.column!r})"
        raise TooGreat(what, values.way_on(a), beyond.row) from beyond
