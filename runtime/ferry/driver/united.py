"""Rows of one epoch for sinks of several operators: after a deploy, a retired operator and an operator in its place.

A sink is called once an epoch, because another call with the same epoch replaces the rows of the first call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.api.pipeline import Output
from ferry.connectors.sink import Sink

Rows: TypeAlias = pa.Table | DataFrame


class United:
    """Keeps the rows of such sinks until all operators of the epoch have added theirs."""

    def __init__(self, outputs: Iterable[Output]) -> None:
        counts = Counter(id(output.sink) for output in outputs)
        self._shared = {sink for sink, count in counts.items() if count > 1}
        self.begin()

    def begin(self) -> None:
        """Forget the rows of the epoch before, or of a try that failed."""
        self._rows: dict[int, tuple[Sink, dict[int, Rows]]] = {}

    def __contains__(self, output: Output) -> bool:
        return id(output.sink) in self._shared

    def add(self, output: Output, rows: Rows) -> None:
        """Keep the rows of an output, in place of rows of an earlier try."""
        self._rows.setdefault(id(output.sink), (output.sink, {}))[1][id(output)] = rows

    def __iter__(self) -> Iterator[tuple[Sink, list[Rows]]]:
        """The sinks with rows."""
        return iter([(sink, list(rows.values())) for sink, rows in self._rows.values()])
