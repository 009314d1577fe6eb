"""Directories of Parquet and JSON-lines files as sources that are read inside the ingest tasks.

A file is taken when it is found, whatever its time: it must be complete when it appears (write it under a name that begins
with "_" or ".", then rename it), and stay as it is until it was read. Which files were taken is in `ferry.spark.taken`; an
epoch's files are in its position: each is there, as it was, when it is read, or it is an error. Must never import pyspark.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.contract.errors import Fault, RowsGone, SpecRefused
from ferry.spark.flow_pattern import FlowPattern
from ferry.spark.json_lines import checked, parse
from ferry.spark.splits import BATCH_ROWS, WHOLE, Flow, Malformed, Position, Split, malformed
from ferry.spark.taken import File, Taken, digest, files_of, origin

EPOCH_FILES = 500
"""Files of one epoch at most: their names go through Spark's offset log, and with the epoch into the state."""

EPOCH_NAMES = 32_000
"""Letters of their names, likewise."""

WORD = pa.dictionary(pa.int32(), pa.string())
"""Texts as a Parquet file keeps them, where they repeat."""

JSON_BLOCK_BYTES = 1 << 20
"""JSON lines are parsed in pieces of this size; one is read whole into memory."""

JSON_SHARE_BYTES = 4 << 20
"""JSON files are shared among tasks in pieces of this size."""


class DirectorySplits(ABC):
    """What both formats share: listing, positions, and dividing files among tasks."""

    def __init__(self, directory: str | os.PathLike[str], finite: bool = False, flow: str | None = None) -> None:
        self.directory = os.fspath(directory)
        self.finite = finite
        self._pattern = None if flow is None else FlowPattern(flow)
        self._shares: dict[File, list[tuple[int, int, int]]] = {}
        self._taken = Taken(self.directory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, finite={self.finite})"

    @abstractmethod
    def _divide(self, file: File) -> list[tuple[int, int, int]]:
        """Consecutive pieces [low, high) of a file, and how many rows each has, about."""

    @abstractmethod
    def _read_piece(
        self, name: str, low: int, high: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch | Malformed]:
        """The records of one piece."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of all columns."""

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _listed(self) -> list[File]:
        return self._scanned()[0]

    def _scanned(self) -> tuple[list[File], list[str]]:
        """The files, and the folders that may hold some."""
        try:
            files, folders = self._walk("", self._pattern.depth if self._pattern else 0)
        except (FileNotFoundError, NotADirectoryError) as gone:
            if os.path.isdir(self.directory):
                return self._scanned()  # A file went away between listing and looking at it.
            raise SpecRefused(f"no directory {self.directory!r}; a file source needs one") from gone
        for file in files if self._pattern else ():
            self._flow(file)
        return sorted(set(files)), folders  # Where listings are not atomic, one may show a file twice.

    def _flow(self, file: File) -> str:
        assert self._pattern is not None
        return self._pattern.flow_of(file.name)

    def _walk(self, folder: str, depth: int) -> tuple[list[File], list[str]]:
        """The files of a folder that are so many folders deeper, and the folders that may hold such."""
        files: list[File] = []
        folders = [] if depth else [folder]
        with os.scandir(self._path(folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.name[0] in "_.":
                    continue
                if entry.is_file():
                    status = entry.stat()
                    files.append(File(status.st_mtime_ns, name, status.st_size))
                elif depth and entry.is_dir():
                    deeper = self._walk(name, depth - 1)
                    files += deeper[0]
                    folders += deeper[1]
        return files, folders

    def _pieces(self, file: File) -> list[tuple[int, int, int]]:
        if file not in self._shares:
            self._shares[file] = self._divide(file)
        return self._shares[file]

    def keep(self, folder: Path, name: str) -> None:
        """Keep the list of files that were taken in this folder, for the process that plans epochs after this one."""
        self._taken.keep(folder / f"{quote(name, safe='')}.jsonl")

    def start(self) -> Position:
        """Before the first file; a finite input is fixed here."""
        if not self.finite:
            return origin()
        files = self._listed()
        return {**origin(), "end": list(files[-1][:2]) if files else [0, ""], "whole": digest(files)}

    def latest(self, start: Position, max_rows: int) -> Position:
        """As many whole files as fit into max_rows, at least one; JSON rows are estimated from the file's size.

        Of more than `EPOCH_FILES` the rest is left for later epochs, unless all are asked for at once (`WHOLE`).
        """
        self._refuse_old(start)
        if self.ended(start):
            return start
        listed = self._listed()
        files = self._taken.new(start, listed, forget=not self.finite)
        if self.finite:
            files = [file for file in files if list(file[:2]) <= start["end"]]
            self._check_whole(start, files)
        # Files that were taken are not asked for again, except by the replay of one batch.
        waiting = set(files)
        self._shares = {file: pieces for file, pieces in self._shares.items() if file in waiting}
        taken: list[File] = []
        rows = letters = 0
        for file in files:
            letters += len(file.name)
            try:
                rows += sum(share for _, _, share in self._pieces(file))
            except FileNotFoundError:
                continue  # It went away before it was taken.
            full = rows > max_rows or letters > EPOCH_NAMES or len(taken) == EPOCH_FILES
            if taken and full and max_rows < WHOLE:
                break
            taken.append(file)
        return self._taken.after(start, listed, taken) if taken else start

    def _refuse_old(self, position: Position) -> None:
        if not isinstance(position, dict):
            raise SpecRefused(
                f"{self!r}: the job's positions were written by release 0.1.0, which did not say which files it had read; "
                "go on with that release, or start a new job"
            )

    def _check_whole(self, start: Position, waiting: list[File]) -> None:
        now = digest([*self._taken.known(), *waiting])
        if now != start["whole"]:
            raise RowsGone(
                f"{self.directory} is a finite input and held {start['whole'][0]} files when the job began; now there are "
                f"{now[0]} as old as those, or some were written again. Make it as it was"
            )

    @property
    def has_flows(self) -> bool:
        """Whether `flow` was given."""
        return self._pattern is not None

    def flows(self, position: Position) -> dict[str, bool]:
        """Flows of which there is a folder or a file, and whether one of their files is not taken at this position."""
        assert self._pattern is not None
        files, folders = self._scanned()
        found = {flow: False for folder in folders if (flow := self._pattern.flow_of_folder(folder)) is not None}
        found |= {self._flow(file): False for file in files}
        for file in self._taken.new(position, files, forget=not self.finite):
            if not self.finite or list(file[:2]) <= position["end"]:
                found[self._flow(file)] = True
        return found

    def ended(self, position: Position) -> bool:
        """True when a finite input's last file is behind this position."""
        return self.finite and position["taken"] == position["whole"][0]

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` splits of about equal size: consecutive row groups, or byte ranges, of consecutive files.

        Raises RowsGone when one of the files that `stop` names is not there any more, or was written again.
        """
        self._refuse_old(start)
        self._refuse_old(stop)
        if start["id"] == stop["id"]:
            return []
        if stop["after"] != start["id"]:
            raise RowsGone(
                f"{self!r}: position {stop['id']} does not follow {start['id']}: Spark's offset log has lost epochs"
            )
        files = files_of(stop)
        for file in files:
            self._check_same(file)
        pieces = [(file, *piece) for file in files for piece in self._pieces(file)]
        total = max(sum(rows for *_, rows in pieces), 1)
        shares: dict[int, list[list[Any]]] = {}
        before = 0
        for file, low, high, rows in pieces:
            share = shares.setdefault(min(before * max(tasks, 1) // total, max(tasks, 1) - 1), [])
            if share and share[-1][0] == file and share[-1][2] == low:
                share[-1][2] = high
            else:
                share.append([file, low, high])
            before += rows
        return [{"pieces": share} for share in shares.values()]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split, file by file. Raises RowsGone when a file is not there any more, or was written again."""
        unknown = [] if columns is None else [c for c in columns if c not in self.schema().names]
        if unknown:
            raise SpecRefused(f"{self!r} has no columns {unknown}; it has {', '.join(self.schema().names)}")
        for about, low, high in split["pieces"]:
            file = File(*about)
            self._check_same(file)
            if self._pattern is not None:
                yield Flow(self._flow(file))
            try:
                yield from self._read_piece(file.name, low, high, columns)
            except FileNotFoundError:
                self._check_same(file)
                raise

    def _check_same(self, file: File) -> None:
        """Raise RowsGone unless the file is there as it was when it was taken."""
        path = self._path(file.name)
        try:
            status = os.stat(path)
        except FileNotFoundError as gone:
            raise RowsGone(f"{path} went away before it was read; put it back") from gone
        if (status.st_mtime_ns, status.st_size) != (file.mtime_ns, file.size):
            raise RowsGone(f"{path} was written again before it was read; put back the file of {file.size} bytes")


class ParquetSplits(DirectorySplits):
    """See `parquet_files`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        finite: bool = False,
        flow: str | None = None,
    ) -> None:
        super().__init__(directory, finite, flow)
        self._schema = schema

    def encoded(self, columns: Sequence[str]) -> ParquetSplits:
        """The same files; these columns of text come as the files keep them, a number for each and a dictionary."""
        made, schema = copy.copy(self), self.schema()
        texts = [name for name in columns if pa.types.is_string(schema.field(name).type)]
        made._schema = pa.schema([f.with_type(WORD) if f.name in texts else f for f in schema])
        return made

    def schema(self) -> pa.Schema:
        """The given schema, else that of the first file."""
        if self._schema is None:
            files = self._listed()
            if not files:
                raise SpecRefused(f"{self.directory!r} holds no file to take the columns from; give schema=")
            self._schema = self._footer(files[0].name).schema.to_arrow_schema().remove_metadata()
        return self._schema

    def _footer(self, name: str) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self._path(name))
        except pa.ArrowInvalid as wrong:
            raise Fault(f"{self._path(name)} is no complete Parquet file: {wrong}; mend or remove it") from wrong

    def _divide(self, file: File) -> list[tuple[int, int, int]]:
        about = self._footer(file.name)
        return [(i, i + 1, about.row_group(i).num_rows) for i in range(about.num_row_groups)]

    def _read_piece(self, name: str, low: int, high: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        words = [f.name for f in self._schema or () if pa.types.is_dictionary(f.type)]
        with pq.ParquetFile(self._path(name), read_dictionary=words) as file:
            whole = self.schema()
            wanted = whole if columns is None else pa.schema([whole.field(c) for c in columns])
            missing = [c for c in wanted.names if c not in file.schema_arrow.names]
            if missing:
                raise SpecRefused(f"{self._path(name)} has no columns {missing}, unlike {whole.names}")
            for batch in file.iter_batches(BATCH_ROWS, row_groups=list(range(low, high)), columns=wanted.names):
                ordered = batch.select(wanted.names)
                try:
                    yield ordered if ordered.schema.equals(wanted) else ordered.cast(wanted)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
                    raise SpecRefused(f"{self._path(name)} does not fit the columns {wanted}: {wrong}") from wrong


class JsonSplits(DirectorySplits):
    """See `json_files`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        schema: pa.Schema,
        finite: bool = False,
        flow: str | None = None,
        epoch: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, finite, flow)
        self._schema = schema
        self._epochs = checked("json_files", schema, epoch)

    def schema(self) -> pa.Schema:
        """The given schema."""
        return self._schema

    def _divide(self, file: File) -> list[tuple[int, int, int]]:
        with open(self._path(file.name), "rb") as lines:
            sample = lines.read(1 << 16)
        row_bytes = max(len(sample) // max(sample.count(b"\n"), 1), 1)
        edges = [*range(0, file.size, JSON_SHARE_BYTES), file.size]
        return [(low, high, (high - low) // row_bytes + 1) for low, high in pairwise(edges)]

    def _read_piece(
        self, name: str, low: int, high: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch | Malformed]:
        """A line belongs to the piece in which it begins."""
        with open(self._path(name), "rb") as file:
            if low:
                file.seek(low - 1)
                file.readline()
            while (at := file.tell()) < high:
                data = file.read(min(JSON_BLOCK_BYTES, high - at))
                if not data.endswith(b"\n"):
                    data += file.readline()
                table, bad, reasons = parse(data, self._schema, self._epochs)
                for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                    yield batch if columns is None else batch.select(list(columns))
                if bad:
                    yield malformed(bad, reasons, f"{name}, bytes {at} to {at + len(data)}: ")


def parquet_files(
    directory: str | os.PathLike[str], schema: pa.Schema | None = None, finite: bool = False, flow: str | None = None
) -> ParquetSplits:
    """A directory of Parquet files; new files are new records.

    A file is read whole in one epoch, also when it holds more rows than an epoch should.

    Parameters:
        directory: where every worker sees the files under the same path.
        schema: the columns; else those of the first file. Give it when old files may go: every task looks for itself.
        finite: the input is what the directory held when the job began, and then it ends.
        flow: a pattern for the paths of files, which says what comes in order for itself: "{flow}/*" makes every folder in
            the directory a flow, from when the folder is there; "{flow}-*.parquet" every beginning of a name, from its first
            file on. The watermark waits for the slowest flow (see `Stream.event_time`), and a file that fits no flow ends
            the job. None: all files are one flow.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if the directory is not there, or holds no file to take the columns from, when the job begins; or if
        `flow` is no pattern.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("shop", pa.string()), ("ts", pa.int64())])
        >>> ferry.parquet_files("/data/sales", columns, flow="{flow}/*.parquet").has_flows  # a folder for each shop
        True
    """
    return ParquetSplits(directory, schema, finite, flow)


def json_files(
    directory: str | os.PathLike[str],
    schema: pa.Schema,
    finite: bool = False,
    flow: str | None = None,
    epoch: Mapping[str, str] | None = None,
) -> JsonSplits:
    """A directory of files with one JSON object per line; new files are new records. A missing field is null.

    A line that is no object, or does not fit the schema, is reported as Malformed (docs/jobs.md, "What JSON may hold").

    Parameters:
        directory: where every worker sees the files under the same path.
        schema: the columns; fields that it does not name are ignored.
        finite: the input is what the directory held when the job began, and then it ends.
        flow: what comes in order for itself, as for `parquet_files`.
        epoch: the unit of numbers in a column of timestamps, "s", "ms", "us" or "ns" since 1970: {"ts": "ms"}.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if a type is not read from JSON, `flow` is no pattern, or, later, there is no such directory.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.int64())])
        >>> ferry.json_files("/data/clicks", columns, flow="{flow}-*.json").has_flows  # eu-0001.json, us-0001.json, ...
        True
    """
    return JsonSplits(directory, schema, finite, flow, epoch)
