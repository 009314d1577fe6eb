"""The blocks of code of a document, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WALK = ROOT / "docs" / "jobs.md"


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str

    @property
    def session(self) -> bool:
        """Python as it is typed, with what it answers."""
        return self.language == "python" and self.text.startswith(">>> ")

    @property
    def cluster(self) -> bool:
        """Commands for a Kubernetes."""
        return self.language == "sh" and self.text.startswith("kubectl ")


def blocks(document: Path) -> list[Block]:
    """All of them, in order."""
    return [
        Block(*found)
        for found in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    ]
