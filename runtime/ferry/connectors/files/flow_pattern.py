"""Which flow a file belongs to: a pattern for the paths of files below a source's directory, with a place for the flow."""

from __future__ import annotations

import re

from ferry.contract.errors import Fault, SpecRefused

PLACE = "{flow}"


class FlowPattern:
    """Such as "{flow}/*.parquet" or "{flow}-*.json"; `*` is any text without a slash, `{flow}` the shortest that fits."""

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
                f'flow={text!r}: a pattern for files below the directory is needed, with {PLACE} once, such as "{PLACE}/*" '
                f'for a flow a folder, or "{PLACE}-*.parquet"; what begins with "_" or "." is never read'
            )
        self.text = text
        self.depth = len(parts) - 1
        """How many folders deep the files are."""
        self._file = _compiled(text)
        self._folder = _compiled(folders) if PLACE in folders else None

    def flow_of(self, path: str) -> str:
        """The flow of a file. Raises Fault for one that does not fit: it must not be lost, nor taken for another flow's."""
        if match := self._file.fullmatch(path):
            return match["flow"]
        raise Fault(f"{path} does not fit flow={self.text!r}: give it a name that does, or remove it")

    def flow_of_folder(self, path: str) -> str | None:
        """The flow of all files of a folder, which there may be none of yet; None: their names say it."""
        match = self._folder.fullmatch(path) if self._folder else None
        return match["flow"] if match else None


def _compiled(text: str) -> re.Pattern[str]:
    words = {"*": "[^/]*", PLACE: "(?P<flow>[^/]+?)"}
    parts = re.split(r"(\*|\{flow\})", text)
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
