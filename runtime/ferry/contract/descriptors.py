"""Descriptors of stateful operators: what the task, the instance and the driver must agree on about one operator's state.

A descriptor is derived from the pipeline in the driver and travels as plain maps; it is also the operator's fingerprint.
Windows are kept as panes of gcd(size, slide) milliseconds; a pane is named by its start, the `slice`.

Arrow schemas that follow from a descriptor (column order is part of the contract):

* *partials* of an aggregate, one row per (slice, key):
  ``slice:int64, hash:uint64, key:int64|binary, n:int64, s0, s1, ...`` (int64 or float64: ``ferry.kernels.aggregates``);
  ``n`` is the number of records; it is part of the state too (as its first column). The last column may be flags: bit c
  says that column c has seen a value that is not null, bit 31 + c that its sum went beyond 64 bits on the way. A column
  that has seen none holds what changes no other value.
* *rows* of a join, one row per record:
  ``slice:int64, hash:uint64, key:int64|binary, side:int8, l_<column>..., r_<column>...``; the other side's columns are null.

A single int64 key is stored as itself; every other key as the bytes of `ferry.kernels.hashing`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

KeyType = Literal["int", "string"]
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
    """One output column of an aggregation; what its function keeps and yields says `ferry.kernels.aggregates`."""

    name: str
    function: str
    column: str | None = None
    by: str | None = None
    """of `arg_max`: what is maximised, while `column` is what is returned"""
    number: Number = "int"
    """type of `column`; int where its values are not looked at"""
    by_number: Number = "int"


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join: output name -> (source column, arrow type name such as 'int64', 'string', 'double')."""

    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class OperatorDescriptor:
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
    def int_key(self) -> bool:
        """True when the key is one 64-bit integer, stored as itself."""
        return len(self.key) == 1 and self.key[0][1] == "int"

    def to_wire(self) -> dict[str, Any]:
        """Plain maps and lists."""
        return asdict(self)

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> OperatorDescriptor:
        """Inverse of to_wire; tuples may have become lists on the way."""

        def side(d: dict[str, Any] | None) -> Side | None:
            return None if d is None else Side(tuple((a, b, c) for a, b, c in d["columns"]))

        return OperatorDescriptor(
            name=doc["name"],
            index=doc["index"],
            kind=doc["kind"],
            key=tuple((n, t) for n, t in doc["key"]),
            window=Window(**doc["window"]),
            aggregates=tuple(Aggregate(**a) for a in doc["aggregates"]),
            left=side(doc["left"]),
            right=side(doc["right"]),
        )
