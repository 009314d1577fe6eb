"""A directory of files as a source: its positions, the division of files among tasks, and the handling of bad files.

    listing -> new files in order of time -> the files before the first unreadable file -> position -> plan -> read

A new file is taken when a listing shows it, whatever its time. It must be complete when it appears (write it under a name
that begins with "_" or ".", then rename it) and must not change before it is read. `taken.py` records the taken files. The
position of an epoch names its files. A file of the position that is missing or changed is an error; only a file that could
not be read may be replaced. With ``finite=True`` the input is the files that the directory held when the job began. A
problem with a remedy is a Fault, and the source retries. Must never import pyspark.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ferry.connectors.files.flow_pattern import FlowPattern
from ferry.connectors.files.folder import Folder
from ferry.connectors.files.hive import constants
from ferry.connectors.files.listing import named, partitions
from ferry.connectors.files.taken import File, Taken, digest, files_of, origin
from ferry.connectors.splits import WHOLE, Flow, Malformed, Position, Split, require_end
from ferry.contract.errors import Fault, FerryError, RowsGone, SpecRefused, Unreachable
from ferry.system.files import path_of

EPOCH_FILES = 500
"""Greatest number of files in an epoch. Spark's offset log and the state of the epoch hold their names."""

EPOCH_NAMES = 32_000
"""Greatest number of characters in the names of an epoch's files."""

AGAIN_SECONDS = 1.0
"""Time between two attempts to read an unreadable file."""

REASON_MAX = 300
"""Greatest number of characters of a library's error text."""

Piece = tuple[int, int, int]
"""(low, high, estimated rows): the range [low, high) of a file."""


@contextmanager
def naming(path: str, taken: bool = False) -> Iterator[None]:
    """Turn a library's error about a file into a Fault with its path and a remedy.

    `taken`: the file's epoch is planned. Then the remedy is not to remove the file, because a folder that is not mounted
    looks the same.
    """
    try:
        yield
    except (FerryError, FileNotFoundError, MemoryError):
        raise
    except Exception as wrong:
        reason = " ".join(str(wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else wrong).split())
        raise Fault(
            f"{path} cannot be read: {type(wrong).__name__}: {reason[:REASON_MAX]}; put a whole file in its place, "
            + ("which may have no records" if taken else "or remove it")
        ) from wrong


class DirectorySplits(ABC):
    """The common part of file sources. A subclass implements the abstract methods for its format."""

    def __init__(self, directory: str | os.PathLike[str], finite: bool = False, flow: str | None = None) -> None:
        self.directory = path_of(directory, "files: directory")
        if isinstance(finite, str):
            raise SpecRefused(f"files: finite={finite!r}; it is True or False")
        self.finite = finite
        self._folder = Folder(self.directory, None if flow is None else FlowPattern(flow))
        self._shares: dict[File, list[Piece]] = {}
        self._bad: dict[str, tuple[File, float, str]] = {}
        """Unreadable files by name: (the file as first listed, monotonic time of the last attempt, the reason)."""
        self._held: list[str] = []
        """Unreadable files with later files of their flow behind them, each with the reason."""
        self._taken = Taken(self.directory)

    @property
    def problems(self) -> list[str]:
        """The unreadable entries of the last listing. The source reads the other files meanwhile."""
        return [*self._folder.unreadable, *self._held]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, finite={self.finite})"

    @abstractmethod
    def _divide(self, file: File) -> list[Piece]:
        """Consecutive pieces of a file. Raises SpecRefused if the file does not fit the schema."""

    @abstractmethod
    def _read_piece(
        self, name: str, low: int, high: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch | Malformed]:
        """The records of a piece."""

    @abstractmethod
    def _parts(self, name: str, low: int, high: int) -> list[tuple[int, int]] | None:
        """Smaller ranges of a range. Empty for a single record; None for several records that cannot be divided."""

    @abstractmethod
    def _range(self, low: int, high: int) -> str:
        """A range in words, for messages."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of all columns."""

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    # ---- listing
    def _pieces(self, file: File) -> list[Piece]:
        if file not in self._shares:
            with naming(self._path(file.name)):
                self._shares[file] = self._divide(file)
        return self._shares[file]

    def _constants(self, name: str) -> Mapping[str, pa.Scalar]:
        """Values of the partition columns in a file's path."""
        return constants(name, self.schema()) if partitions(name) else {}

    def notice(self) -> str:
        """A notice about entries of the folder that are not read. Empty without such entries."""
        return self._folder.notice()

    def contents(self) -> str:
        """The current contents of a finite input without records, for messages."""
        try:
            files, also = len(self._folder.listing().files), self.notice()
        except Fault as wrong:
            return str(wrong)
        return f"({self.directory}) {f'has {files} files without records' if files else 'holds no file'}" + (
            f"; {also}" if also else ""
        )

    # ---- positions
    def keep(self, folder: Path, name: str) -> None:
        """Keep the list of taken files in this folder, for the next process that plans epochs."""
        self._taken.keep(folder / f"{quote(name, safe='')}.jsonl")

    def start(self) -> Position:
        """The position before the first file. It fixes the files of a finite input once all of them can be read.

        Raises SpecRefused for a missing folder, for files in folders that are not read, and for files of a finite input that
        do not fit; Fault for a problem to retry.
        """
        self._folder.require_there()
        listing = self._folder.listing()
        if listing.closed:
            raise SpecRefused(
                f"{self.directory} holds {named(listing.closed)}, whose files would not be read: only folders named "
                "COLUMN=VALUE are read. Give it a name that begins with '_' or '.', or say where files are with flow=, such "
                "as flow='{flow}/*'"
            )
        if not self.finite:
            return origin()
        files, bad = listing.files, list(self._folder.unreadable)
        for file in files:
            try:
                self._rows(file, begun=False)
            except (Fault, FileNotFoundError) as wrong:
                bad.append(str(wrong))
        if bad:
            raise Unreachable(f"{self.directory}, a finite input: {named(bad)}")
        return {**origin(), "end": list(files[-1][:2]) if files else [0, ""], "whole": digest(files)}

    def latest(self, start: Position, max_rows: int) -> Position:
        """The position after the next whole files: as many as fit into `max_rows`, at least one.

        Rows of JSON are estimated from the size of the file. An epoch has at most `EPOCH_FILES` files, unless `max_rows` is
        `WHOLE`. An unreadable file keeps its place: the later files of its flow wait, because their event times would make
        its records late.
        """
        self._require_ours(start)
        self._folder.unreadable, self._held = [], []
        if self.ended(start):
            return start
        listing = self._folder.listing()
        files = self._taken.new(start, listing.files, forget=not self.finite and self._folder.is_the_same(listing))
        if self.finite:
            files = [file for file in files if list(file[:2]) <= start["end"]]
            self._check_whole(start, files)
        # The pieces of taken files are needed again only for the replay of one batch.
        waiting, names = set(files), {file.name for file in files}
        self._shares = {file: pieces for file, pieces in self._shares.items() if file in waiting}
        self._bad = {name: bad for name, bad in self._bad.items() if name in names}
        taken: list[File] = []
        stopped: set[str] = set()
        """Flows with an unreadable file."""
        rows = letters = 0
        for file in sorted(files, key=self._place):
            if (flow := self._folder.flow(file)) in stopped:
                continue
            try:
                many = self._rows(file, begun=bool(start["id"]))
            except FileNotFoundError:
                continue  # The file was removed before it was taken.
            except Fault as wrong:
                stopped.add(flow)
                self._held.append(f"{wrong} (files behind it wait)")
                continue
            letters, rows = letters + len(file.name), rows + many
            full = rows > max_rows or letters > EPOCH_NAMES or len(taken) == EPOCH_FILES
            if taken and full and max_rows < WHOLE:
                break
            taken.append(file)
        return self._taken.after(start, listing.files, taken) if taken else start

    def _place(self, file: File) -> File:
        """The file's place in the order of files. A file that replaces an unreadable one has the place of that file."""
        return min(file, self._bad[file.name][0]) if file.name in self._bad else file

    def _rows(self, file: File, begun: bool) -> int:
        """Estimated rows of a file. Raises Fault if it cannot be read, or does not fit the schema of a running job."""
        first, tried, reason = self._bad.get(file.name, (file, 0.0, ""))
        if reason and file in self._shares:
            del self._shares[file]
        if reason and time.monotonic() - tried < AGAIN_SECONDS:
            raise Fault(reason)
        try:
            pieces = self._pieces(file)
            self._constants(file.name)
        except (Fault, SpecRefused) as wrong:
            if isinstance(wrong, SpecRefused) and not begun:
                raise
            self._bad[file.name] = first, time.monotonic(), str(wrong)
            raise Fault(str(wrong)) from wrong
        return sum(share for _, _, share in pieces)

    def _require_ours(self, position: Position) -> None:
        if not isinstance(position, dict) or "taken" not in position:
            raise SpecRefused(
                f"{self!r}: the job's position is from another kind of source; use that source again, or start a new job"
            )

    def _check_whole(self, start: Position, waiting: list[File]) -> None:
        now = digest([*self._taken.known(), *waiting])
        if now != start["whole"]:
            raise RowsGone(
                f"{self.directory} is a finite input and held {start['whole'][0]} files when the job began; now it holds "
                f"{now[0]} files of that age, or files were written again. Restore the original files"
            )

    @property
    def has_flows(self) -> bool:
        """Whether the source has a pattern of flows."""
        return self._folder.pattern is not None

    def flows(self, position: Position) -> dict[str, bool]:
        """Flows with a folder or a file, and whether a flow has files that are not taken at this position."""
        pattern, listing = self._folder.pattern, self._folder.listing()
        assert pattern is not None
        unread = {flow: False for path in listing.folders if (flow := pattern.flow_of_folder(path)) is not None}
        unread |= {self._folder.flow(file): False for file in listing.files}
        for file in self._taken.new(position, listing.files, forget=False):
            if not self.finite or list(file[:2]) <= position["end"]:
                unread[self._folder.flow(file)] = True
        return unread

    def ended(self, position: Position) -> bool:
        """Whether the input is finite and all its files are taken at this position."""
        if not self.finite:
            return False
        require_end(self, position)
        return bool(position["taken"] == position["whole"][0])

    # ---- reading
    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` splits of about equal size: consecutive row groups or byte ranges of consecutive files.

        Raises RowsGone if a file of `stop` is missing or was written again.
        """
        self._require_ours(start)
        self._require_ours(stop)
        if start["id"] == stop["id"]:
            return []
        if stop["after"] != start["id"]:
            raise RowsGone(
                f"{self!r}: position {stop['id']} does not follow {start['id']}: Spark's offset log has lost epochs"
            )
        files = [self._now(file) for file in files_of(stop)]
        try:
            pieces = [(file, *piece) for file in files for piece in self._pieces(file)]
        except SpecRefused as misfit:  # The file replaces an unreadable one and does not fit the schema.
            raise Fault(str(misfit)) from misfit
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

    def divided(self, split: Split) -> list[Split] | None:
        """A split of one range in smaller splits (`RangeSplits`). Raises RowsGone."""
        ((about, low, high),) = split["pieces"]
        self._check_same(file := File(*about))
        parts = self._parts(file.name, low, high)
        return None if parts is None else [{"pieces": [[about, a, b]]} for a, b in parts]

    def place(self, split: Split) -> str:
        """Files and ranges of a split, for messages."""
        pieces = [f"{about[1]}, {self._range(low, high)}" for about, low, high in split["pieces"]]
        return "; ".join(pieces[:3]) + (f"; and {len(pieces) - 3} more" if len(pieces) > 3 else "")

    def failed(self, stop: Position, reason: str) -> None:
        """Allow the replacement of the epoch's files that this reason names as unreadable. The epoch ends at `stop`."""
        if bad := [file for file in files_of(stop) if f"{self._path(file.name)} cannot be read" in reason]:
            self._taken.may_change(bad)

    def _now(self, file: File) -> File:
        """The current version of a taken file. An unreadable file may have been replaced. Raises RowsGone."""
        now = self._current(file.name)
        if self._taken.changes(file.name):
            self._taken.may_change([now])
            return now
        self._check_same(file)
        return file

    def _current(self, name: str) -> File:
        path = self._path(name)
        try:
            with naming(path, taken=True):
                status = os.stat(path)
        except FileNotFoundError as gone:
            raise RowsGone(f"{path} was removed before it was read; put it back") from gone
        return File(status.st_mtime_ns, name, status.st_size)

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split, file by file.

        Raises RowsGone if a file is missing or was written again, Fault if a file cannot be read.
        """
        unknown = [] if columns is None else [c for c in columns if c not in self.schema().names]
        if unknown:
            raise SpecRefused(f"{self!r} has no columns {unknown}; it has {', '.join(self.schema().names)}")
        for about, low, high in split["pieces"]:
            file = File(*about)
            self._check_same(file)
            if self._folder.pattern is not None:
                yield Flow(self._folder.flow(file))
            try:
                with naming(self._path(file.name), taken=True):
                    yield from self._read_piece(file.name, low, high, columns)
            except FileNotFoundError:
                self._check_same(file)
                raise
            if os.path.lexists(self._path(file.name)):  # A removed file was open, so its read was complete.
                self._check_same(file)

    def _check_same(self, file: File) -> None:
        """Raise RowsGone unless the file is the same as when it was taken."""
        if self._current(file.name) != file:
            path = self._path(file.name)
            raise RowsGone(f"{path} was written again before it was read; put back the file of {file.size} bytes")
