"""Shapes of stateful operators: what the task, the instance and the driver must agree on about one operator's state.

A shape is derived from the pipeline in the driver and travels as plain maps; it is also the operator's fingerprint.
Windows are kept as panes of gcd(size, slide) milliseconds; a pane is named by its start, the `slice`.

Arrow schemas that follow from a shape (column order is part of the contract):

* *partials* of an aggregate, one row per (slice, key):
  ``slice:int64, hash:uint64, key:int64|binary, n:int64, s0, s1, ...`` (int64 or float64 by ``state_types``);
  ``n`` is the number of records; it is part of the state too (as its first column). The last column may be flags
  (``Shape.flagged``): bit c says that column c has seen a value that is not null, bit 31 + c that its sum went beyond
  64 bits on the way. A column that has seen none holds what changes no other value.
* *rows* of a join, one row per record:
  ``slice:int64, hash:uint64, key:int64|binary, side:int8, l_<column>..., r_<column>...``; the other side's columns are null.

A single int64 key is stored as itself; every other key as the bytes of `ferry.kernels.hashing`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

STATE_COLUMNS_MAX = 31
"""Columns that one word of flags has two bits for."""

KeyType = Literal["int", "string"]
Function = Literal["count", "sum", "min", "max", "mean", "arg_max"]
Number = Literal["int", "float"]


@dataclass(frozen=True, slots=True)
class Window:
    """Event-time window, [start, start + size), starts are multiples of slide counted from epoch 0. Milliseconds."""

    size_ms: int
    slide_ms: int

    @property
    def pane_ms(self) -> int:
        """Length of a slice: windows are unions of panes."""
        return math.gcd(self.size_ms, self.slide_ms)

    def last_end(self, slice_start: int) -> int:
        """End of the last window that contains the pane: final, and late, when the watermark has reached it."""
        return slice_start // self.slide_ms * self.slide_ms + self.size_ms


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column of an aggregation.

    ``arg_max``: `column` is the value that is returned, `by` is what is maximised; ties go to the greater value.
    ``mean`` keeps (sum, count of values) and divides in double when it is read. Nulls of its columns are left out, as in
    SQL; ``count`` without a column counts records.
    """

    name: str
    function: Function
    column: str | None = None
    by: str | None = None
    number: Number = "int"
    """type of `column` (of the result too, except count: int, and mean: float)"""
    by_number: Number = "int"

    @property
    def state_types(self) -> tuple[Number, ...]:
        """Types of the state columns this aggregate needs, in order. `count` of records needs none: `n` is always kept."""
        match self.function:
            case "count":
                return () if self.column is None else ("int",)
            case "mean":
                return (self.number, "int")
            case "arg_max":
                return (self.by_number, self.number)
            case _:
                return (self.number,)


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join: output name -> (source column, arrow type name such as 'int64', 'string', 'double')."""

    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One stateful operator: name, key, window, and what it keeps."""

    name: str
    index: int
    kind: Literal["aggregate", "join"]
    key: tuple[tuple[str, KeyType], ...]
    """(output name, type) of the key's elements, in order"""
    window: Window
    aggregates: tuple[Aggregate, ...] = ()
    left: Side | None = None
    right: Side | None = None

    @property
    def flagged(self) -> bool:
        """True when the last state column says of the others whether they hold a value, and whether it is true."""
        return any(a.function != "count" for a in self.aggregates)

    @property
    def state_types(self) -> tuple[Number, ...]:
        """Types of the state columns s0, s1, ... of an aggregate."""
        values: tuple[Number, ...] = tuple(t for a in self.aggregates for t in a.state_types)
        return (*values, "int") if self.flagged else values

    @property
    def int_key(self) -> bool:
        """True when the key is one 64-bit integer, stored as itself."""
        return len(self.key) == 1 and self.key[0][1] == "int"

    def to_wire(self) -> dict[str, Any]:
        """Plain maps and lists."""
        return asdict(self)

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Shape:
        """Inverse of to_wire; tuples may have become lists on the way."""

        def side(d: dict[str, Any] | None) -> Side | None:
            return None if d is None else Side(tuple((a, b, c) for a, b, c in d["columns"]))

        return Shape(
            name=doc["name"],
            index=doc["index"],
            kind=doc["kind"],
            key=tuple((n, t) for n, t in doc["key"]),
            window=Window(**doc["window"]),
            aggregates=tuple(Aggregate(**a) for a in doc["aggregates"]),
            left=side(doc["left"]),
            right=side(doc["right"]),
        )
