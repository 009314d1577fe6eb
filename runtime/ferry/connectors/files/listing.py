"""What a directory of input holds: files, folders of Hive (`date=2024-01-01`), and what cannot be read, or is not read.

Must never raise for one entry: it is named, and the others are listed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from ferry.connectors.files.taken import File

NAMED_MAX = 5
"""Entries that a text names; of more it says how many there are."""


@dataclass(slots=True)
class Listing:
    """Of one look at a directory."""

    files: list[File] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Those that may hold files of a flow."""
    unreadable: list[str] = field(default_factory=list)
    """Entries that cannot be looked at, each with the reason: they may be input."""
    passed: list[str] = field(default_factory=list)
    """Entries that are no input, each with the reason."""
    closed: list[str] = field(default_factory=list)
    """Folders with something in them, which is not read."""


def listed(directory: str, depth: int | None) -> Listing:
    """The entries of a directory. `depth`: how many folders deep the files of flows are; None: there are none.

    Raises OSError when the directory itself cannot be listed.
    """
    found = Listing()
    _walk(directory, "", depth, found)
    found.files = sorted(set(found.files))  # Where listings are not atomic, a file may be in one twice.
    return found


def _walk(directory: str, folder: str, depth: int | None, found: Listing) -> None:
    if not depth:
        found.folders.append(folder)
    with os.scandir(os.path.join(directory, folder)) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            name = os.path.join(folder, entry.name)
            try:
                _look(directory, name, entry, depth, found)
            except FileNotFoundError:
                continue  # It went away between listing and looking at it.
            except OSError as wrong:
                found.unreadable.append(f"{name}: {wrong.strerror or wrong}")


def is_hidden(name: str) -> bool:
    """Whether an entry is never read, as in Spark and Hive: _SUCCESS, _temporary, .part.crc, part._COPYING_."""
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _look(directory: str, name: str, entry: os.DirEntry[str], depth: int | None, found: Listing) -> None:
    if entry.is_file():
        status = entry.stat()
        found.files.append(File(status.st_mtime_ns, name, status.st_size))
    elif not entry.is_dir():
        dead = entry.is_symlink() and not os.path.exists(entry.path)
        found.passed.append(f"{name} ({'a link to nothing' if dead else 'neither a file nor a folder'})")
    elif depth:
        _walk(directory, name, depth - 1, found)
    elif depth is None and is_partition(entry.name):
        key = entry.name.partition("=")[0]
        if key in partitions(name):  # Also where a link leads back up: the walk has an end.
            found.unreadable.append(f"{name}: its path names column {key!r} twice")
        else:
            _walk(directory, name, depth, found)
    elif any(not is_hidden(inner) for inner in os.listdir(entry.path)):
        found.closed.append(name)


def is_partition(folder: str) -> bool:
    """Whether a folder is one of Hive's: its name says a value that a column has in all its files."""
    return folder.find("=") > 0


def partitions(path: str) -> dict[str, str]:
    """Columns and their values, as text, that the folders of a file's path name."""
    folders = [part for part in path.split("/")[:-1] if is_partition(part)]
    return {_decoded(key): _decoded(value) for key, _, value in (part.partition("=") for part in folders)}


def _decoded(text: str) -> str:
    """Without the percent signs that stand for letters that names cannot have. Spark and Hive decode so."""
    data = unquote_to_bytes(text.encode("utf-8", "surrogateescape"))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def named(texts: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - NAMED_MAX
    return ", ".join(texts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def instead(directory: str) -> str:
    """What to do about the name of a directory that is not there."""
    if "://" in directory:
        return "folders of this machine are read, also mounted ones; spark.readStream reads others"
    if os.path.isfile(directory):
        return "it is a file, and the source needs its folder"
    if any(sign in directory for sign in "*?["):
        return "name the folder alone: all of its files are read"
    return "a file source needs one" + ("" if os.path.isabs(directory) else f"; it was looked for in {os.getcwd()}")
