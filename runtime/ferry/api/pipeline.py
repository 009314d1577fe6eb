"""What a pipeline is made of: inputs with their steps, operators, and what goes to sinks. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ferry.contract.descriptors import KeyType, OperatorDescriptor, Window
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
    """Columns of the function's result when the pipeline was built."""


@dataclass(frozen=True, slots=True)
class MapBatches:
    """A step inside the ingest task: record batch in, record batch (or table) out."""

    function: Batches


@dataclass(slots=True)
class Build:
    """Operators of one pipeline in the order in which they were declared, and how to find out schemas of transforms."""

    schema_after: Callable[[Frames, pa.Schema, str], pa.Schema]
    operators: list[Operator] = field(default_factory=list)
    late: list[LateOutput] = field(default_factory=list)
    created: dict[str, str] = field(default_factory=dict)
    """By source: the column that says when a record was created."""


@dataclass(frozen=True, slots=True)
class Input:
    """How one input of an operator (or a sink) comes about: records of `origin`, then `steps`."""

    origin: str | int
    """Name of a source, or index of the operator whose fired rows these are."""
    steps: tuple[Transform | MapBatches, ...]
    schema: pa.Schema
    time: str | None
    delay_ms: int
    key: tuple[str, ...] = ()
    ahead_ms: int | None = None
    """How far ahead of the clock an event time may be; None: as far as it likes."""
    idle_ms: int | None = None
    """How long a flow may be silent before the watermark goes on without it; None: as long as it likes."""
    flow: str | None = None
    """Column that says of which flow a record is; None: the source says it, or it is one flow."""
    side: int = 0
    """Of the operator that reads it: 1 for the right one of a join."""
    initial: bool = False
    """It is what the operator's state begins from: it is read before all else, and has no event times."""

    @property
    def timed(self) -> bool:
        """Whether its records have event times: said, or the end of the window that they were fired for."""
        ends = [field.type for field in self.schema if field.name == "window_end"]
        known = len(ends) == 1 and (pa.types.is_int64(ends[0]) or pa.types.is_timestamp(ends[0]))
        return self.time is not None or (isinstance(self.origin, int) and known)


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator with its inputs: of each side one, or several that were united."""

    descriptor: OperatorDescriptor
    inputs: tuple[Input, ...]
    gives: pa.Schema | None = None
    """Its rows as all that read them see them; None: as they are fired."""


@dataclass(frozen=True, slots=True)
class Output:
    """Rows that go to a sink."""

    input: Input
    sink: Sink
    where: str = ""
    """The user's statement that makes it."""


@dataclass(frozen=True, slots=True)
class LateOutput:
    """Records that an operator leaves out because they came too late: they go to a sink as they came."""

    operator: int
    inputs: tuple[Input, ...]
    """Of one side of the operator: one, or several that were united."""
    window: Window
    """A record is late when the last window with its time had ended at the operator's watermark before the epoch."""
    sink: Sink


def key_type(column: pa.Field, what: str) -> KeyType:
    """Type of a key element."""
    kind = key_kind_of(column.type)
    if kind is None:
        raise SpecRefused(
            f"{what}: key column {column.name!r} is {column.type}; integers, strings, booleans, dates, timestamps, bytes, "
            "decimals of up to 38 digits and floats can be keys: make it one of these, or several columns, before key_by"
        )
    return kind


def refuse_same(schema: pa.Schema, what: str) -> None:
    """Refuse several columns of the very same name: nothing could tell which one is meant."""
    if same := [name for i, name in enumerate(schema.names) if name in schema.names[:i]]:
        raise SpecRefused(f"{what} several columns named {same[0]!r}; give each a name of its own")


def refuse_twice(names: Sequence[str], what: str, keys: Sequence[str] = ()) -> None:
    """Refuse columns of one name, also where capitals alone tell them apart, which Spark and most SQL do not look at."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    for some in (some for some in alike.values() if len(some) > 1):
        key = next((name for name in some if name in keys), None)
        if key is None:
            raise SpecRefused(
                f"{what}: output columns {some} would have one name (capitals do not tell); rename one of them"
            )
        raise SpecRefused(
            f"{what}: its key column {key!r} would be an output column beside another {some[-1]!r}; rename it before "
            f"key_by, in .map_batches(ferry.select(..., other=pc.field({key!r})))"
        )
