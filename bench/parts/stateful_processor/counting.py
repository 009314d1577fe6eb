"""The processor that both systems run: a running count in value state. It imports nothing of Ferry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

OUTPUT = "k LONG, n LONG"


class RunningCount(StatefulProcessor):  # type: ignore[misc]
    """Of each key that has rows, how many it has had."""

    def init(self, handle: Any) -> None:
        """One number is kept."""
        self.count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """One row out, however many come."""
        before = self.count.get()
        n = (0 if before is None else before[0]) + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(k=key[0], n=n)
