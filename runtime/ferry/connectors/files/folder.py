"""A folder of input as it is looked at again and again: its files, the flow of each, and entries that are no input."""

from __future__ import annotations

import os

from ferry.connectors.files.flow_pattern import FlowPattern
from ferry.connectors.files.listing import Listing, instead, listed, named
from ferry.connectors.files.taken import File
from ferry.contract.errors import InputAway, Unreachable


class Folder:
    """`pattern`: which folders have files, and the flow of each; None: one flow, and folders of Hive."""

    def __init__(self, path: str, pattern: FlowPattern | None) -> None:
        self.path = path
        self.pattern = pattern
        self.passed: list[str] = []
        """Entries that are no input, as of the last look."""
        self.unreadable: list[str] = []
        """Entries that could not be looked at, each with the remedy."""
        self._device: tuple[int, int] | None = None
        """Device and inode of the folder when it held files."""

    def listing(self) -> Listing:
        """The files of the folder as they are now. Raises Unreachable."""
        try:
            found = listed(self.path, self.pattern.depth if self.pattern else None)
        except OSError as away:
            raise Unreachable(f"the folder {self.path} cannot be listed: {away.strerror or away}") from away
        for file in found.files if self.pattern else ():
            self.flow(file)
        self.unreadable = [
            f"{os.path.join(self.path, entry)}; it is left out until it can be read" for entry in found.unreadable
        ]
        self.passed = [*found.passed, *(f"{name} (a folder that is not named COLUMN=VALUE)" for name in found.closed)]
        return found

    def is_the_same(self, listing: Listing) -> bool:
        """Whether it is the folder that held files when it was looked at last: where nothing is mounted there is another."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        if listing.files:
            self._device = status.st_dev, status.st_ino
        return self._device == (status.st_dev, status.st_ino)

    def flow(self, file: File) -> str:
        """The flow of a file; empty: the input is one flow."""
        return self.pattern.flow_of(file.name) if self.pattern else ""

    def require_there(self) -> None:
        """Raise InputAway if there is no such folder."""
        try:
            os.scandir(self.path).close()
        except (FileNotFoundError, NotADirectoryError) as gone:
            raise InputAway(f"no directory {self.path!r}; {instead(self.path)}") from gone
        except OSError:
            return  # It is there, and is waited for.

    def notice(self) -> str:
        """What the user should know of a folder that is read without an error; empty: nothing."""
        if not self.passed:
            return ""
        return f"{self.path}: not read: {named(self.passed)}; only files, and those of folders COLUMN=VALUE, are"
