"""The blocks of code of a document, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

WALK = DOCS / "tutorial.md"
TESTING = DOCS / "guide" / "test.md"
KUBERNETES = DOCS / "operating" / "kubernetes.md"
OPERATIONS = DOCS / "operating" / "operations.md"
PODS = DOCS / "operating" / "pods.md"
PLUGIN = DOCS / "operating" / "kubectl.md"

GUIDE = [
    WALK,
    *(
        DOCS / "guide" / f"{name}.md"
        for name in (
            "sources", "event-time", "aggregates", "joins", "processes", "sql", "sinks", "write-a-source", "write-a-sink",
            "test", "run", "logs", "read-output", "change", "size", "move-state", "failures",
        )
    ),
    KUBERNETES,
    PODS,
    DOCS / "operating" / "checkpoints.md",
    DOCS / "rdma.md",
]  # fmt: skip
"""Pages whose blocks go on from those of the pages before them: a reader may skip a page, but not turn them around."""


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str

    @property
    def session(self) -> bool:
        """Python as it is typed, with what it answers."""
        return self.language == "python" and self.text.startswith(">>> ")

    @property
    def installs(self) -> bool:
        """Commands that fetch a package."""
        return self.language == "sh" and self.text.startswith("pip install ")


def blocks(document: Path) -> list[Block]:
    """All of them, in order."""
    return [
        Block(*found)
        for found in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    ]
