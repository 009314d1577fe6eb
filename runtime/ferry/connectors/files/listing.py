"""The listing of a source's directory: files, Hive's folders (`date=2024-01-01`), unreadable and ignored entries.

Must never raise for a single entry: the listing names the entry and goes on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from ferry.connectors.files.taken import File

NAMED_MAX = 5
"""Greatest number of entries that a text names. It counts the others."""


@dataclass(slots=True)
class Listing:
    """The entries of a directory at one time."""

    files: list[File] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Folders that may hold files of a flow."""
    unreadable: list[str] = field(default_factory=list)
    """Entries that cannot be read, each with the reason. They may be input."""
    passed: list[str] = field(default_factory=list)
    """Entries that are not input, each with the reason."""
    closed: list[str] = field(default_factory=list)
    """Folders with entries that are not read."""


def listed(directory: str, depth: int | None) -> Listing:
    """The entries of a directory. `depth`: number of folders above the files of flows; None: no flows, but Hive's folders.

    Raises OSError if the directory itself cannot be listed.
    """
    listing = Listing()
    _walk(directory, "", depth, listing)
    listing.files = sorted(set(listing.files))  # A listing that is not atomic may contain a file twice.
    return listing


def _walk(directory: str, folder: str, depth: int | None, listing: Listing) -> None:
    if not depth:
        listing.folders.append(folder)
    with os.scandir(os.path.join(directory, folder)) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            name = os.path.join(folder, entry.name)
            try:
                _look(directory, name, entry, depth, listing)
            except FileNotFoundError:
                continue  # The entry was removed after the folder was listed.
            except OSError as wrong:
                listing.unreadable.append(f"{name}: {wrong.strerror or wrong}")


def is_hidden(name: str) -> bool:
    """Whether an entry is hidden, as in Spark and Hive: _SUCCESS, _temporary, .part.crc, part._COPYING_."""
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _look(directory: str, name: str, entry: os.DirEntry[str], depth: int | None, listing: Listing) -> None:
    if entry.is_file():
        status = entry.stat()
        listing.files.append(File(status.st_mtime_ns, name, status.st_size))
    elif not entry.is_dir():
        dead = entry.is_symlink() and not os.path.exists(entry.path)
        listing.passed.append(f"{name} ({'a broken link' if dead else 'neither a file nor a folder'})")
    elif depth:
        _walk(directory, name, depth - 1, listing)
    elif depth is None and is_partition(entry.name):
        key = entry.name.partition("=")[0]
        if key in partitions(name):  # Also ends the walk of a link to a parent folder.
            listing.unreadable.append(f"{name}: its path names column {key!r} twice")
        else:
            _walk(directory, name, depth, listing)
    elif any(not is_hidden(inner) for inner in os.listdir(entry.path)):
        listing.closed.append(name)


def is_partition(folder: str) -> bool:
    """Whether a folder is a partition of Hive: its name COLUMN=VALUE is the value of a column in all its files."""
    return folder.find("=") > 0


def partitions(path: str) -> dict[str, str]:
    """The partition columns in a file's path, with their values as text."""
    folders = [part for part in path.split("/")[:-1] if is_partition(part)]
    return {_decoded(key): _decoded(value) for key, _, value in (part.partition("=") for part in folders)}


def _decoded(text: str) -> str:
    """The text with its percent escapes decoded, as in Spark and Hive."""
    data = unquote_to_bytes(text.encode("utf-8", "surrogateescape"))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def named(texts: list[str]) -> str:
    """The first texts, and the number of the others."""
    more = len(texts) - NAMED_MAX
    return ", ".join(texts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def instead(directory: str) -> str:
    """The remedy for a missing directory."""
    if "://" in directory:
        return "the source reads local and mounted folders; spark.readStream reads other stores"
    if os.path.isfile(directory):
        return "it is a file; give its folder"
    if any(sign in directory for sign in "*?["):
        return "give the folder alone: all its files are read"
    return "a file source needs a directory" + ("" if os.path.isabs(directory) else f"; looked for in {os.getcwd()}")
