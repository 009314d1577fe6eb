"""Window bounds in the type of the event time.

The state of an operator holds milliseconds only, so a step behind the operator converts the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ferry.api.declare import BaseStream, StreamT, inputs_of
from ferry.api.pipeline import MapBatches
from ferry.contract.errors import DataRefused, SpecRefused

NAMES = ("window_start", "window_end")
MILLISECONDS = pa.int64()
_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """A step that converts window bounds from milliseconds to timestamps of type `kind`."""

    operator: str
    kind: pa.DataType

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with converted bounds. Raises DataRefused for a bound that the type cannot hold."""
        for name in NAMES:
            column = batch.column(name)
            try:
                bounds = pc.multiply_checked(column, _PER_MS[self.kind.unit]).view(self.kind)
            except pa.ArrowInvalid as beyond:
                at = max(column.to_pylist(), key=abs)
                raise DataRefused(
                    f"operator {self.operator!r}: {name} {at} (milliseconds since 1970) is beyond {self.kind}; write "
                    '.window(..., bounds=pyarrow.timestamp("ms"))'
                ) from beyond
            batch = batch.set_column(batch.schema.get_field_index(name), self._field(batch.schema.field(name)), bounds)
        return batch

    def schema(self, fired: pa.Schema) -> pa.Schema:
        """The columns behind the step."""
        return pa.schema([self._field(field) if field.name in NAMES else field for field in fired])

    def _field(self, field: pa.Field) -> pa.Field:
        return field.with_type(self.kind)


def bounds_type(stream: BaseStream, wanted: pa.DataType | None) -> pa.DataType:
    """The type of the bounds of this stream's windows. `wanted` None: the type of the event time. Raises SpecRefused."""
    if wanted is None:
        types = {_of_time(source.schema, source.time or NAMES[1]) for source in inputs_of(stream)}
        if len(types) > 1:
            listed = " and ".join(sorted(map(str, types)))
            raise SpecRefused(
                f"window: the united streams have event times of different types, {listed}; choose the type of "
                "window_start and window_end with bounds="
            )
        return types.pop()
    if wanted == MILLISECONDS or (isinstance(wanted, pa.TimestampType) and wanted.unit in _PER_MS):
        return wanted
    raise SpecRefused(
        f"window: bounds={wanted!r} cannot be the type of window_start and window_end; give pyarrow.int64(), for "
        'milliseconds since 1970, or a timestamp of "ms", "us" or "ns", such as pyarrow.timestamp("us", "UTC")'
    )


def _of_time(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of bounds for an event time column.

    Seconds become milliseconds, because windows may begin between two seconds. Nanoseconds become microseconds, because
    Spark does not read nanoseconds from Parquet.
    """
    kind = schema.field(column).type if column in schema.names else MILLISECONDS
    if not pa.types.is_timestamp(kind):
        return MILLISECONDS
    return pa.timestamp({"s": "ms", "ns": "us"}.get(kind.unit, kind.unit), kind.tz)


def with_bounds(fired: StreamT, kind: pa.DataType) -> StreamT:
    """The fired rows of the pipeline's last operator, with window bounds of this type."""
    if kind == MILLISECONDS:
        return fired
    operators = fired.build.operators
    step = WindowBounds(operators[-1].descriptor.name, kind)
    schema = step.schema(fired.input.schema)
    operators[-1] = replace(operators[-1], gives=schema)
    return replace(fired, input=replace(fired.input, steps=(*fired.input.steps, MapBatches(step)), schema=schema))
