"""Operators as a pipeline declares them: the base class of streams, and the functions that add an operator to the pipeline.

    Stream > KeyedStream > WindowedStream ...    each class knows the classes on its right

Must never know a kind of stream: functions here take a stream of any kind and return a stream of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from typing_extensions import TypeVar

from ferry.api.pipeline import Build, Input, LateOutput, Operator, key_type, refuse_twice
from ferry.api.processes import ProcessInput, process_descriptor
from ferry.connectors.sink import Sink, expecting
from ferry.contract.descriptors import KeyType, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.frame_types import require_types
from ferry.kernels.schemas import fired_schema
from ferry.process.api import Process


@dataclass(frozen=True, slots=True, repr=False)
class BaseStream:
    """Records of a source, or fired rows of an operator, and their pipeline."""

    build: Build
    input: Input
    more: tuple[Input, ...] = ()
    """The inputs united with the first. All inputs have the same columns."""


StreamT = TypeVar("StreamT", bound=BaseStream, default=Any)


@dataclass(frozen=True, slots=True)
class Keyed(Generic[StreamT]):
    """A stream with a key."""

    stream: StreamT


def inputs_of(stream: BaseStream) -> tuple[Input, ...]:
    """All inputs of a stream."""
    return (stream.input, *stream.more)


def changed(stream: StreamT, change: Callable[[Input], Input]) -> StreamT:
    """The stream with each of its inputs changed. Raises SpecRefused behind `expect`."""
    refuse_expected(stream)
    return replace(stream, input=change(stream.input), more=tuple(map(change, stream.more)))


def refuse_expected(stream: BaseStream) -> None:
    """Refuse a step behind an expectation, which checks the rows of a sink."""
    if expected := [expectation for source in inputs_of(stream) for expectation in source.expectations]:
        raise SpecRefused(
            f"expect({expected[-1].name!r}) on {origin_of(stream)} ({expected[-1].where}): only .sink(...) or another "
            ".expect(...) may follow it; call it last"
        )


def origin_of(stream: BaseStream, origin: str | int | None = None) -> str:
    """The origin of a stream for a message: "source 'bids'". `origin`: the origin of another input of the pipeline."""
    origin = stream.input.origin if origin is None else origin
    if isinstance(origin, str):
        return f"source {origin!r}"
    return f"operator {stream.build.operators[origin].descriptor.name!r}"


def require_column(stream: BaseStream, column: str, step: str) -> None:
    """Refuse a column that the stream lacks. Raises SpecRefused."""
    if column not in stream.input.schema.names:
        raise SpecRefused(
            f"{step} on {origin_of(stream)}: no column {column!r}; there are {', '.join(stream.input.schema.names)}"
        )


def keyed_by(stream: StreamT, columns: tuple[str, ...]) -> StreamT:
    """The stream with these columns as its key. Raises SpecRefused."""
    place = f"key_by on {origin_of(stream)}"
    if not columns:
        raise SpecRefused(f"{place}: name at least one column")
    if wrong := [column for column in columns if not isinstance(column, str)]:
        raise SpecRefused(f'{place}: {type(wrong[0]).__name__} is not a column name; write key_by("a", "b")')
    if twice := [column for i, column in enumerate(columns) if column in columns[:i]]:
        raise SpecRefused(f"{place}: column {twice[0]!r} is named twice; once is enough")
    for column in columns:
        require_column(stream, column, "key_by")
        key_type(stream.input.schema.field(column), "key_by")
    return changed(stream, lambda source: replace(source, key=columns))


def require_time(stream: BaseStream, step: str) -> None:
    """Refuse a stream without event times, or without a watermark. Raises SpecRefused."""
    for source in (source for source in inputs_of(stream) if not source.initial):
        if not source.timed:
            raise SpecRefused(
                f"{step} on {origin_of(stream, source.origin)}: no event time; call .event_time(column, delay=...) before "
                "key_by"
            )
        _require_watermark(stream, source, step)


def _require_watermark(stream: BaseStream, source: Input, step: str) -> None:
    """Refuse rows of operators without a watermark. Raises SpecRefused."""
    if isinstance(source.origin, str):
        return
    operator = stream.build.operators[source.origin]
    for before in (before for before in operator.inputs if not before.initial):
        if not before.timed:
            raise SpecRefused(
                f"{step} on {origin_of(stream)}: operator {operator.descriptor.name!r} reads records without an event time: "
                "there is no watermark behind it; call .event_time(column, ...) on its inputs"
            )
        _require_watermark(stream, before, step)


def other_of(step: str, other: Keyed[StreamT]) -> Keyed[StreamT]:
    """The second stream of an operator. Raises SpecRefused if it is not a keyed stream."""
    if not isinstance(other, Keyed):
        raise SpecRefused(f"{step}: the other stream needs .key_by(...) and nothing after it")
    return other


def key_of(keyed: Keyed[StreamT], name: str) -> tuple[tuple[str, KeyType], ...]:
    """Names and types of the key's columns, for operator `name`."""
    schema = keyed.stream.input.schema
    return tuple((column, key_type(schema.field(column), f"operator {name!r}")) for column in keyed.stream.input.key)


def declare(keyed: Keyed[StreamT], descriptor: OperatorDescriptor, *others: Keyed[StreamT]) -> StreamT:
    """Add an operator to the pipeline. Returns the stream of its fired rows. Raises SpecRefused."""
    name, operators = descriptor.name, keyed.stream.build.operators
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
        raise SpecRefused(f"operator name {name!r}: use lower-case letters, digits and _, starting with a letter")
    if any(operator.descriptor.name == name for operator in operators):
        raise SpecRefused(f"two operators are named {name!r}; names identify state and must differ")
    fired = fired_schema(descriptor)
    refuse_twice(fired.names, f"operator {name!r}", [key for key, _ in descriptor.key])
    sides = enumerate((keyed, *others))
    inputs = tuple(replace(source, side=side) for side, of_side in sides for source in inputs_of(of_side.stream))
    for source in inputs:
        if source.flow is not None and source.flow not in source.schema.names:
            raise SpecRefused(
                f"operator {name!r}: column {source.flow!r}, which names the flow, is gone; there are "
                f"{', '.join(source.schema.names)}: keep it until here"
            )
    operators.append(Operator(descriptor, inputs))
    return replace(keyed.stream, input=Input(descriptor.index, (), fired, None, 0), more=())


def declare_process(
    keyed: Keyed[StreamT],
    name: str,
    process: Process,
    *others: Keyed[StreamT],
    order: str | None = None,
    columns: Sequence[Sequence[str] | None] = (None,),
    needs_time: bool = True,
) -> StreamT:
    """Add a process to the pipeline. Returns the stream of its rows. Raises SpecRefused.

    Parameters:
        columns: for each input, the columns that the process sees. None: all.
        needs_time: whether the records must have event times.
    """
    sides = (keyed, *others)
    timed = needs_time or any(source.timed for side in sides for source in inputs_of(side.stream))
    for side in sides if timed else ():
        require_time(side.stream, f"operator {name!r}")
    read = [ProcessInput(side.stream.input.schema, key_of(side, name), side.stream.input.initial) for side in sides]
    descriptor = process_descriptor(name, len(keyed.stream.build.operators), process, read, order, columns, timed)
    return declare(keyed, descriptor, *others)


def with_late(fired: StreamT, window: Window, late: Sequence[Sink | None] | None) -> StreamT:
    """The stream, with a sink for the late records of each side of its operator. Raises SpecRefused."""
    operator = fired.build.operators[-1]
    descriptor, sides = operator.descriptor, operator.descriptor.inputs
    sinks = late if isinstance(late, tuple | list) else () if late is None else (late,)
    if wrong := [sink for sink in sinks if not isinstance(sink, Sink | None)]:
        raise SpecRefused(
            f"operator {descriptor.name!r}: late={wrong[0]!r} is not a sink; late= is where late records go, such as "
            "ferry.parquet(...): an output column needs another name, or a dict: "
            'aggregator={"late": ferry.max("column")}'
        )
    if sinks and len(sinks) != sides:
        raise SpecRefused(f"operator {descriptor.name!r}: late= of a join is a pair of sinks, (left, right)")
    for side, sink in enumerate(sinks):
        if sink is not None:
            inputs = tuple(source for source in operator.inputs if source.side == side)
            for source in inputs:
                require_types(source.schema, f"operator {descriptor.name!r}: late=")
                expecting(sink, source.schema, f"operator {descriptor.name!r}: late=")
            fired.build.late.append(LateOutput(descriptor.index, inputs, window, sink))
    return fired
