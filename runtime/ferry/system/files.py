"""Atomic replacement of files, and syncs to the disk.

Must never leave a partial file behind, nor a hidden temporary one.
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
    """Yields the temporary path `.NAME.tmp`, which replaces `path` when the block ends without an error.

    Readers see the previous file or the new one. One process at a time replaces a file; a leftover of a killed one is
    overwritten. `durable`: the content is synced before the rename, so that after a power loss the previous file or the
    new one exists; the new one is certain only after `sync(path.parent)`. `private`: readable by its owner alone.
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
    """Yields a temporary path, which becomes `path`, durably, when the block ends without an error, unless `path`
    exists then.

    Several processes may make the same file: the first one to finish wins, and the file never changes.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        yield hidden
        sync(hidden)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return
        except OSError:  # The file system has no hard links.
            if not path.exists():
                os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def sync(path: Path) -> int:
    """Sync a file or a folder to the disk; returns its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def sync_below(folder: Path) -> None:
    """Sync a folder, and all files and folders below it, including pages of mapped files.

    Files that vanish meanwhile are left out.
    """
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                sync_below(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                sync(Path(entry.path))
    sync(folder)


def path_of(given: Any, noun: str) -> str:
    """A path that a user has written. Raises SpecRefused for any other value."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if not path or not isinstance(path, str):
        raise SpecRefused(f"{noun} {given!r}; give its path")
    return path
