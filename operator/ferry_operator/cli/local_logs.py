"""The log of a process of a run on this machine: of a run that goes on, or of one that has ended and left its directory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ferry.contract.errors import Refusal

LOOK_SECONDS = 0.2
"""Between two looks at a log that is followed."""


def lines(directory: Path, worker: int | None, tail: int | None, follows: Callable[[], bool] | None) -> Iterator[bytes]:
    """Lines of the log of the driver (`worker` None) or of a worker, with their ends; the last `tail` ones.

    `follows`: whether more may come, asked again and again; None: what is there is all. Raises Refusal when there is no log.
    """
    role = "driver" if worker is None else f"worker-{worker}"
    file = directory / "logs" / f"{role}.log"
    if not file.is_file():
        there = ", ".join(sorted(one.stem for one in file.parent.glob("*.log"))) or "none"
        raise Refusal(f"{file}: there is no such log; there are: {there}")
    return _lines(file, tail, follows)


def _lines(file: Path, tail: int | None, follows: Callable[[], bool] | None) -> Iterator[bytes]:
    with open(file, "rb") as log:
        yield from log if tail is None else deque(log, tail)
        while follows is not None:
            more = follows()
            yield from log
            if not more:
                return
            time.sleep(LOOK_SECONDS)
