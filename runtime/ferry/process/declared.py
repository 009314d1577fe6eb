"""Checks of a process's declarations where the pipeline is built."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.kernels.values import value_type
from ferry.process.api import Process
from ferry.process.tables import ENTRY_TYPES, StateTable

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def opened(process: Process, key: pa.Schema, inputs: Sequence[pa.Schema]) -> Process:
    """The process, opened for its key and inputs, with valid tables and output. Raises SpecRefused."""
    if not isinstance(process, Process):
        sparks = any(kind.__name__ == "StatefulProcessor" for kind in type(process).__mro__)
        hint = "; a StatefulProcessor is tested with TwsTester of pyspark" if sparks else ""
        raise SpecRefused(f"{process!r} is not a process; give an instance of a subclass of ferry.Process{hint}")
    process.open(key, inputs)
    where = type(process).__name__
    for name, table in process.tables.items():
        _check_table(f"process {where}: table {name!r}", name, table)
    output = getattr(process, "output", None)
    if not isinstance(output, pa.Schema) or not output.names:
        raise SpecRefused(f"process {where}: `output` is {output!r}; it has to be a schema of at least one column")
    _check_columns(f"process {where}: output", output, emitted=True)
    return process


def _check_table(subject: str, name: str, table: StateTable) -> None:
    if not NAME.fullmatch(name):
        raise SpecRefused(f"{subject}: use lower-case letters, digits and _ in its name, starting with a letter")
    if not isinstance(table, StateTable):
        raise SpecRefused(f"{subject} is {table!r}; it has to be a ferry.StateTable")
    if not isinstance(table.values, pa.Schema):
        raise SpecRefused(f"{subject}: its values are {table.values!r}; they have to be a pyarrow.Schema")
    if table.entry is not None and table.entry not in ENTRY_TYPES:
        raise SpecRefused(f"{subject}: entries cannot be {table.entry}; use int64, string or binary")
    if not table.values.names:
        raise SpecRefused(f"{subject} has no value columns; have at least one")
    _check_columns(subject, table.values)


def _check_columns(subject: str, schema: pa.Schema, emitted: bool = False) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SpecRefused(f"{subject}: columns {twice} appear twice")
    for field in schema:
        if not (_keepable(field.type) or (emitted and value_type(field.type) is not None)):
            raise SpecRefused(
                f"{subject}: column {field.name!r} cannot be {field.type}; integers, floats, decimals, booleans, dates, "
                "timestamps, strings and bytes can be kept"
            )


def _keepable(kind: pa.DataType) -> bool:
    t = pa.types
    numbers = t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_boolean(kind)
    texts = t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind)
    return bool(numbers or texts or t.is_fixed_size_binary(kind) or t.is_date(kind) or t.is_timestamp(kind))
