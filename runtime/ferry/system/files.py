"""Files that are replaced whole or not at all, and what is on the disk for certain.

Must never leave half a file behind, nor the hidden one that it would have become.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ferry.contract.errors import SpecRefused


@contextmanager
def replacing(path: Path, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """Where to write what will be at `path` when the block ends without an error: a hidden file beside it, `.NAME.tmp`.

    Readers see the file before or the new one. One process at a time replaces a file; what one that was killed has left
    is overwritten. `durable`: the content is on the disk before it has its name, so that a machine that loses its power
    keeps the file before or the new one; that it is the new one is only certain after `sync(path.parent)`.
    `private`: readable by its owner alone.
    """
    hidden = path.with_name(f".{path.name}.tmp")
    try:
        if private:
            hidden.unlink(missing_ok=True)
            hidden.touch(mode=0o600, exist_ok=False)
        yield hidden
        if durable:
            sync(hidden)
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Where to write what will be at `path`, durably, when the block ends without an error, unless something is there then.

    Several processes may make the same file: the first one that is ready has made it, and it never changes.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        yield hidden
        sync(hidden)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return
        except OSError:  # A file system without links.
            if not path.exists():
                os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def sync(path: Path) -> int:
    """Have a file or a folder on the disk before anything says that it is there; its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def sync_below(folder: Path) -> None:
    """Have a folder, and all files and folders below it, on the disk; pages of files that are mapped, too.

    What disappears meanwhile is left out.
    """
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                sync_below(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                sync(Path(entry.path))
    sync(folder)


def path_of(given: Any, what: str) -> str:
    """A path that a user has written. Raises SpecRefused for what is none."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if not path or not isinstance(path, str):
        raise SpecRefused(f"{what} {given!r}; give its path")
    return path
