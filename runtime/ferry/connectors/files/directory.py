"""A directory of files as a source: its positions, how its files are divided among tasks, and what is done about bad ones.

    listing -> new files, in order of time -> those up to the first that cannot be read -> position -> plan -> read

A file is taken when it is found, whatever its time: it must be complete when it appears (write it under a name that begins
with "_" or ".", then rename it), and stay as it is until it was read. Which files were taken is in `taken.py`; an
epoch's files are in its position, and every one of them is there and unchanged when it is read, or that is an error, but for
one that could not be read: that one may be replaced. With ``finite=True`` the input is what the directory held when the job
began. What may be mended is a Fault, and is waited for. Must never import pyspark.
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
from ferry.connectors.splits import WHOLE, Flow, Malformed, Position, Split
from ferry.contract.errors import Fault, FerryError, RowsGone, SpecRefused, Unreachable
from ferry.system.files import path_of

EPOCH_FILES = 500
"""Files of one epoch at most: their names go through Spark's offset log, and with the epoch into the state."""

EPOCH_NAMES = 32_000
"""Letters of their names, likewise."""

AGAIN_SECONDS = 1.0
"""Between two tries to read a file that cannot be read."""

REASON_MAX = 300
"""Letters of what a library says."""

Piece = tuple[int, int, int]
"""[low, high) of a file, and how many rows it has, about."""


@contextmanager
def naming(path: str, taken: bool = False) -> Iterator[None]:
    """Whatever a library raises about a file becomes a Fault that names it, and says what to do.

    `taken`: its epoch is planned. To remove it is no way out then: a folder that is not mounted looks the same.
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
    """What all formats share."""

    def __init__(self, directory: str | os.PathLike[str], finite: bool = False, flow: str | None = None) -> None:
        self.directory = path_of(directory, "files: directory")
        if isinstance(finite, str):
            raise SpecRefused(f"files: finite={finite!r}; it is True or False")
        self.finite = finite
        self._folder = Folder(self.directory, None if flow is None else FlowPattern(flow))
        self._shares: dict[File, list[Piece]] = {}
        self._bad: dict[str, tuple[File, float, str]] = {}
        """Files that could not be read, by name: as they were found first, when they were tried last, and the reason."""
        self._held: list[str] = []
        """Files that keep others waiting, each with the reason."""
        self._taken = Taken(self.directory)

    @property
    def problems(self) -> list[str]:
        """What could not be read at the last look; the rest of the input is read meanwhile."""
        return [*self._folder.unreadable, *self._held]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, finite={self.finite})"

    @abstractmethod
    def _divide(self, file: File) -> list[Piece]:
        """Consecutive pieces of a file. Raises SpecRefused when it does not fit the schema."""

    @abstractmethod
    def _read_piece(
        self, name: str, low: int, high: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch | Malformed]:
        """The records of one piece."""

    @abstractmethod
    def _parts(self, name: str, low: int, high: int) -> list[tuple[int, int]] | None:
        """Smaller ranges of one; none when it holds a single record, None when it holds more and cannot be divided."""

    @abstractmethod
    def _range(self, low: int, high: int) -> str:
        """A range in words."""

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
        """Values that the folders of a file's path name."""
        return constants(name, self.schema()) if partitions(name) else {}

    def notice(self) -> str:
        """See `Folder.notice`."""
        return self._folder.notice()

    def contents(self) -> str:
        """What a finite input of no records held, for people; it is looked at now."""
        try:
            files, also = len(self._folder.listing().files), self.notice()
        except Fault as wrong:
            return str(wrong)
        return f"({self.directory}) {f'has {files} files without records' if files else 'holds no file'}" + (
            f"; {also}" if also else ""
        )

    # ---- positions
    def keep(self, folder: Path, name: str) -> None:
        """Keep the list of files that were taken in this folder, for the process that plans epochs after this one."""
        self._taken.keep(folder / f"{quote(name, safe='')}.jsonl")

    def start(self) -> Position:
        """Before the first file; a finite input is fixed here, as soon as all of it can be read.

        Raises SpecRefused for a folder that is not there, holds files in folders that are not read, or, of a finite input,
        files that do not fit; Fault for what is waited for.
        """
        self._folder.require_there()
        listing = self._folder.listing()
        if listing.closed:
            raise SpecRefused(
                f"{self.directory} holds {named(listing.closed)}, whose files would not be read: only those of folders "
                "named COLUMN=VALUE are. Give it a name that begins with '_' or '.', or say where files are with flow=, "
                "such as flow='{flow}/*'"
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
        """As many whole files as fit into max_rows, at least one; JSON rows are estimated from the file's size.

        Of more than `EPOCH_FILES` the rest is left for later epochs, unless all are asked for at once (`WHOLE`). A file that
        cannot be read keeps its place: those of its flow behind it wait, for their times would make its records late.
        """
        self._refuse_old(start)
        self._folder.unreadable, self._held = [], []
        if self.ended(start):
            return start
        listing = self._folder.listing()
        files = self._taken.new(start, listing.files, forget=not self.finite and self._folder.is_the_same(listing))
        if self.finite:
            files = [file for file in files if list(file[:2]) <= start["end"]]
            self._check_whole(start, files)
        # Files that were taken are not asked for again, except by the replay of one batch.
        waiting, names = set(files), {file.name for file in files}
        self._shares = {file: pieces for file, pieces in self._shares.items() if file in waiting}
        self._bad = {name: bad for name, bad in self._bad.items() if name in names}
        taken: list[File] = []
        stopped: set[str] = set()
        """flows"""
        rows = letters = 0
        for file in sorted(files, key=self._place):
            if (flow := self._folder.flow(file)) in stopped:
                continue
            try:
                many = self._rows(file, begun=bool(start["id"]))
            except FileNotFoundError:
                continue  # It went away before it was taken.
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
        """Where a file stands among others: that of the one that it replaces, which could not be read."""
        return min(file, self._bad[file.name][0]) if file.name in self._bad else file

    def _rows(self, file: File, begun: bool) -> int:
        """How many rows a file has, about. Raises Fault when it cannot be read, or does not fit, in a job that has begun."""
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
        return self._folder.pattern is not None

    def flows(self, position: Position) -> dict[str, bool]:
        """Flows of which there is a folder or a file, and whether one of their files is not taken at this position."""
        pattern, listing = self._folder.pattern, self._folder.listing()
        assert pattern is not None
        found = {flow: False for one in listing.folders if (flow := pattern.flow_of_folder(one)) is not None}
        found |= {self._folder.flow(file): False for file in listing.files}
        for file in self._taken.new(position, listing.files, forget=False):
            if not self.finite or list(file[:2]) <= position["end"]:
                found[self._folder.flow(file)] = True
        return found

    def ended(self, position: Position) -> bool:
        """True when a finite input's last file is behind this position."""
        return self.finite and position["taken"] == position["whole"][0]

    # ---- reading
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
        files = [self._now(file) for file in files_of(stop)]
        try:
            pieces = [(file, *piece) for file in files for piece in self._pieces(file)]
        except SpecRefused as misfit:  # Somebody has put another file in the place of one that could not be read.
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
        """See RangeSplits. Raises RowsGone."""
        ((about, low, high),) = split["pieces"]
        self._check_same(file := File(*about))
        parts = self._parts(file.name, low, high)
        return None if parts is None else [{"pieces": [[about, a, b]]} for a, b in parts]

    def place(self, split: Split) -> str:
        """See RangeSplits."""
        pieces = [f"{about[1]}, {self._range(low, high)}" for about, low, high in split["pieces"]]
        return "; ".join(pieces[:3]) + (f"; and {len(pieces) - 3} more" if len(pieces) > 3 else "")

    def failed(self, stop: Position, reason: str) -> None:
        """Files of the epoch that ends at `stop`, and that this reason names, could not be read: they may be replaced."""
        if bad := [file for file in files_of(stop) if f"{self._path(file.name)} cannot be read" in reason]:
            self._taken.may_change(bad)

    def _now(self, file: File) -> File:
        """A taken file as it is now: another one, if it could not be read, and somebody has replaced it. Raises RowsGone."""
        now = self._as_it_is(file.name)
        if self._taken.changes(file.name):
            self._taken.may_change([now])
            return now
        self._check_same(file)
        return file

    def _as_it_is(self, name: str) -> File:
        path = self._path(name)
        try:
            with naming(path, taken=True):
                status = os.stat(path)
        except FileNotFoundError as gone:
            raise RowsGone(f"{path} went away before it was read; put it back") from gone
        return File(status.st_mtime_ns, name, status.st_size)

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split, file by file.

        Raises RowsGone when a file is not there any more, or was written again; Fault, when it cannot be read.
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
            if os.path.lexists(self._path(file.name)):  # Else it was open, and whole, to its end.
                self._check_same(file)

    def _check_same(self, file: File) -> None:
        """Raise RowsGone unless the file is there as it was when it was taken."""
        if self._as_it_is(file.name) != file:
            path = self._path(file.name)
            raise RowsGone(f"{path} was written again before it was read; put back the file of {file.size} bytes")
