"""Parquet files as a sink: one folder per epoch, complete when it appears (docs/design.md, section 8)."""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.connectors.files.ownership import Ownership, local
from ferry.connectors.formats.parquet_encodings import encodings, for_readers, write_parts
from ferry.connectors.sink import Part, RowParts, Sink
from ferry.contract.errors import Fault, SpecRefused
from ferry.system import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("ferry.driver")

MANIFEST = "_ferry.json"
"""File in every published folder: the owner, and rows and bytes of each part. Readers of Parquet skip such names."""


class Parquet(Sink):
    """Writes `DIRECTORY/epoch=E/part-*.parquet`. An existing folder is complete, because a rename publishes it."""

    takes_parts = True

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.declared = files.path_of(directory, "parquet: directory")
        self.directory = local(self.declared)
        self._owner = Ownership(self.declared)
        self.notice = ""

    def __repr__(self) -> str:
        return f"parquet({self.declared!r})"

    def place(self, base: str | None) -> Path:
        """The directory: `base`/NAME, where NAME is the last part of the declared directory."""
        named = self.directory if base is None else local(base) / local(self.declared).name
        self.directory = named.absolute()
        return self.directory

    def identify(self, job: str, run: str = "", before: str | None = None) -> None:
        """Set job and run for the claim of the directory."""
        self._owner.of(job, run, before)

    def open(self, committed: int) -> None:
        """Claim the directory and delete unfinished folders. Raises SpecRefused for the output of another job or run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        newer = self._after(committed)
        if newer:
            self._owner.refuse_another_run(self.directory)
            raise SpecRefused(
                f"sink: {self.directory} holds epoch {newer[-1]} of another run (this run has committed up to {committed}); "
                "choose another --output, or delete that directory"
            )
        self.notice = self._owner.missing(self.directory, committed, self._has_published)
        self._owner.claim(self.directory, self._has_published)
        for left in self.directory.glob(".epoch=*"):
            shutil.rmtree(left)

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame | RowParts) -> None:
        """Write to a hidden folder, then rename it. A complete folder of the epoch is kept: its rows are the same."""
        final = self.directory / f"epoch={epoch}"
        self._owner.require(self.directory, self._has_published)
        if final.exists():
            damage = self._damage(final, epoch)
            if damage is None:
                return
            aside = self.directory / f"_damaged-epoch={epoch}.{uuid.uuid4().hex[:8]}"
            final.rename(aside)
            log.warning("%s: %s; renamed to %s and written again", final, damage, aside.name)
        hidden = self.directory / f".epoch={epoch}.{generation}.{uuid.uuid4().hex[:8]}"
        hidden.mkdir(parents=True)
        if isinstance(rows, pa.Table):
            parts = write_parts(rows, hidden)
        else:
            parts = {part: [n, size] for part, n, size in _written(rows, str(hidden))}
            unseen = parts.keys() - {part.name for part in hidden.iterdir()}
            if unseen:
                raise Fault(f"{self.directory}: the driver does not see the tasks' files; use a shared directory")
            # A failed task, or a task whose answer was lost, has left a part that another attempt wrote again.
            for part in hidden.iterdir():
                if part.name not in parts:
                    part.unlink()
            if not parts:
                return hidden.rmdir()
        whose = {"sink": self.declared, "run": self._owner.run, "life": self._owner.life}
        (hidden / MANIFEST).write_text(json.dumps({**whose, "epoch": epoch, "parts": parts}))
        for path in (hidden / MANIFEST, hidden):
            files.sync(path)
        hidden.rename(final)
        files.sync(self.directory)

    def truncate_after(self, epoch: int) -> None:
        """Delete the folders of later epochs, each atomically, newest first. Raises SpecRefused for another sink's."""
        for hidden in self._moved(epoch, "."):
            shutil.rmtree(hidden)
        self._owner.begin_life(self.directory)

    def keep_after(self, epoch: int) -> None:
        """Rename the folders of later epochs to `_kept-epoch=E`, which readers of Parquet skip."""
        self._moved(epoch, "_kept-")
        self._owner.begin_life(self.directory)

    def _has_published(self) -> bool:
        return bool(self._after(-1))

    def _after(self, epoch: int) -> list[int]:
        """Published epochs later than this epoch, newest first."""
        epochs = (int(folder.name[6:]) for folder in self.directory.glob("epoch=*") if folder.name[6:].isdecimal())
        return sorted((number for number in epochs if number > epoch), reverse=True)

    def _moved(self, epoch: int, prefix: str) -> list[Path]:
        """Rename the folders of later epochs durably. Raises SpecRefused, before any rename, for another sink's folder."""
        self._owner.refuse_others(self.directory)
        later = [self.directory / f"epoch={number}" for number in self._after(epoch)]
        for folder in later:
            self._refuse_others(folder)
        moved = [folder.rename(folder.with_name(f"{prefix}{folder.name}.{uuid.uuid4().hex[:8]}")) for folder in later]
        if moved:
            files.sync(self.directory)
        return moved

    def _refuse_others(self, folder: Path) -> None:
        try:
            whose = json.loads((folder / MANIFEST).read_bytes())["sink"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # damaged
        if whose != self.declared:
            raise SpecRefused(f"{folder} was written by parquet({whose!r}); give {self!r} a directory of its own")

    def _damage(self, folder: Path, epoch: int) -> str | None:
        """The damage of a published folder, or None. After a power loss a folder may exist without its files' content."""
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            whose, run = (manifest["sink"], manifest["epoch"]), manifest.get("run", "")
            if manifest.get("life", "") != self._owner.life:
                return "it was written before the restore of the job, or by a driver that did not know of the restore"
            for name, (rows, size) in manifest["parts"].items():
                actual = pq.read_metadata(folder / name).num_rows, (folder / name).stat().st_size
                if actual != (rows, size):
                    return f"{name} has (rows, bytes) {actual}, {(rows, size)} were written"
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as wrong:
            return f"it cannot be read: {type(wrong).__name__}: {wrong}"
        if whose != (self.declared, epoch):
            raise SpecRefused(f"{folder} was written by parquet({whose[0]!r}); give {self!r} a directory of its own")
        if run and self._owner.run and run != self._owner.run:
            raise SpecRefused(f"sink: {folder} was written by run {run}; choose another --output")
        return None


PART = "part string, rows long, bytes long"
"""Spark's schema of a task's result."""


def _written(rows: DataFrame | RowParts, folder: str) -> list[Part]:
    """Write the rows by tasks. Returns the parts in the folder."""
    write = partial(_write_part, folder, not isinstance(rows, RowParts))
    if isinstance(rows, RowParts):
        return rows.each(write)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, n, size in write(batches):
            yield pa.RecordBatch.from_pydict({"part": [part], "rows": [n], "bytes": [size]})

    return [(part, n, size) for part, n, size in rows.mapInArrow(task, PART).collect()]


def _write_part(folder: str, of_spark: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    """Write the rows of a task to a part. Without rows no part is written."""
    name, rows = f"part-{uuid.uuid4().hex}.parquet", 0
    writer = None
    for batch in (for_readers(batch, of_spark) for batch in batches):
        if batch.num_rows:
            writer = writer or pq.ParquetWriter(f"{folder}/{name}", batch.schema, **encodings(batch.schema))
            writer.write_batch(batch)
            rows += batch.num_rows
    if writer is not None:
        writer.close()
        yield name, rows, files.sync(Path(folder, name))


def parquet(directory: str | PathLike[str]) -> Parquet:
    """Write Parquet files, exactly once: one folder per epoch, which appears atomically. One run writes to a directory.

    Parameters:
        directory: the parent of the folders `epoch=E`. `ferry run --output DIR` replaces the parent of this directory with
            DIR.
    Returns: a sink.
    Raises: SpecRefused, if the directory is a URL or not a path.
    Example:
        >>> output = counts.sink(ferry.parquet("/data/counts"))
    """
    return Parquet(directory)
