"""The parts of a pipeline: inputs with their steps, operators, and outputs to sinks. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ferry.contract.descriptors import KeyType, OperatorDescriptor, Span, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.kinds import key_kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ferry.connectors.sink import Sink

Batches = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]
Frames = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Transform:
    """A step in Spark: DataFrame in, DataFrame out."""

    function: Frames
    where: str
    """The step's place in the pipeline, such as "transform on source 'orders'"."""
    schema: pa.Schema
    """Columns of the function's result for an empty DataFrame at declaration."""


@dataclass(frozen=True, slots=True)
class MapBatches:
    """A step inside the ingest task: record batch in, record batch (or table) out."""

    function: Batches


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """A condition that each row before a sink must meet."""

    name: str
    where: str
    """File and line of the declaration."""
    condition: Callable[[pa.RecordBatch], Any]
    """Gives a boolean for each row."""


@dataclass(slots=True)
class Build:
    """The operators of one pipeline in the order of their declaration, and the pipeline's other parts."""

    schema_after: Callable[[Frames, pa.Schema, str], pa.Schema]
    """(function of a transform, its input schema, its place) -> its output schema."""
    operators: list[Operator] = field(default_factory=list)
    late: list[LateOutput] = field(default_factory=list)
    created: dict[str, str] = field(default_factory=dict)
    """By source: the column of the records' creation time."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of an operator or a sink: the records of `origin` after `steps`."""

    origin: str | int
    """Name of a source, or index of the operator whose fired rows these are."""
    steps: tuple[Transform | MapBatches, ...]
    schema: pa.Schema
    time: str | None
    delay_ms: int
    key: tuple[str, ...] = ()
    ahead_ms: int | None = None
    """Milliseconds by which an event time may be ahead of the clock. None: no bound."""
    idle_ms: int | None = None
    """Milliseconds without a record after which a flow is idle and no longer holds the watermark back. None: never."""
    flow: str | None = None
    """Column with the name of each record's flow. None: the source names its flows, or is a single flow."""
    side: int = 0
    """The side of the operator that reads this input: 1 for the right side of a join."""
    span: Span | None = None
    """Event times of the records that reach the operator; NEVER: the operator is being retired. None: all times."""
    initial: bool = False
    """Whether the operator's state begins from this input. It is read before all other inputs and has no event times."""
    expectations: tuple[Expectation, ...] = ()
    """Of the rows that a sink gets."""

    @property
    def timed(self) -> bool:
        """Whether the records have event times: declared ones, or the end of the window of a fired row."""
        ends = [field.type for field in self.schema if field.name == "window_end"]
        known = len(ends) == 1 and (pa.types.is_int64(ends[0]) or pa.types.is_timestamp(ends[0]))
        return self.time is not None or (isinstance(self.origin, int) and known)


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator with its inputs: one for each side, or several united ones."""

    descriptor: OperatorDescriptor
    inputs: tuple[Input, ...]
    gives: pa.Schema | None = None
    """Schema of its rows behind the step that converts window bounds. None: the schema of the fired rows."""


@dataclass(frozen=True, slots=True)
class Output:
    """Rows that go to a sink."""

    input: Input
    sink: Sink
    where: str = ""
    """File and line of the user's statement that declares the output."""


@dataclass(frozen=True, slots=True)
class LateOutput:
    """Late records of an operator, which go to a sink unchanged."""

    operator: int
    inputs: tuple[Input, ...]
    """The inputs of one side of the operator: one, or several united ones."""
    window: Window
    """A record is late if its last window ended at or before the operator's watermark at the beginning of the epoch."""
    sink: Sink


def key_type(column: pa.Field, place: str) -> KeyType:
    """The type of a key column. Raises SpecRefused for a type that cannot be a key."""
    kind = key_kind_of(column.type)
    if kind is None:
        raise SpecRefused(
            f"{place}: key column {column.name!r} is {column.type}; integers, strings, booleans, dates, timestamps, bytes, "
            "decimals of up to 38 digits and floats can be keys: make it one of these, or several columns, before key_by"
        )
    return kind


def refuse_same(schema: pa.Schema, subject: str) -> None:
    """Refuse several columns of the same name, which would be ambiguous. `subject`: subject and verb of the message."""
    if same := [name for i, name in enumerate(schema.names) if name in schema.names[:i]]:
        raise SpecRefused(f"{subject} several columns named {same[0]!r}; give each a name of its own")


def refuse_twice(names: Sequence[str], place: str, keys: Sequence[str] = ()) -> None:
    """Refuse columns whose names are equal without regard to case, because Spark and most SQL ignore case."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    for same in (same for same in alike.values() if len(same) > 1):
        key = next((name for name in same if name in keys), None)
        if key is None:
            raise SpecRefused(
                f"{place}: output columns {same} would have the same name (case does not count); rename one of them"
            )
        raise SpecRefused(
            f"{place}: the key column {key!r} and another output column would both be named {same[-1]!r}; rename it before "
            f"key_by, in .map_batches(ferry.select(..., other=pc.field({key!r})))"
        )
