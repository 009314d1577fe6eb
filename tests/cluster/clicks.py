"""Hand-made input for `pipelines/clicks.py`, and what has to come out of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PIPELINE = Path(__file__).parent / "pipelines" / "clicks.py"
WINDOW_MS = 10_000

Click = tuple[str | None, int, int]
"""user, event time in milliseconds, amount"""


def write(folder: Path, files: Sequence[Sequence[Click | str]]) -> None:
    """One file for every sequence, to be read in this order; text is written as it stands."""
    folder.mkdir(parents=True)
    for number, lines in enumerate(files):
        file = folder / f"{number:03d}.json"
        texts = [one if isinstance(one, str) else json.dumps(dict(zip(("user", "ts", "amount"), one))) for one in lines]
        file.write_text("\n".join(texts) + "\n")
        os.utime(file, ns=(10**18 + number * 10**9,) * 2)


def job(folder: Path, args: dict[str, Any]) -> Path:
    """A job file that reads one input file an epoch."""
    lines = "".join(f"      {name}: {json.dumps(value)}\n" for name, value in args.items())
    file = folder / "clicks.yaml"
    file.write_text(
        "apiVersion: ferry.dev/v1alpha1\nkind: StreamJob\nmetadata:\n  name: clicks\nspec:\n  workers: 2\n"
        f"  pipeline:\n    file: {PIPELINE}\n    args:\n{lines}"
        "  epoch:\n    maxRows: 1\n  state:\n    virtualNodes: 8\n    replicas: 1\n"
    )
    return file


def expected(clicks: Sequence[Click]) -> Counter[tuple[str | None, int, int, int]]:
    """(user, window_end, num, total) of clicks of which none is late."""
    sums: dict[tuple[str | None, int], list[int]] = {}
    for user, ts, amount in clicks:
        entry = sums.setdefault((user, ts // WINDOW_MS * WINDOW_MS + WINDOW_MS), [0, 0])
        entry[0] += 1
        entry[1] += amount
    return Counter((user, end, num, total) for (user, end), (num, total) in sums.items())


def row(document: dict[str, Any]) -> tuple[str | None, int, int, int]:
    """A row of the output as `expected` writes it."""
    return document["user"], document["window_end"], document["num"], document["total"]
