"""Copies of what an instance has written for checkpoints, on its own disk: a job that begins again reads them there.

The same parts, not compressed: a processor unpacks slower than a disk reads. Its name ends with the checksums of the file in
the store and of its own index, and its reader checks it as a file of the store, and goes there when it is not as it was
written: a copy is never on the disk for certain. Must never be why something fails: what cannot be copied is not.
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
"""Of the disk: with less of it free nothing is copied, for state needs it more."""


class Copies:
    """Those of one instance. Written and removed by one thread."""

    def __init__(self, directory: Path) -> None:
        """What is there is of an earlier life of the instance, and good."""
        self._directory = directory
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            for torn in directory.glob(".*"):
                torn.unlink()
        self._named = {_of(path) for path in directory.glob("[!.]*")}
        """By the last checkpoint."""
        self._fresh: set[str] = set()
        """Written since."""

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
        """A checkpoint names these: others go but for those of the one before, which is good until this one is complete.

        What was written since may be named by the next one.
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
    """What it is a copy of."""
    return path.name.rsplit(".", 2)[0]


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """One that may be read."""

    path: Path
    file: StoredFile
    """as the one in the store, but with its own size and checksum"""

    def open(self) -> pa.NativeFile:
        """Raises OSError."""
        return pa.memory_map(str(self.path))


class Copy:
    """One being written. It is one when it is finished."""

    def __init__(self, path: Path, finished: set[str]) -> None:
        self._path = path
        self._hidden = path.with_name(f".{path.name}")
        self._finished = finished
        self._file: BinaryIO | None = None
        with self._giving_up():
            self._file = self._hidden.open("wb")

    def write(self, data: bytes | pa.Buffer) -> None:
        """What follows."""
        if self._file is not None:
            with self._giving_up():
                self._file.write(data)

    def finish(self, stored: int, own: int) -> None:
        """All of it was written: checksums of the index in the store, and here."""
        if self._file is not None:
            with self._giving_up():
                self._file.close()
                self._hidden.rename(self._path.with_name(f"{self._path.name}.{stored:08x}.{own:08x}"))
                self._finished.add(self._path.name)

    def abort(self) -> None:
        """It will not be finished."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        with suppress(OSError):
            self._hidden.unlink()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """What the disk does not take is no copy."""
        try:
            yield
        except OSError as error:
            log.warning("no copy of %s is kept here: %s", self._path.name, error)
            self.abort()
