"""Where fired rows go. An epoch's output appears in one atomic step, or not at all.

`open(committed)` is called once by every driver before its first epoch; `write` once for every epoch that fired rows,
and again with the same rows when an epoch is run again. Must never delete what an epoch published.
"""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.contract.errors import Fault, SpecRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sink(ABC):
    """One end of a pipeline."""

    def open(self, base: str | None, committed: int) -> None:  # noqa: B027  most sinks have nothing to open
        """`base` replaces the directory of file sinks; `committed` is the last committed epoch, -1 for a new job."""

    @abstractmethod
    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish the rows of an epoch. Must be idempotent."""


class Parquet(Sink):
    """`DIRECTORY/epoch=E/part-*.parquet`; a folder that exists is complete, for it is renamed into place."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def open(self, base: str | None, committed: int) -> None:
        """Refuse the output of another job; forget unfinished folders."""
        if base is not None:
            self.directory = Path(base) / self.directory.name
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(".epoch=*"):
            shutil.rmtree(left)
        newer = sorted(int(p.name[6:]) for p in self.directory.glob("epoch=*") if int(p.name[6:]) > committed)
        if newer:
            raise SpecRefused(
                f"sink: {self.directory} holds epoch {newer[0]} of another run (this one has committed up to {committed}); "
                "choose another --output, or delete that directory"
            )

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Write to a hidden folder, then rename. An epoch that is there already has the same rows."""
        final = self.directory / f"epoch={epoch}"
        if final.exists():
            return
        hidden = self.directory / f".epoch={epoch}.{generation}.{uuid.uuid4().hex[:8]}"
        hidden.mkdir(parents=True)
        if isinstance(rows, pa.Table):
            pq.write_table(rows, hidden / "part-0.parquet", compression="zstd")
        else:
            written = {part for (part,) in rows.mapInArrow(_write_part(str(hidden)), "part string").collect()}
            unseen = written - {part.name for part in hidden.iterdir()}
            if unseen:
                raise Fault(f"{self.directory}: what tasks wrote is not seen here; use a directory that all share")
            # A task that failed half way, or whose answer was lost, has left a part that another attempt wrote again.
            for part in hidden.iterdir():
                if part.name not in written:
                    part.unlink()
        hidden.rename(final)


def _write_part(folder: str) -> Callable[[Any], Any]:
    """A task that writes its rows to one part and returns its name; none for no rows."""

    def task(batches: Any) -> Any:
        name = f"part-{uuid.uuid4().hex}.parquet"
        writer = None
        for batch in batches:
            if batch.num_rows:
                writer = writer or pq.ParquetWriter(f"{folder}/{name}", batch.schema, compression="zstd")
                writer.write_batch(batch)
        if writer is not None:
            writer.close()
            yield pa.RecordBatch.from_pydict({"part": [name]})

    return task


class Console(Sink):
    """Prints rows, at most `limit` of an epoch."""

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Print."""
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        print(f"-- epoch {epoch}: {table.num_rows} rows")
        for row in table.slice(0, self.limit).to_pylist():
            print("  ", ", ".join(f"{k}={v}" for k, v in row.items()))


class ForeachEpoch(Sink):
    """Calls the user's function with (epoch, generation, DataFrame); it must be idempotent by epoch."""

    needs_frame = True

    def __init__(self, function: Callable[[int, int, Any], None]) -> None:
        self.function = function

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Call it."""
        self.function(epoch, generation, rows)


def parquet(directory: str) -> Parquet:
    """One folder an epoch below `directory`; `ferry run --output DIR` puts it below DIR instead."""
    return Parquet(directory)


def console(limit: int = 20) -> Console:
    """Print the rows of each epoch."""
    return Console(limit)


def foreach_epoch(function: Callable[[int, int, Any], None]) -> ForeachEpoch:
    """Call `function(epoch, generation, DataFrame)` once for every epoch that fired rows, at least once on failures."""
    return ForeachEpoch(function)
