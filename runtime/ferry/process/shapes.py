"""Converts a process to its descriptor and back: no code comes from the network, only the names of classes.

Users' classes are in the pipeline's module, which every instance has loaded; a file is loaded under a name that depends
on its content (`ferry.system.user_module`), so that a class from another content is not found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor, ProcessShape
from ferry.contract.errors import SpecRefused
from ferry.kernels.kinds import kind_of, type_of
from ferry.kernels.schemas import from_text, process_inputs, to_text
from ferry.process.api import Process
from ferry.process.classes import class_of, name_of
from ferry.process.condensing import parts_of
from ferry.process.declared import opened
from ferry.process.stateful_processor import HostedProcessor
from ferry.process.tables import ENTRY_TYPES, StateTable


def shape_of(
    name: str,
    process: Process,
    key: pa.Schema,
    inputs: Sequence[pa.Schema],
    order: str | None,
    without_order: Sequence[int] = (),
) -> ProcessShape:
    """The descriptor of a process that reads these columns. Raises SpecRefused when instances could not construct it.

    `without_order`: numbers of inputs whose rows have no order column.
    """
    with _named(name):
        process = opened(process, key, inputs)
    orders = [None if number in without_order else order for number in range(len(inputs))]
    columns = tuple(
        (*one.names, *([by] if by is not None and by not in one.names else []))
        for one, by in zip(inputs, orders, strict=True)
    )
    tables = tuple(_table(name, table, process.tables[table]) for table in sorted(process.tables))
    with _named(name):
        made_of, arguments = name_of(type(process)), _arguments(process)
    shape = ProcessShape(
        made_of=made_of,
        arguments=arguments,
        columns=columns,
        inputs=tuple(to_text(one) for one in inputs),
        output=to_text(process.output),
        tables=tables,
        order=order,
        parts=_parts(process),
        upgrades=_upgrades(process),
    )
    made_again = opened(_made(name, shape), key, inputs)
    if _shown(made_again) != _shown(process):
        raise SpecRefused(
            f"operator {name!r}: {type(process).__name__} constructed again from its fields has other tables or another "
            "output; they may depend on its fields and inputs only"
        )
    return shape


def process_of(descriptor: OperatorDescriptor) -> Process:
    """The process of an operator, constructed and opened. Raises SpecRefused when it differs from the pipeline's
    declaration."""
    shape = descriptor.shape
    key = pa.schema([(name, type_of(kind)) for name, kind in descriptor.key])
    process = opened(_made(descriptor.name, shape), key, process_inputs(descriptor))
    tables = tuple(_table(descriptor.name, table, process.tables[table]) for table in sorted(process.tables))
    if tables != shape.tables or _parts(process) != shape.parts or not process.output.equals(from_text(shape.output)):
        raise SpecRefused(
            f"operator {descriptor.name!r}: {shape.made_of} has other tables or another output here than where the pipeline "
            "was built; have the same program on every host"
        )
    return process


def _made(name: str, shape: ProcessShape) -> Process:
    with _named(name):
        made: Process = class_of(shape.made_of)(**_restored(shape.arguments))
    return made


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Adds the operator's name to refusals."""
    try:
        yield
    except SpecRefused as refused:
        raise SpecRefused(f"operator {name!r}: {refused}") from refused


def _parts(process: Process) -> str | None:
    parts = parts_of(process)
    return None if parts is None else to_text(parts)


def _upgrades(process: Process) -> bool:
    if isinstance(process, HostedProcessor):
        return hasattr(class_of(process.made_of), "upgrade")
    return type(process).upgrade is not Process.upgrade


def _shown(process: Process) -> Any:
    return dict(process.tables), process.output


def _table(name: str, table: str, declared: StateTable) -> tuple[str, str, str | None]:
    for field in declared.values:
        if kind_of(field.type) is None:
            raise SpecRefused(f"operator {name!r}: column {field.name!r} of table {table!r} cannot be {field.type}")
    assert declared.entry is None or declared.entry in ENTRY_TYPES
    return table, to_text(declared.values), None if declared.entry is None else str(declared.entry)


def _arguments(process: Process) -> str:
    if not is_dataclass(process):
        raise SpecRefused(f"{type(process).__name__} has to be a dataclass, so that instances can construct it")
    values = _fields(process)
    try:
        text = json.dumps(values, allow_nan=False, default=_part)
    except (TypeError, ValueError) as error:
        raise SpecRefused(f"its fields have to be values that JSON can hold: {error}") from error
    if _restored(text) != values:
        raise SpecRefused(
            f"its fields {values} would come back from JSON as {text}; use texts, numbers, truths, nulls, lists, "
            "and maps with texts as keys"
        )
    return text


_PART = {"made_of", "arguments"}
"""Keys of a field that is a dataclass itself, such as an aggregator."""


def _part(value: Any) -> dict[str, Any]:
    if isinstance(value, type) or not is_dataclass(value):
        raise TypeError(f"{value!r} is neither that nor a dataclass of it")
    return {"made_of": name_of(type(value)), "arguments": _fields(value)}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}


def _restored(text: str) -> Any:
    return json.loads(text, object_hook=_whole)


def _whole(document: dict[str, Any]) -> Any:
    if document.keys() != _PART:
        return document
    made_of = class_of(document["made_of"])
    if not (isinstance(made_of, type) and is_dataclass(made_of)):
        raise SpecRefused(f"{document['made_of']} is no dataclass")
    return made_of(**document["arguments"])
