"""Where fired rows go (docs/design.md, section 8). An epoch's output appears in one atomic step, or not at all.

`place(base)` and `open(committed)` are called once by every driver before its first epoch; `write` once for every epoch that
fired rows, and again with the same rows when an epoch is run again. A job that is restored begins at an earlier epoch, and
numbers those behind it anew: before it opens its sinks it calls `truncate_after`, or `keep_after`, of each, again until
they have returned. Must never delete what an epoch published otherwise.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.contract.errors import Fault, SpecRefused
from ferry.contract.user_code import shown
from ferry.spark.encodings import encodings, for_readers, write_parts
from ferry.spark.json_text import shown as rows_shown
from ferry.spark.ownership import LIFE as LIFE
from ferry.spark.ownership import Ownership, local
from ferry.spark.user_functions import name_of_sink, require_arguments
from ferry.system import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("ferry.driver")

MANIFEST = "_ferry.json"
"""In every published folder: whose it is, and rows and bytes of each part. Readers of Parquet skip such names."""


Part = tuple[str, int, int]
"""What a task has written: its name, rows, bytes."""


class RowParts(ABC):
    """Rows that are where they fired: tasks read them, and pass them to nobody. For a sink with `takes_parts`."""

    @abstractmethod
    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Part]]) -> list[Part]:
        """What `write` says of the rows of each task."""


class Sink(ABC):
    """One end of a pipeline; one of yours needs `write` only, and `truncate_after` if its job is to be restored.

    Example:
        >>> class Counting(ferry.Sink):
        ...     def __init__(self):
        ...         self.rows = {}
        ...
        ...     def write(self, epoch, generation, rows):
        ...         self.rows[epoch] = rows.num_rows
        ...
        ...     def truncate_after(self, epoch):
        ...         self.rows = {one: n for one, n in self.rows.items() if one <= epoch}
        >>> output = counts.sink(Counting())
    """

    takes_parts: ClassVar[bool] = False
    """Whether `write` may get `RowParts`, in place of a DataFrame of very many rows that nothing is to be done with."""

    def expect(self, schema: pa.Schema) -> None:  # noqa: B027  most sinks take whatever comes
        """The columns that rows will have, when the pipeline is built. Raises SpecRefused for what this sink cannot take."""

    def place(self, base: str | None) -> Path | None:
        """The directory that is written to, if there is one; `base` takes the place of its parent."""
        return None

    def identify(self, job: str, run: str = "", before: str | None = None) -> str | None:
        """A name that what this sink writes is known by elsewhere, in this and every later run of the job; None: none.

        `before`: the job whose checkpoint this run begins with.
        """
        return None

    def open(self, committed: int) -> None:  # noqa: B027  most sinks have nothing to open
        """`committed` is the last committed epoch, -1 for a new job."""

    @abstractmethod
    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish the rows of an epoch. Must be idempotent."""

    def truncate_after(self, epoch: int) -> None:
        """Remove what later epochs published: their numbers come again. Must be idempotent, and never leave half of one.

        Raises SpecRefused when this sink cannot.
        """
        raise SpecRefused(
            f"sink: {self!r} cannot remove what it got after epoch {epoch}. Remove that yourself, or give it a "
            "truncate_after (foreach_epoch: truncate=); then restore with --sink keep (spec.restoreSink: keep), which "
            "leaves what a sink has"
        )

    def keep_after(self, epoch: int) -> None:  # noqa: B027  most sinks have nothing to do for that
        """Leave what later epochs published, and be ready to get epochs of these numbers again. Must be idempotent."""


def place(sinks: Iterable[Sink], base: str | None) -> None:
    """Have every sink know its directory. Two in one would each skip the epochs that the other has published."""
    placed: dict[Path, Sink] = {}
    for sink in sinks:
        directory = sink.place(base)
        if directory is None:
            continue
        where = directory.resolve()
        if where in placed:
            raise SpecRefused(f"{shown(placed[where])} and {shown(sink)} both write to {where}; use two directories")
        placed[where] = sink


def identify(sinks: Iterable[Sink], job: str, run: str = "", before: str | None = None) -> None:
    """Have every sink know whose it is. Two of one name would each keep the other from writing."""
    named: dict[str, Sink] = {}
    for sink in sinks:
        name = name_of_sink(sink, job, run, before)
        if name is not None and name in named:
            raise SpecRefused(f"{shown(named[name])} and {shown(sink)} are both known as {name}; use two name=")
        if name is not None:
            named[name] = sink


class Parquet(Sink):
    """`DIRECTORY/epoch=E/part-*.parquet`; a folder that exists is complete, for it is renamed into place."""

    takes_parts = True

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.declared = files.path_of(directory, "parquet: directory")
        self.directory = local(self.declared)
        self._owner = Ownership(self.declared)
        self.notice = ""

    def __repr__(self) -> str:
        return f"parquet({self.declared!r})"

    def place(self, base: str | None) -> Path:
        """`base`/NAME, where NAME is the last name of the declared directory."""
        named = self.directory if base is None else local(base) / local(self.declared).name
        self.directory = named.absolute()
        return self.directory

    def identify(self, job: str, run: str = "", before: str | None = None) -> None:
        """The directory is claimed in the name of the run."""
        self._owner.of(job, run, before)

    def open(self, committed: int) -> None:
        """Refuse the output of another job, or another run; forget unfinished folders."""
        self.directory.mkdir(parents=True, exist_ok=True)
        newer = self._after(committed)
        if newer:
            self._owner.refuse_another_run(self.directory)
            raise SpecRefused(
                f"sink: {self.directory} holds epoch {newer[-1]} of another run (this one has committed up to {committed}); "
                "choose another --output, or delete that directory"
            )
        self.notice = self._owner.missing(self.directory, committed, self._has_published)
        self._owner.claim(self.directory, self._has_published)
        for left in self.directory.glob(".epoch=*"):
            shutil.rmtree(left)

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame | RowParts) -> None:
        """Write to a hidden folder, then rename. An epoch that is there already, and whole, has the same rows."""
        final = self.directory / f"epoch={epoch}"
        self._owner.require(self.directory, self._has_published)
        if final.exists():
            damage = self._damage(final, epoch)
            if damage is None:
                return
            aside = self.directory / f"_damaged-epoch={epoch}.{uuid.uuid4().hex[:8]}"
            final.rename(aside)
            log.warning("%s: %s; it is kept as %s and written again", final, damage, aside.name)
        hidden = self.directory / f".epoch={epoch}.{generation}.{uuid.uuid4().hex[:8]}"
        hidden.mkdir(parents=True)
        if isinstance(rows, pa.Table):
            parts = write_parts(rows, hidden)
        else:
            parts = {part: [n, size] for part, n, size in _written(rows, str(hidden))}
            unseen = parts.keys() - {part.name for part in hidden.iterdir()}
            if unseen:
                raise Fault(f"{self.directory}: what tasks wrote is not seen here; use a directory that all share")
            # A task that failed half way, or whose answer was lost, has left a part that another attempt wrote again.
            for part in hidden.iterdir():
                if part.name not in parts:
                    part.unlink()
            if not parts:
                return hidden.rmdir()
        whose = {"sink": self.declared, "run": self._owner.run, "life": self._owner.life}
        (hidden / MANIFEST).write_text(json.dumps({**whose, "epoch": epoch, "parts": parts}))
        for made in (hidden / MANIFEST, hidden):
            files.sync(made)
        hidden.rename(final)
        files.sync(self.directory)

    def truncate_after(self, epoch: int) -> None:
        """Delete the folders of later epochs: each is gone at once, the newest first. Raises SpecRefused for another's."""
        for hidden in self._moved(epoch, "."):
            shutil.rmtree(hidden)
        self._owner.begin_life(self.directory)

    def keep_after(self, epoch: int) -> None:
        """Put the folders of later epochs aside, as `_kept-epoch=E`, which readers of Parquet skip."""
        self._moved(epoch, "_kept-")
        self._owner.begin_life(self.directory)

    def _has_published(self) -> bool:
        return bool(self._after(-1))

    def _after(self, epoch: int) -> list[int]:
        """Epochs that are there, later than this one, the newest first."""
        found = (int(folder.name[6:]) for folder in self.directory.glob("epoch=*") if folder.name[6:].isdecimal())
        return sorted((one for one in found if one > epoch), reverse=True)

    def _moved(self, epoch: int, prefix: str) -> list[Path]:
        """Rename the folders of later epochs, on the disk; none if one is another sink's."""
        self._owner.refuse_others(self.directory)
        later = [self.directory / f"epoch={one}" for one in self._after(epoch)]
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
        """What is wrong with a published folder: a machine that lost its power may keep a name and lose what it named."""
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            whose, run = (manifest["sink"], manifest["epoch"]), manifest.get("run", "")
            if manifest.get("life", "") != self._owner.life:
                return "it was written before the job was restored, or by a driver that did not know"
            for name, (rows, size) in manifest["parts"].items():
                found = pq.read_metadata(folder / name).num_rows, (folder / name).stat().st_size
                if found != (rows, size):
                    return f"{name} has (rows, bytes) {found}, {(rows, size)} were written"
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as wrong:
            return f"it cannot be read: {type(wrong).__name__}: {wrong}"
        if whose != (self.declared, epoch):
            raise SpecRefused(f"{folder} was written by parquet({whose[0]!r}); give {self!r} a directory of its own")
        if run and self._owner.run and run != self._owner.run:
            raise SpecRefused(f"sink: {folder} was written by run {run}; choose another --output")
        return None


PART = "part string, rows long, bytes long"


def _written(rows: DataFrame | RowParts, folder: str) -> list[Part]:
    """What tasks have written there."""
    write = partial(_write_part, folder, not isinstance(rows, RowParts))
    if isinstance(rows, RowParts):
        return rows.each(write)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, n, size in write(batches):
            yield pa.RecordBatch.from_pydict({"part": [part], "rows": [n], "bytes": [size]})

    return [(part, n, size) for part, n, size in rows.mapInArrow(task, PART).collect()]


def _write_part(folder: str, of_spark: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    """Write the rows of a task to one part; none for no rows."""
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


class Console(Sink):
    """Prints rows, at most `limit` of an epoch."""

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.show: Callable[[str], None] = print

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Print."""
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        rows = (f"   {row}" for row in rows_shown(table.slice(0, self.limit)))
        self.show("\n".join([f"-- epoch {epoch}: {table.num_rows} rows", *rows]))

    def truncate_after(self, epoch: int) -> None:
        """What was printed stays."""


class ForeachEpoch(Sink):
    """Calls the user's function with (epoch, generation, DataFrame); it must be idempotent by epoch."""

    needs_frame = True

    def __init__(
        self, function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
    ) -> None:
        self.function = function
        self.truncate = truncate

    def __repr__(self) -> str:
        return f"foreach_epoch({getattr(self.function, '__name__', self.function)})"

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Call it."""
        self.function(epoch, generation, rows)

    def truncate_after(self, epoch: int) -> None:
        """Call the function for that; raises SpecRefused when there is none."""
        if self.truncate is None:
            super().truncate_after(epoch)
        else:
            self.truncate(epoch)


def parquet(directory: str | PathLike[str]) -> Parquet:
    """Parquet files, in one folder an epoch, which appears at once when it is whole. One run writes to a directory.

    Parameters:
        directory: holds the folders `epoch=E`; `ferry run --output DIR` puts its last name below DIR instead.
    Returns: a sink.
    Raises: SpecRefused, if it is a URL, or no path.
    Example:
        >>> output = counts.sink(ferry.parquet("/data/counts"))
    """
    return Parquet(directory)


def console(limit: int = 20) -> Console:
    """Print the rows of each epoch: on the terminal of `ferry run`, and in the log of the driver.

    Parameters:
        limit: how many rows of an epoch are printed at most.
    Returns: a sink.
    Raises: SpecRefused, if the limit is negative, or no number.
    Example:
        >>> output = counts.sink(ferry.console(limit=5))
    """
    if not isinstance(limit, int) or limit < 0:
        raise SpecRefused(f"console: limit {limit!r}; it is how many rows of an epoch are printed, 0 at least")
    return Console(limit)


def foreach_epoch(
    function: Callable[[int, int, Any], None], truncate: Callable[[int], None] | None = None
) -> ForeachEpoch:
    """Call a function once for every epoch that fired rows, and again after failures: at least once.

    Every run numbers its epochs from 0 on, and Ferry cannot know what the function writes to: let no two runs, nor two
    sinks, write to one place.

    Parameters:
        function: gets the epoch's number, the driver's generation, and a DataFrame. It is called again until it returns,
            so it must do nothing the second time; one that raises `ferry.Final` stops the job.
        truncate: gets the number of an epoch when the job is restored as of its end, and removes what was stored for
            later ones, for these numbers come again. It may be called again. Without it such a restore is refused, unless
            it leaves what sinks have (`restoreSink: keep`).
    Returns: a sink.
    Raises: SpecRefused, if one of them cannot be called.
    Example:
        >>> def store(epoch, generation, rows):
        ...     rows.write.mode("overwrite").json(f"/data/counts/{epoch}")
        >>> def forget(epoch):
        ...     for folder in pathlib.Path("/data/counts").iterdir():
        ...         if int(folder.name) > epoch:
        ...             shutil.rmtree(folder)
        >>> output = counts.sink(ferry.foreach_epoch(store, truncate=forget))
    """
    require_arguments("foreach_epoch: ", function, "epoch", "generation", "rows")
    if truncate is not None:
        require_arguments("foreach_epoch: truncate=", truncate, "epoch")
    return ForeachEpoch(function, truncate)
