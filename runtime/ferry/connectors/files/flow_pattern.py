"""The flow of a file: a pattern for paths below a source's directory, with a placeholder for the flow's name."""

from __future__ import annotations

import re

from ferry.contract.errors import Fault, SpecRefused

PLACE = "{flow}"
"""The placeholder for the flow's name."""


class FlowPattern:
    """A pattern such as "{flow}/*.parquet" or "{flow}-*.json".

    `*` matches any text without a slash, `{flow}` the shortest such text of at least one character.
    """

    def __init__(self, text: str) -> None:
        folders, _, _ = str(text).rpartition("/")
        parts = str(text).split("/")
        if (
            not isinstance(text, str)
            or text.count(PLACE) != 1
            or not all(parts)
            or any(part[0] in "_." for part in parts)
        ):
            raise SpecRefused(
                f'flow={text!r}: give a pattern for files below the directory, with {PLACE} once, such as "{PLACE}/*" for '
                f'a flow per folder, or "{PLACE}-*.parquet"; names that begin with "_" or "." are never read'
            )
        self.text = text
        self.depth = len(parts) - 1
        """Number of folders in the path of a file."""
        self._file = _compiled(text)
        self._folder = _compiled(folders) if PLACE in folders else None

    def flow_of(self, path: str) -> str:
        """The flow of a file. Raises Fault for a file that does not fit the pattern, so that no record is lost."""
        if match := self._file.fullmatch(path):
            return match["flow"]
        raise Fault(f"{path} does not fit flow={self.text!r}: give it a name that does, or remove it")

    def flow_of_folder(self, path: str) -> str | None:
        """The flow of a folder, which may still be empty. None if the files' names determine the flow."""
        match = self._folder.fullmatch(path) if self._folder else None
        return match["flow"] if match else None


def _compiled(text: str) -> re.Pattern[str]:
    words = {"*": "[^/]*", PLACE: "(?P<flow>[^/]+?)"}
    parts = re.split(r"(\*|\{flow\})", text)
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
