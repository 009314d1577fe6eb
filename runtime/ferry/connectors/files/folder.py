"""The folder of a source, listed repeatedly: its files, their flows, and the entries that are not input."""

from __future__ import annotations

import os

from ferry.connectors.files.flow_pattern import FlowPattern
from ferry.connectors.files.listing import Listing, instead, listed, named
from ferry.connectors.files.taken import File
from ferry.contract.errors import InputAway, Unreachable


class Folder:
    """The folder of a source. `pattern`: the pattern of its flows; None: a single flow, with Hive's folders."""

    def __init__(self, path: str, pattern: FlowPattern | None) -> None:
        self.path = path
        self.pattern = pattern
        self.passed: list[str] = []
        """Entries of the last listing that are not input."""
        self.unreadable: list[str] = []
        """Entries that could not be read, each with the remedy."""
        self._device: tuple[int, int] | None = None
        """Device and inode of the folder when it held files."""

    def listing(self) -> Listing:
        """The folder's current files. Raises Unreachable."""
        try:
            listing = listed(self.path, self.pattern.depth if self.pattern else None)
        except OSError as away:
            raise Unreachable(f"the folder {self.path} cannot be listed: {away.strerror or away}") from away
        for file in listing.files if self.pattern else ():
            self.flow(file)
        self.unreadable = [
            f"{os.path.join(self.path, entry)}; it is left out until it can be read" for entry in listing.unreadable
        ]
        self.passed = [*listing.passed, *(f"{name} (a folder not named COLUMN=VALUE)" for name in listing.closed)]
        return listing

    def is_the_same(self, listing: Listing) -> bool:
        """Whether this is the same folder as in the last listing with files, not the mount point of a missing volume."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        if listing.files:
            self._device = status.st_dev, status.st_ino
        return self._device == (status.st_dev, status.st_ino)

    def flow(self, file: File) -> str:
        """The flow of a file. Empty if the input is a single flow."""
        return self.pattern.flow_of(file.name) if self.pattern else ""

    def require_there(self) -> None:
        """Raise InputAway if the folder does not exist."""
        try:
            os.scandir(self.path).close()
        except (FileNotFoundError, NotADirectoryError) as gone:
            raise InputAway(f"no directory {self.path!r}; {instead(self.path)}") from gone
        except OSError:
            return  # The folder exists; `listing` retries it.

    def notice(self) -> str:
        """A notice about entries that are not read. Empty without such entries."""
        if not self.passed:
            return ""
        return f"{self.path}: not read: {named(self.passed)}; only files, and files in folders COLUMN=VALUE, are read"
