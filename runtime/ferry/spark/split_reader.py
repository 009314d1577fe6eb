"""Offsets of Ferry's sources, and the splits of each epoch between two offsets.

It plans ranges; tasks read or generate the records. The driver's query keeps the offsets, or Spark's offset log if the job
has Spark's own sources. Must never import PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ferry.connectors.files.directory import DirectorySplits
from ferry.connectors.poll.source import PollSplits
from ferry.connectors.splits import WHOLE, LagSplits, Splits, has_flows
from ferry.connectors.users import as_kept, is_ferrys, source_code
from ferry.contract.errors import Fault
from ferry.contract.user_code import at
from ferry.spark.control_rows import FLOWS, FLUSH, TICK

SLOTS = "slots"
"""File of the run's directory: the number of task slots, if executors join and leave."""

TICKS = "tick"
"""File of the run's directory: the number of ticks, for the source's process."""

TAKEN = "files"
"""Folder beside Spark's offsets: the processed files of directory sources."""


class SplitsReader:
    """Offsets: {"positions": {source: position}, "tick": n, "flushed": bool}.

    With "left" for sources that a deploy has removed: they go on from there when they come back. The first offset with a
    source that was added has its first position, so the source has records from the epoch after it on.
    """

    def __init__(
        self,
        sources: dict[str, Splits],
        max_rows: int,
        tasks: int,
        directory: Path,
        finite: bool,
        first: Mapping[str, int] = MappingProxyType({}),
        ticks: Callable[[], int] | None = None,
        running: Callable[[str], AbstractContextManager[None]] = lambda text: nullcontext(),
    ) -> None:
        """`first`: sources that are read to their ends before all others, with their rows per epoch.

        `directory`: of the run. `ticks`: a number that grows with every tick; None: the file `tick` of the run holds it.
        `running`: around each call of a user's source.
        """
        self._sources = sources
        self._first = first
        self._finite = finite
        self._max_rows = max_rows
        self._tasks = tasks
        self._running = running
        self._directory = directory
        self._ticks = partial(_ticks, directory / TICKS) if ticks is None else ticks
        self.asked = "a source"
        """The source that was called last, for messages."""
        self.follow(sources)

    def follow(self, sources: dict[str, Splits]) -> None:
        """Read these sources from now on."""
        self._sources = dict(sources)
        for name, source in self._folders():
            source.keep(self._directory / "checkpoint" / TAKEN, name)

    def initial_offset(self) -> dict[str, Any]:
        """The offset before the first record."""
        positions = {name: self._ask(name, "start") for name in self._sources}
        return {"positions": positions, "tick": 0, "flushed": False}

    def latest_offset(self, start: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
        """An offset about max_rows further on; the same offset when there are no records, no ticks and no flush.

        `before`: where the epoch begins that ends at `start`.
        """
        if start["positions"].keys() != self._sources.keys():
            return self._changed(start, before or start)
        now = start["positions"]
        later = self._later(now)
        if later != now:
            return {**start, "positions": later}
        if self._finite and not start["flushed"] and all(self.ended(name, now) for name in self._sources):
            return {**start, "flushed": True}
        return self.ticked(start)

    def _changed(self, start: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        """The same offset for other sources.

        The epoch before has another program than its plan: no operator has read its records of a removed source.
        """
        known = {**start.get("left", {}), **start["positions"]}
        positions = {name: known[name] if name in known else self._ask(name, "start") for name in self._sources}
        # A source that is in no plan of this epoch was removed before: its records are read when it returns.
        unread = {**known, **{n: at for n, at in before["positions"].items() if n in start["positions"]}}
        left = {name: unread[name] for name in known if name not in positions}
        return {**start, "positions": positions, "left": left, "flushed": False}

    def ticked(self, start: dict[str, Any]) -> dict[str, Any]:
        """The same positions with new ticks; the same offset if no tick was requested."""
        return {**start, "tick": max(start["tick"], self._ticks())}

    def _later(self, now: dict[str, Any]) -> dict[str, Any]:
        """The next positions: of `first` sources until they end, then of all. Sources with records share max_rows evenly."""
        if first := [name for name in self._first if name in now and not self.ended(name, now)]:
            return now | {name: self._begun(name, now[name]) for name in first}
        groups: dict[Any, list[str]] = {}
        for name, source in self._sources.items():
            with source_code(f"counted_with of source {name!r}", source):
                groups.setdefault(getattr(source, "counted_with", name), []).append(name)
        later, active, before = dict(now), list(groups.values()), 0
        while len(active) != before:
            before = len(active)
            rows = max(self._max_rows // max(before, 1), 1)
            for name in (name for group in active for name in group):
                later[name] = self._ask(name, "latest", now[name], rows)
            active = [group for group in active if any(later[name] != now[name] for name in group)]
        return later

    def _begun(self, name: str, now: Any) -> Any:
        later = self._ask(name, "latest", now, self._first[name])
        if self._first[name] == WHOLE and not self.ended(name, {name: later}):
            raise Fault(
                f"source {name!r}, from which an operator's state begins, did not end with the first epoch; Spark's own "
                "sources cannot wait for the rest of it"
            )
        return later

    def lags(self, offset: dict[str, Any]) -> dict[str, int]:
        """The number of records behind an offset, for the sources that know it."""
        now = offset["positions"]
        known = [name for name, source in self._sources.items() if isinstance(source, LagSplits) and name in now]
        return {name: self._ask(name, "lag", now[name]) for name in known}

    def _ask(self, name: str, method: str, *arguments: Any) -> Any:
        """The answer of a source; for a user's source after a round trip through JSON. Raises UserCodeFailed."""
        source = self._sources[name]
        self.asked = f"source {name!r}" + (f" ({source.directory})" if isinstance(source, DirectorySplits) else "")
        if is_ferrys(source) and not isinstance(source, PollSplits):
            return getattr(source, method)(*arguments)
        call = f"{method}() of source {name!r}"
        with self._running(f"{call}{at(type(source))} has run for"), source_code(call, source):
            return as_kept(getattr(source, method)(*arguments), method)

    def ended(self, name: str, now: Mapping[str, Any]) -> bool:
        """Whether a source has ended at these positions."""
        return bool(self._ask(name, "ended", now[name]))

    def problems(self) -> list[str]:
        """Parts of folders that could not be read at the last listing; the other parts are read."""
        return [f"source {name!r}: {problem}" for name, source in self._folders() for problem in source.problems]

    def notice(self) -> str:
        """Contents of folders that are no input; empty: all of it is input."""
        return "; ".join(f"source {name!r}: {text}" for name, source in self._folders() if (text := source.notice()))

    def failed(self, end: dict[str, Any], reason: str) -> None:
        """The epoch with this end could not be read, with this reason: the named file may be fixed later."""
        for name, source in self._folders():
            if name in end["positions"]:
                source.failed(end["positions"][name], reason)

    def _folders(self) -> list[tuple[str, DirectorySplits]]:
        return [(name, source) for name, source in self._sources.items() if isinstance(source, DirectorySplits)]

    def shares(self, start: dict[str, Any], end: dict[str, Any]) -> list[list[tuple[str, str]]]:
        """The splits between two offsets, distributed over the tasks."""
        tasks = slots(self._directory) or self._tasks
        shares: list[list[tuple[str, str]]] = [[] for _ in range(tasks)]
        for name, source in self._sources.items():
            if name not in end["positions"]:
                continue  # A deploy has added it after this epoch was planned.
            b = end["positions"][name]
            a = start["positions"].get(name, b)
            if a != b:
                for i, split in enumerate(self._ask(name, "plan", a, b, tasks)):
                    shares[i % tasks].append((name, json.dumps(split)))
            with source_code(f"has_flows of source {name!r}", source):
                flowing = has_flows(source)
            if flowing:
                flows = self._ask(name, "flows", b)
                shares[0].append(("", FLOWS + json.dumps([name, flows], sort_keys=True)))
        if end["flushed"] and not start["flushed"]:
            shares[0].append(("", FLUSH))
        if not any(shares):
            shares[0].append(("", TICK))
        return [rows for rows in shares if rows]


def slots(directory: Path) -> int:
    """The number of task slots if executors join and leave; 0: not known."""
    try:
        return int((directory / SLOTS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _ticks(file: Path) -> int:
    try:
        return int(file.read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0
