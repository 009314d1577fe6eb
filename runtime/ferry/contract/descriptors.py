"""Descriptors of stateful operators: the task, the instance and the driver must agree on them.

The driver derives a descriptor from the pipeline and sends it as plain maps. Equal descriptors keep equal state.
Windows are kept as panes of gcd(size, slide) milliseconds; a pane is named by its start, the `slice`.

Arrow schemas that follow from a descriptor (column order is part of the contract):

* *partials* of an aggregate, one row per (slice, key):
  ``slice:int64, hash:uint64, key:int64|binary, n:int64, s0, s1, ...`` (int64, float64 or, of several words, binary of a
  fixed size: ``ferry.kernels.aggregates``);
  ``n`` is the number of records, and the first column of the state. The last column may be flags: bit c says that
  column c has seen a value that is not null, bit 31 + c that its sum overflowed on the way. A column without such a
  value holds the neutral value. If the operator emits changes, the column before the flags is the epoch in which the
  row last changed, 0 in partials; if it forgets keys, the column before that is the newest event time of the key.
* *rows* of a join, one row per record:
  ``slice:int64, hash:uint64, key:int64|binary, side:int8, l_<column>..., r_<column>...``; the other side's columns are null.
* *records* of a process, one row per record, or per part that a task has condensed several records to; they are
  fragments:
  ``hash:uint64, key:int64|binary, order:int64, time:int64, side:int8, 0_<column>..., 1_<column>...``; the deltas and
  snapshots of a process are changed entries of its tables: ``ferry.kernels.changes``.

A single integer key is stored as itself; every other key as the bytes of `ferry.kernels.row_codec` (`ferry.kernels.keys`).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, assert_never

from ferry.contract import limits
from ferry.contract.program_text import FERRYS

KeyType = str
"""Kind of a key's element; see `ferry.kernels.kinds`."""
Number = Literal["int", "float"]
ValueType = str
"""'int' for integers of every width, 'float' for floats, or another kind such as 'date' or 'decimal128(12, 2)'; see
`ferry.kernels.values`."""
Emit = Literal["final", "changes"]
"""Which rows an aggregate fires: rows of windows that have ended, or after each epoch the rows that changed in it."""


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
        """End of the last window that contains the pane: the pane is final once the watermark has reached it."""
        return slice_start // self.slide_ms * self.slide_ms + self.size_ms


@dataclass(frozen=True, slots=True)
class Span:
    """Event times [low, high) of the records that reach an operator. All other records only move its watermark."""

    low: int
    high: int
    until: int
    """No window begins at this time or later. Behind it, `high` still leaves the windows that began before complete."""


NEVER = Span(0, 0, 0)
"""No record reaches the operator."""

GLOBAL = Window(limits.WATERMARK_END, limits.WATERMARK_END)
"""All of time, for operators without a window: its one slice is 0, and it ends when a finite input does."""

NO_RECORDS = (("none", "int"),)
"""Key of the operator of a pipeline without operators: no record reaches it, so its windows never fire."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column of an aggregation; `ferry.kernels.aggregates` says what its function keeps and returns."""

    name: str
    function: str
    column: str | None = None
    by: str | None = None
    """of `arg_max`: the column that is maximised, while `column` is returned"""
    number: ValueType = "int"
    """type of `column`; int if the function does not look at its values"""
    by_number: ValueType = "int"


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join: output name -> (source column, arrow type name such as 'int64', 'string', 'double')."""

    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ProcessShape:
    """A process: its class, its input columns and its output. Schemas are Arrow messages in base64."""

    made_of: str
    """its class: module:qualified name"""
    arguments: str
    """arguments of the class, a JSON map"""
    columns: tuple[tuple[str, ...], ...]
    """columns that the process reads of each input"""
    inputs: tuple[str, ...]
    """schema of each input as the process sees it"""
    output: str
    tables: tuple[tuple[str, str, str | None], ...]
    """name, schema of the values, and type of the entries (None: at most one row a key)"""
    order: str | None = None
    """column by which records of a key are taken; None: event time"""
    parts: str | None = None
    """schema of the parts to which tasks condense the records of its one input; None: tasks send records"""
    upgrades: bool = False
    """Whether its class derives rows from rows of other tables."""

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes that it needs: its own class, and the classes that its arguments name."""
        return (self.made_of, *re.findall(r'"made_of": "([^"]+)"', self.arguments))


@dataclass(frozen=True, slots=True)
class OperatorDescriptor:
    """One stateful operator: name, key, window, and what it keeps."""

    name: str
    index: int
    kind: Literal["aggregate", "join", "process"]
    key: tuple[tuple[str, KeyType], ...]
    """(output name, type) of the key's elements, in order"""
    window: Window
    """of a process, which has no window: each millisecond, or GLOBAL when its records have no event times"""
    aggregates: tuple[Aggregate, ...] = ()
    left: Side | None = None
    right: Side | None = None
    emit: Emit = "final"
    process: ProcessShape | None = None
    ttl_ms: int | None = None
    """of an aggregate without a window: a key is forgotten when its newest event time is this far behind the
    watermark"""

    @property
    def windowed(self) -> bool:
        """False when all records of a key belong together, whatever their times."""
        return self.window != GLOBAL

    @property
    def firing_window(self) -> Window | None:
        """The windows that it fires at their ends; None: its rows do not belong to windows."""
        if self.process is None:
            return self.window if self.windowed and self.key != NO_RECORDS else None
        arguments = json.loads(self.process.arguments) if self.process.made_of.startswith(FERRYS) else {}
        return Window(arguments["size_ms"], arguments["slide_ms"]) if {"size_ms", "slide_ms"} <= {*arguments} else None

    @property
    def timed(self) -> bool:
        """Whether its records need an event time."""
        return self.windowed or self.ttl_ms is not None

    @property
    def int_key(self) -> bool:
        """True when the key is one 64-bit integer, stored as itself."""
        return len(self.key) == 1 and self.key[0][1] == "int"

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        match self.kind:
            case "aggregate":
                return 1
            case "join":
                return len(self.sides)
            case "process":
                return len(self.shape.inputs)
            case _:
                assert_never(self.kind)

    def columns(self, side: int) -> tuple[str, ...]:
        """The columns of an input, by its number, that it reads besides key and event time."""
        match self.kind:
            case "aggregate":
                return tuple(c for a in self.aggregates for c in (a.column, a.by) if c is not None)
            case "join":
                return tuple(source for _, source, _ in self.sides[side].columns)
            case "process":
                return self.shape.columns[side]
            case _:
                assert_never(self.kind)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both inputs of a join, the left one first."""
        assert self.left is not None and self.right is not None, self
        return self.left, self.right

    @property
    def shape(self) -> ProcessShape:
        """The shape of a process operator."""
        assert self.process is not None, self
        return self.process

    def to_wire(self) -> dict[str, Any]:
        """Plain maps and lists."""
        document = asdict(self)
        if self.process is not None and not self.process.upgrades:
            del document["process"]["upgrades"]  # Release 0.1.0 does not know it.
        return document

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> OperatorDescriptor:
        """Inverse of to_wire; accepts lists in place of tuples."""

        def side(d: dict[str, Any] | None) -> Side | None:
            return None if d is None else Side(tuple((a, b, c) for a, b, c in d["columns"]))

        def shape(d: dict[str, Any] | None) -> ProcessShape | None:
            if d is None:
                return None
            columns, tables = (tuple(tuple(one) for one in d[name]) for name in ("columns", "tables"))
            return ProcessShape(**{**d, "columns": columns, "tables": tables, "inputs": tuple(d["inputs"])})

        return OperatorDescriptor(
            name=doc["name"],
            index=doc["index"],
            kind=doc["kind"],
            key=tuple((n, t) for n, t in doc["key"]),
            window=Window(**doc["window"]),
            aggregates=tuple(Aggregate(**a) for a in doc["aggregates"]),
            left=side(doc["left"]),
            right=side(doc["right"]),
            emit=doc.get("emit", "final"),
            process=shape(doc.get("process")),
            ttl_ms=doc.get("ttl_ms"),
        )
