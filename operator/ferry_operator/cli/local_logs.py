"""The logs of the processes of a run on this machine: of a live run, or of an ended run whose directory still exists."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ferry.contract.errors import Refusal

LOOK_SECONDS = 0.2
"""Time between two reads of a followed log."""


def lines(directory: Path, worker: int | None, tail: int | None, follows: Callable[[], bool] | None) -> Iterator[bytes]:
    """The last `tail` lines, with line ends, of the log of the driver (`worker` None) or of a worker.

    `follows`: called repeatedly, whether more lines may come; None: do not follow. Raises Refusal if there is no log.
    """
    role = "driver" if worker is None else f"worker-{worker}"
    file = directory / "logs" / f"{role}.log"
    if not file.is_file():
        logs = ", ".join(sorted(log.stem for log in file.parent.glob("*.log"))) or "none"
        raise Refusal(f"{file}: there is no such log; there are: {logs}")
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
