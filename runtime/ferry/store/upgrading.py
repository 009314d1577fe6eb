"""The state of a process whose tables changed, from the state before: the user's `upgrade`, over after-images.

A row keeps its key and its entry. So a removed row is removed from each table that its table gives rows to, subjectever its
values were; a call without rows tells these tables. Timers are kept. Emitted rows are of epochs before the switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import shown
from ferry.kernels import columns, places
from ferry.kernels.changes import CHANGES, EMIT, EVENT_TIMERS, PUT
from ferry.kernels.grouping import Ints
from ferry.kernels.places import CUT_BYTES, split_whole
from ferry.kernels.row_codec import encode_rows
from ferry.kernels.schemas import from_text
from ferry.process.api import Process, array_of, batch_of
from ferry.process.classes import class_of
from ferry.process.shapes import process_of
from ferry.process.tables import ENTRY_TYPES, StateTable
from ferry.process.users import is_users_class, users_code
from ferry.store.process_tables import entry_column, key_columns, kind_name, row_columns

ENTRY = "entry"
"""Column of the entries, among the rows that `upgrade` gets."""

KEY_AT = 10
"""Bytes of a place before the key."""


@dataclass
class Upgrade:
    """Derives rows of CHANGES for a process from rows of the process before. Raises UserCodeFailed, SpecRefused."""

    before: OperatorDescriptor
    after: OperatorDescriptor
    load: Callable[[OperatorDescriptor], Process] = process_of

    def check(self) -> None:
        """Call `upgrade` without rows, for each table that changed. Raises UserCodeFailed, SpecRefused."""
        assert self._targets is not None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the process after, for these rows."""
        rows = rows.filter(pa.array(rows.column("change").to_numpy() != EMIT))
        if not rows.num_rows:
            return columns.empty(CHANGES)
        _, numbers, lengths = places.parsed(*columns.binary(rows.column("place")))
        out = [rows.filter(pa.array(numbers >= EVENT_TIMERS))]
        for number, name in enumerate(self._tables):
            mine = np.flatnonzero(numbers == number)
            if mine.size:
                out += self._derived(name, rows.take(pa.array(mine)), lengths[mine])
        return columns.sorted_by_hash(out)

    @cached_property
    def _process(self) -> Process:
        return self.load(self.after)

    @cached_property
    def _tables(self) -> dict[str, StateTable]:
        """The tables before."""
        kinds = {None: None} | {str(kind): kind for kind in ENTRY_TYPES}
        return {name: StateTable(from_text(text), kinds[entry]) for name, text, entry in self.before.shape.tables}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, (name, _, _) in enumerate(self.after.shape.tables)}

    @cached_property
    def _same(self) -> set[str]:
        return {name for name, _, _ in {*self.before.shape.tables} & {*self.after.shape.tables}}

    @cached_property
    def _targets(self) -> dict[str, tuple[str, ...]]:
        """The tables to which a table before gives rows, by its name."""
        nothing = columns.empty(CHANGES)
        targets = {name: (name,) if name in self._same else tuple(self._called(name, nothing)) for name in self._tables}
        for name in self._numbers:
            givers = [giver for giver, given in targets.items() if name in given]
            if len(givers) > 1:
                raise SpecRefused(
                    f"operator {self.after.name!r}: upgrade() gives table {name!r} rows of {' and '.join(givers)}; let it "
                    "get rows of a single table"
                )
        return targets

    def _derived(self, name: str, rows: pa.RecordBatch, lengths: Ints) -> list[pa.RecordBatch]:
        if name in self._same:
            return [_moved(rows, lengths, self._numbers[name])]
        put = rows.column("change").to_numpy() == PUT
        gone, images = rows.filter(pa.array(~put)), rows.filter(pa.array(put))
        out = [_moved(gone, lengths[~put], self._numbers[target]) for target in self._targets[name]]
        for target, values in (self._called(name, images) if images.num_rows else {}).items():
            moved = _moved(images, lengths[put], self._numbers[target])
            out.append(moved.set_column(3, CHANGES.field("value"), pa.array(values, pa.binary())))
        return out

    def _called(self, name: str, images: pa.RecordBatch) -> dict[str, list[bytes]]:
        """The stored values of the user's rows for these after-images of a table, by name of a table after."""
        shown_rows = _shown_rows(self.before, self._tables[name], images)
        made_of = next(filter(is_users_class, self.after.shape.classes))
        noun = f"upgrade() of {made_of.rpartition(':')[2]}, operator {self.after.name!r}"
        with users_code(noun, class_of(made_of)):
            answers = self._answers(name, shown_rows)
            stored = {target: self._stored(name, target, answer, shown_rows) for target, answer in answers.items()}
        return {
            target: [prefix + value for prefix, value in zip(shown_rows.prefixes, values, strict=True)]
            for target, values in stored.items()
        }

    def _answers(self, name: str, images: _ShownRows) -> Mapping[str, Any]:
        answers = self._process.upgrade(name, images.rows)
        if not isinstance(answers, Mapping):
            raise SpecRefused(f"upgrade({name!r}) returns {shown(answers)}; return a dict of rows by name of a table")
        known = self.__dict__.get("_targets", {}).get(name, answers)
        if {*answers} != {*known}:
            raise SpecRefused(
                f"upgrade({name!r}) returns rows of {_listed(answers)}, but of {_listed(known)} when there are no rows; "
                "return the same tables always"
            )
        return answers

    def _stored(self, name: str, target: str, answer: Any, images: _ShownRows) -> list[bytes]:
        """Rows of a table as stored values. Raises SpecRefused for other tables, keys, entries or columns."""
        table, subject = self._process.tables.get(target), f"upgrade({name!r}): rows of {target!r}"
        if table is None or target in self._same:
            changed = _listed([one for one in self._process.tables if one not in self._same])
            raise SpecRefused(f"{subject}: no such table has changed; there are {changed}")
        if table.entry != self._tables[name].entry:
            kinds = (table.entry or "no entry", self._tables[name].entry or "no entry")
            raise SpecRefused(f"{subject} have {kinds[0]}, and had {kinds[1]}: a row keeps its entry")
        if isinstance(answer, pa.RecordBatch | pa.Table):
            answer = dict(zip(answer.schema.names, answer.columns, strict=True))
        own = {column: values for column, values in answer.items() if column in table.values.names}
        for column in images.kept.keys() & answer.keys() - own.keys():
            _require_kept(subject, column, images.kept[column], array_of(answer[column], images.kept[column].type))
        unknown = {column: answer[column] for column in answer if column not in own and column not in images.kept}
        batch = batch_of(own | unknown, table.values, subject)
        if batch.num_rows != images.rows.num_rows:
            raise SpecRefused(f"{subject}: {batch.num_rows} for {images.rows.num_rows} rows; return one for each")
        return places.lists(*encode_rows(batch.columns, [kind_name(field) for field in table.values]))


class _ShownRows(NamedTuple):
    """Stored rows as the user gets them."""

    rows: pa.RecordBatch
    kept: dict[str, pa.Array]
    """the columns of the key and of the entry"""
    prefixes: list[bytes]
    """of the stored values: keys and entries that are cut in their places"""


def _shown_rows(descriptor: OperatorDescriptor, table: StateTable, images: pa.RecordBatch) -> _ShownRows:
    heads, rests, values, prefixes = list[bytes](), list[bytes](), list[bytes](), list[bytes]()
    stored = images.column("value").to_pylist()
    for place, value in zip(images.column("place").to_pylist(), stored, strict=True):
        end = KEY_AT + int.from_bytes(place[8:KEY_AT])
        rest, left = place[end + 1 :], value
        if end - KEY_AT >= CUT_BYTES:
            _, left = split_whole(left)
        if len(rest) >= CUT_BYTES:
            rest, left = split_whole(left)
        heads.append(place[:end])
        rests.append(rest)
        values.append(left)
        prefixes.append(value[: len(value) - len(left)])
    keys, entry, found = key_columns(descriptor, heads, stored), entry_column(table, rests), row_columns(table, values)
    kept = dict(zip(keys.schema.names, keys.columns, strict=True)) | ({} if entry is None else {ENTRY: entry})
    kept = {column: array for column, array in kept.items() if column not in found.schema.names}
    rows = pa.RecordBatch.from_arrays([*kept.values(), *found.columns], [*kept, *found.schema.names])
    return _ShownRows(rows, kept, prefixes)


def _require_kept(subject: str, column: str, before: pa.Array, now: pa.Array) -> None:
    """Raise SpecRefused for another key or entry."""
    if not before.equals(now) and len(before) == len(now):
        for row, (old, new) in enumerate(zip(before.to_pylist(), now.to_pylist(), strict=True)):
            if old != new and old == old:  # NaN differs from itself.
                raise SpecRefused(
                    f"{subject}: {column!r} of row {row} was {shown(old)}, and is {shown(new)}: rows keep their keys, their "
                    "entries and their order"
                )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "no table"


def _moved(rows: pa.RecordBatch, lengths: Ints, table: int) -> pa.RecordBatch:
    """The same rows in another table."""
    offsets, data = columns.binary(rows.column("place"))
    data[offsets[:-1] + KEY_AT + lengths] = table
    place = columns.binary_array(offsets, data, pa.binary())
    return rows.set_column(2, CHANGES.field("place"), place)
