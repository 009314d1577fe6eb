"""The rows of a program beside the rows of the program that is in force: which ones differ, as multisets.

Each sink of the program in force has a `Compared` beside it, and so has the other program's sink of the same values. Rows
that only one of them has are kept by their digest until the other one has them, too: two programs with other delays fire
a window in different epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from ferry.connectors.sink import Sink
from ferry.contract.errors import FerryError, Refusal, UserCodeFailed
from ferry.contract.user_code import words_of as last_words
from ferry.driver.failures import is_passing, user_error
from ferry.kernels.row_texts import digests, texts

EXAMPLES_MAX = 10
"""Rows of each program that differ and are shown."""

DIFFER_MAX = 1_000_000
"""Different rows after which the programs are not compared any more."""

LEFT = pa.schema([("sink", pa.int64()), ("digest", pa.int64()), ("n", pa.int64())])
"""`n`: how many more rows of this digest the other program has; less than 0: the program in force has more."""


@dataclass(frozen=True, slots=True)
class Compared(Sink):
    """Takes the rows of one program for one sink; nothing is written."""

    comparison: Comparison
    number: int
    """Of the sink."""
    name: str
    """The sink, in words."""
    other: bool
    """Whether the rows are of the program that is not in force."""

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Keep the rows of an epoch until it ends; a repeated write replaces them."""
        self.comparison.add(self.number, self.name, self.other, rows)

    def truncate_after(self, epoch: int) -> None:
        """Nothing was written."""


class Comparison:
    """The differences between two programs, since this driver began to compare them."""

    def __init__(self, lasts: int, uncompared: tuple[str, ...] = ()) -> None:
        """`lasts`: epochs with rows; `uncompared`: sinks that only one of the programs has."""
        self.uncompared = uncompared
        self.failed = ""
        """Why the rows cannot be compared any more: code before a sink failed."""
        self._lasts = lasts
        self.epochs = 0
        self.rows = 0
        """Of the program in force."""
        self._names: dict[int, str] = {}
        self._epoch: dict[tuple[int, bool], tuple[np.ndarray[Any, Any], pa.Table | None]] = {}
        self._left = LEFT.empty_table()
        self._examples: dict[tuple[int, int], str] = {}

    def add(self, sink: int, name: str, other: bool, rows: pa.Table | DataFrame) -> None:
        """The rows of the present epoch for a sink."""
        self._names[sink] = name
        if isinstance(rows, pa.Table):
            self._epoch[sink, other] = digests(rows), rows
        else:  # Tasks read large results; only digests come here.
            frame = rows.mapInArrow(_digested, "digest long").toArrow()
            self._epoch[sink, other] = frame.column(0).to_numpy(), None

    def ended(self) -> None:
        """The present epoch is over."""
        if self.is_over:
            self._epoch = {}
            return
        epoch, self._epoch = self._epoch, {}
        if not any(len(rows) for rows, _ in epoch.values()):
            return  # It says nothing: windows of 10 s fire in few epochs.
        self.epochs += 1
        parts = [self._left]
        for (sink, other), (rows, _) in epoch.items():
            self.rows += 0 if other else len(rows)
            sign = np.full(len(rows), 1 if other else -1)
            parts.append(pa.table([np.full(len(rows), sink), rows, sign], schema=LEFT))
        left = pa.concat_tables(parts).group_by(["sink", "digest"]).aggregate([("n", "sum")]).rename_columns(LEFT.names)
        self._left = left.filter(pc.not_equal(left.column("n"), 0))
        self._keep_examples(epoch)

    def _keep_examples(self, epoch: dict[tuple[int, bool], tuple[Any, pa.Table | None]]) -> None:
        every = self._left.column("digest").to_numpy()
        self._examples = {key: text for key, text in self._examples.items() if np.isin(key[1], every)}
        for (sink, other), (marks, rows) in epoch.items():
            there = sum(text.startswith("+" if other else "-") for text in self._examples.values())
            if rows is None or not self._left.num_rows or there >= EXAMPLES_MAX:
                continue
            surplus = (pc.greater if other else pc.less)(self._left.column("n"), 0)
            mine = self._left.column("digest").filter(pc.and_(pc.equal(self._left.column("sink"), sink), surplus))
            at = np.flatnonzero(np.isin(marks, mine.to_numpy()))[: EXAMPLES_MAX - there]
            for digest, text in zip(marks[at].tolist(), texts(rows.take(at)).to_pylist(), strict=True):
                self._examples[sink, digest] = f"{'+' if other else '-'} {self._names[sink]}: {text}"

    @property
    def more(self) -> int:
        """Rows that only the other program has."""
        return self._sum(1)

    @property
    def missing(self) -> int:
        """Rows that only the program in force has."""
        return -self._sum(-1)

    def _sum(self, sign: int) -> int:
        counts = self._left.column("n").to_numpy()
        return int(counts[counts * sign > 0].sum())

    @property
    def is_over(self) -> bool:
        """After the last epoch, or once too many rows differ."""
        return self.epochs >= self._lasts or self._left.num_rows > DIFFER_MAX

    def listed(self) -> dict[str, Any]:
        """For the list of programs."""
        return {
            "epochs": self.epochs,
            "rows": self.rows,
            "missing": self.missing,
            "more": self.more,
            "examples": sorted(self._examples.values()),
            "uncompared": list(self.uncompared),
        }

    def progress(self) -> str:
        """How far it is, in words that change a few times only."""
        share = 10 * (10 * min(self.epochs, self._lasts) // self._lasts)
        return f"{share} % of its epochs are compared, and {'rows differ' if self._left.num_rows else 'no row differs'}"

    def words(self) -> str:
        """The result, in words."""
        return words_of(self.listed())


def has_failed(sink: Sink) -> bool:
    """Whether a sink only compared rows, and does not any more."""
    return isinstance(sink, Compared) and bool(sink.comparison.failed)


@contextmanager
def harmless(sink: Sink, by_tasks: bool) -> Iterator[None]:
    """Around a write: rows that only would be compared must not stop the job. `by_tasks`: their failures may pass."""
    try:
        yield
    except Exception as error:
        ends = isinstance(error, FerryError) and not isinstance(error, Refusal | UserCodeFailed)
        if not isinstance(sink, Compared) or ends or (by_tasks and is_passing(error)):
            raise
        users = user_error(error, sink.name)
        sink.comparison.failed = str(users) if users is not None else f"{sink.name}: {last_words(error)}"


def words_of(listed: dict[str, Any]) -> str:
    """A listed comparison in words."""
    counted = f"{listed['rows']:,} rows of {listed['epochs']:,} epochs"
    if not listed["missing"] and not listed["more"]:
        return f"0 of {counted} differ"
    return f"of {counted}, {listed['missing']:,} are missing, and {listed['more']:,} are more"


def _digested(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = digests(pa.Table.from_batches([batch]))
        yield pa.RecordBatch.from_arrays([pa.array(found)], ["digest"])
