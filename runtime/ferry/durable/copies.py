"""Local copies of an instance's checkpoint files, on its own disk: a job that restarts from a checkpoint reads them
there.

The same parts, uncompressed: decompression is slower than a disk read. A copy's name ends with the checksums of the
file in the store and of its own index. Its reader checks it like a file of the store, and falls back to the store when
it is damaged, because a copy is never synced to the disk. Must never cause a failure: a file that cannot be copied has
no copy.
"""

from __future__ import annotations

import glob
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa

from ferry.contract.manifest import StoredFile

log = logging.getLogger("ferry.durable")

FREE_SHARE = 0.2
"""Share of the disk: with less free space nothing is copied, because state needs the space more."""


class Copies:
    """The copies of one instance. Written and removed by one thread."""

    def __init__(self, directory: Path) -> None:
        """Existing copies are of an earlier life of the instance, and valid."""
        self._directory = directory
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            for torn in directory.glob(".*"):
                torn.unlink()
        self._named = {_of(path) for path in directory.glob("[!.]*")}
        """Named by the last checkpoint."""
        self._fresh: set[str] = set()
        """Written since then."""

    def begin(self, name: str) -> Copy | None:
        """A copy of a file that is being written."""
        try:
            usage = shutil.disk_usage(self._directory)
        except OSError:
            return None
        if usage.free < FREE_SHARE * usage.total:
            return None
        return Copy(self._directory / self._name(name), self._fresh)

    def find(self, file: StoredFile) -> FoundCopy | None:
        """The copy of a file, if there is one."""
        for path in self._directory.glob(f"{glob.escape(self._name(file.name))}.{file.checksum:08x}.*"):
            with suppress(OSError, ValueError):
                checksum = int(path.suffix[1:], 16)
                return FoundCopy(path, replace(file, bytes=path.stat().st_size, checksum=checksum))
        return None

    def keep(self, names: Iterable[str]) -> None:
        """A checkpoint names these files: other copies are removed, except copies of the previous checkpoint, which
        counts until this one is complete.

        Copies written since then may be named by the next one.
        """
        named = {self._name(name) for name in names}
        for path in self._directory.glob("[!.]*"):
            if _of(path) not in named | self._named | self._fresh:
                with suppress(OSError):
                    path.unlink()
        self._named, self._fresh = named, set()

    def _name(self, name: str) -> str:
        return PurePosixPath(name).name


def _of(path: Path) -> str:
    """Name of the original file."""
    return path.name.rsplit(".", 2)[0]


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """A copy that may be read."""

    path: Path
    file: StoredFile
    """of the store, but with the copy's size and checksum"""

    def open(self) -> pa.NativeFile:
        """Raises OSError."""
        return pa.memory_map(str(self.path))


class Copy:
    """A copy that is being written. It counts once it is finished."""

    def __init__(self, path: Path, finished: set[str]) -> None:
        self._path = path
        self._hidden = path.with_name(f".{path.name}")
        self._finished = finished
        self._file: BinaryIO | None = None
        with self._giving_up():
            self._file = self._hidden.open("wb")

    def write(self, data: bytes | pa.Buffer) -> None:
        """Append data."""
        if self._file is not None:
            with self._giving_up():
                self._file.write(data)

    def finish(self, stored: int, own: int) -> None:
        """All data is written: checksums of the index in the store, and here."""
        if self._file is not None:
            with self._giving_up():
                self._file.close()
                self._hidden.rename(self._path.with_name(f"{self._path.name}.{stored:08x}.{own:08x}"))
                self._finished.add(self._path.name)

    def abort(self) -> None:
        """The copy will not be finished."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        with suppress(OSError):
            self._hidden.unlink()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """An error of the disk removes the copy."""
        try:
            yield
        except OSError as error:
            log.warning("no copy of %s is kept here: %s", self._path.name, error)
            self.abort()
