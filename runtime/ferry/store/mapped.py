"""Files mapped into memory, and the care that they need.

A write to a mapped sparse file on a full disk kills the process with SIGBUS, so room is reserved before it is used
(`require_room`). The object never closes a mapping itself: an array may still refer to it; the last reference closes
it.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ferry.contract.errors import Exhausted

RESERVE_BYTES = 64 * 1024 * 1024
"""Room that is never used up, so that logs and commit records can still be written when state must not grow."""

LARGE_BYTES = 64 * 1024 * 1024
"""Files that grow beyond this get address space for their largest possible size."""
ROOM_BYTES = 64 * 1024 * 1024 * 1024
"""This size. Address space and the end of a sparse file cost nothing; 2,000 such files fit into a process."""

PAGE_BYTES = mmap.PAGESIZE
_MADV_PAGEOUT = 21  # Linux 5.4; Python 3.11 does not name it.
DISK = ThreadPoolExecutor(1, "disk")
"""For operations that wait for a disk, a tenth of a second to unlink a file or punch a hole, and that no caller waits
for."""


class TooManyFiles(Exhausted):
    """The process has more open or mapped files than the system allows."""


def require_room(directory: Path, needed: int) -> None:
    """Raise Exhausted unless `needed` bytes and the reserve are free below `directory`."""
    free = _free(directory)
    if free < needed + RESERVE_BYTES:
        raise Exhausted(
            f"{directory}: {needed} bytes are needed and {RESERVE_BYTES} are kept in reserve, but only {free} are free;"
            " give the state's volume more room, or move virtual nodes away"
        )


def has_room(directory: Path, needed: int) -> bool:
    """Whether `require_room` would pass: for writes that can wait."""
    return _free(directory) >= needed + RESERVE_BYTES


def _free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def open_mapped(path: Path, size: int | None = None) -> mmap.mmap:
    """Map a file, shared and writable; with `size` it is created or extended (sparse) to that many bytes.

    Raises Exhausted when there is no room, TooManyFiles at the hard limit of file descriptors or the bound of mappings.
    """
    try:
        return _open(path, size)
    except OSError as e:
        if e.errno == errno.EMFILE:
            # A mapping keeps its descriptor. The soft limit (often 1,024) exists for programs that use select().
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                return open_mapped(path, size)
            raise TooManyFiles(f"{path}: no file descriptor left of {hard}; raise the limit (ulimit -n)") from e
        if e.errno == errno.ENOMEM:
            raise no_maps_left(path) from e
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Exhausted(f"{path}: no room for {size} bytes: {e}") from e
        raise


def open_growing(path: Path, size: int) -> mmap.mmap:
    """As `open_mapped`, for a file that grows: a large one gets a mapping larger than asked for.

    Remapping a file takes time by its used pages: the system unmaps each page, and maps it again at the next access. A
    large file is never remapped. Bytes beyond `size` must not be used before `require_room`.
    """
    if size > LARGE_BYTES:
        try:
            return open_mapped(path, max(size, ROOM_BYTES))
        except Exhausted:  # The system limits files or addresses further.
            pass
    return open_mapped(path, size)


def read_singly(mapping: mmap.mmap, begin: int = 0) -> None:
    """Disable read-ahead from `begin` on, where no byte is written yet: the system reads only the page that is
    accessed.

    Read-ahead loads the neighbours, which are holes: with 8 MiB of it, the first write to a page took 20 ms.
    """
    begin -= begin % PAGE_BYTES
    if begin < len(mapping):
        _advise(mapping, mmap.MADV_RANDOM, begin, len(mapping) - begin)


def _advise(mapping: mmap.mmap, advice: int, begin: int, size: int) -> None:
    # This takes one more mapping, whose number per process is limited.
    with suppress(OSError):
        mapping.madvise(advice, begin, size)


def no_maps_left(path: Path) -> TooManyFiles:
    """The meaning of ENOMEM for a mapping: memory itself is not allocated before it is used."""
    return TooManyFiles(f"{path}: the system maps no more files into this process; raise the sysctl vm.max_map_count")


def _open(path: Path, size: int | None) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if size is not None else 0), 0o600)
    try:
        if size is not None and size > os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def reserved(path: Path, size: int) -> mmap.mmap:
    """Map a file of `size` bytes that are all allocated on the disk, so that a write to them never fails.

    Raises Exhausted without room.
    """
    missing = size - allocated_bytes(path)
    if missing > 0:
        require_room(path.parent, missing)
    mapping = open_mapped(path, size)
    if missing > 0:
        read_singly(mapping)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as e:
        raise Exhausted(f"{path}: no room for {size} bytes: {e}") from e
    finally:
        os.close(descriptor)
    return mapping


def page_out(mapping: mmap.mmap, used: int) -> None:
    """Ask the system to write the mapping's pages to its file and free them; without effect on tmpfs.

    The first `used` bytes may be read ahead from now on: the next access often needs all of them.
    """
    _advise(mapping, mmap.MADV_NORMAL, 0, used)
    try:
        mapping.madvise(_MADV_PAGEOUT)
    except OSError:
        mapping.madvise(mmap.MADV_DONTNEED)


def allocated_bytes(path: Path) -> int:
    """Bytes that the file takes on disk; holes take none."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0
