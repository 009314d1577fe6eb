"""One source for all of Ferry's splits of a job, and for ticks; and what an epoch has of it.

It hands out ranges; the tasks read or make the records themselves. Whoever runs epochs keeps the positions: the driver's own
loop, or, beside Spark's own sources, Spark in its offset log. A tick is an epoch without data that the coordinator asks for;
when every source is finite and has ended, one last row says so, and everything fires.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ferry.contract.errors import Fault
from ferry.contract.limits import SLOW_MS
from ferry.contract.notes import RecordPlace
from ferry.spark.attempts import died_before
from ferry.spark.cuts import without
from ferry.spark.directory import DirectorySplits
from ferry.spark.polling import PollSplits
from ferry.spark.splits import WHOLE, LagSplits, RangeSplits, Splits, has_flows
from ferry.spark.user_functions import as_kept, at, is_ferrys, source_code
from ferry.system.files import replacing

T = TypeVar("T")

SCHEMA = "source string, split string"
TICK, FLUSH, FLOWS = "tick", "flush", "flows "
"""What rows without a source say; the last one goes on with (source, its flows) as JSON."""

SLOTS = "slots"
"""File of the run's directory: how many task slots there are, where executors come and go."""

WAIT_SECONDS = 1.0
"""Between two tries to read what Spark cannot wait for."""

TICKS = "tick"
"""File of the run's directory for the source's process."""

PROBLEM = "problem"
"""File of the run's directory: what the source's process waits for, where Spark plans the epochs."""

TAKEN = "files"
"""Folder beside Spark's offsets: which files of directories were taken."""


class Share(InputPartition):
    """What one task reads: (source, split as JSON) rows; an empty source name carries a tick, the flush or flows."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        super().__init__(rows)
        self.rows = rows


class SplitsReader(DataSourceStreamReader):
    """Offsets: {"positions": {source: position}, "tick": n, "flushed": bool}."""

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
        """`first`: sources that are read to their ends before any other, and how many rows of each an epoch has.

        `directory`: of the run. `ticks`: a number that grows with every tick; None: file `tick` in the directory holds it.
        `running`: around each call of a source of the user's own.
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
        """Which one was asked last, for people."""
        for name, source in self._folders():
            source.keep(directory / "checkpoint" / TAKEN, name)

    def initialOffset(self) -> dict[str, Any]:
        """Before the first record."""
        positions = {name: self._ask(name, "start") for name in self._sources}
        return {"positions": positions, "tick": 0, "flushed": False}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """About max_rows further on; the same offset when there is nothing to do."""
        now = start["positions"]
        later = self._later(now)
        if later != now:
            return {**start, "positions": later}
        if self._finite and not start["flushed"] and all(self._ended(name, now) for name in self._sources):
            return {**start, "flushed": True}
        return self.ticked(start)

    def ticked(self, start: dict[str, Any]) -> dict[str, Any]:
        """The same positions, if somebody has asked for an epoch without data; the same offset if nobody has."""
        return {**start, "tick": max(start["tick"], self._ticks())}

    def _later(self, now: dict[str, Any]) -> dict[str, Any]:
        """Positions further on: of what is read first, then of all that has something new, which shares max_rows evenly."""
        if first := [name for name in self._first if not self._ended(name, now)]:
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
        if self._first[name] == WHOLE and not self._ended(name, {name: later}):
            raise Fault(
                f"source {name!r}, from which an operator's state begins, did not end with the first epoch; Spark's own "
                "sources cannot wait for the rest of it"
            )
        return later

    def lags(self, offset: dict[str, Any]) -> dict[str, int]:
        """How many records wait behind an offset, of sources that know."""
        now = offset["positions"]
        known = [name for name, source in self._sources.items() if isinstance(source, LagSplits)]
        return {name: self._ask(name, "lag", now[name]) for name in known}

    def _ask(self, name: str, method: str, *given: Any) -> Any:
        """What a source answers; of a user's own, as JSON has it. Raises UserCodeFailed when that fails."""
        source = self._sources[name]
        self.asked = f"source {name!r}" + (f" ({source.directory})" if isinstance(source, DirectorySplits) else "")
        if is_ferrys(source) and not isinstance(source, PollSplits):
            return getattr(source, method)(*given)
        what = f"{method}() of source {name!r}"
        with self._running(f"{what}{at(type(source))} has run for"), source_code(what, source):
            return as_kept(getattr(source, method)(*given), method)

    def _ended(self, name: str, now: Mapping[str, Any]) -> bool:
        return bool(self._ask(name, "ended", now[name]))

    def problems(self) -> list[str]:
        """What of folders could not be read at the last look, while the rest goes on."""
        return [f"source {name!r}: {one}" for name, source in self._folders() for one in source.problems]

    def notice(self) -> str:
        """What of folders is no input; empty: nothing."""
        return "; ".join(f"source {name!r}: {text}" for name, source in self._folders() if (text := source.notice()))

    def failed(self, end: dict[str, Any], reason: str) -> None:
        """The epoch that ends here could not be read, for this reason: what it names may be mended."""
        for name, source in self._folders():
            source.failed(end["positions"][name], reason)

    def _folders(self) -> list[tuple[str, DirectorySplits]]:
        return [(name, source) for name, source in self._sources.items() if isinstance(source, DirectorySplits)]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Share]:
        """Splits dealt out to the tasks."""
        tasks = slots(self._directory) or self._tasks
        shares: list[list[tuple[str, str]]] = [[] for _ in range(tasks)]
        for name, source in self._sources.items():
            a, b = start["positions"][name], end["positions"][name]
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
        return [Share(rows) for rows in shares if rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        assert isinstance(partition, Share)
        yield rows_of(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to clean."""


class WaitingReader(SplitsReader):
    """Of a process of Spark's: what cannot be read is waited for, and a file says so, for an error would end the query.

    The file also says which call of a user's own source takes long.
    """

    def __init__(
        self,
        sources: dict[str, Splits],
        max_rows: int,
        tasks: int,
        directory: Path,
        first: Mapping[str, int] = MappingProxyType({}),
        slow_ms: int = SLOW_MS,
    ) -> None:
        super().__init__(sources, max_rows, tasks, directory, False, first, running=self._watched)
        self._slow_seconds = slow_ms / 1000

    @contextmanager
    def _watched(self, text: str) -> Iterator[None]:
        watch = threading.Timer(self._slow_seconds, self._say, (f"{text} more than {self._slow_seconds:g} s",))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()
            watch.join()

    def initialOffset(self) -> dict[str, Any]:
        """As soon as all sources say where they begin."""
        return self._waited(super().initialOffset)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The same offset, but for ticks, while a source cannot be read.

        What states begin from is waited for here: Spark's own sources would go on without it.
        """
        ask = partial(super().latestOffset, start, limit)
        now = start["positions"]
        if any(not self._ended(name, now) for name in self._first):
            later = self._waited(ask)
        else:
            try:
                later = ask()
            except Fault as wrong:
                self._say(str(wrong))
                return self.ticked(start)
        self._say("; ".join(self.problems()))
        return later

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Share]:
        """As soon as all sources can say what is between these offsets."""
        return self._waited(lambda: super(WaitingReader, self).partitions(start, end))

    def _waited(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except Fault as wrong:
                self._say(str(wrong))
                time.sleep(WAIT_SECONDS)

    def _say(self, text: str) -> None:
        file = self._directory / PROBLEM
        if text:
            with replacing(file) as new:
                new.write_text(text)
        else:
            file.unlink(missing_ok=True)


def slots(directory: Path) -> int:
    """How many task slots there are where executors come and go; 0: nobody has said."""
    try:
        return int((directory / SLOTS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _ticks(file: Path) -> int:
    try:
        return int(file.read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


class Batch:
    """What an epoch has: shares for tasks that read them, or the rows of `ferry` for what passes through Spark."""

    def __init__(
        self,
        spark: SparkSession,
        shares: Sequence[Sequence[tuple[str, str]]],
        again: Callable[[str], Sequence[Sequence[tuple[str, str]]]] | None = None,
    ) -> None:
        """Of shares that the driver has planned. `again`: plans them once more, when they could not be read."""
        self._spark = spark
        self._shares = [list(share) for share in shares]
        self._again = again

    def failed(self, reason: str) -> None:
        """Tasks could not read it, for this reason: what was mended since is taken as it is now. Raises Fault."""
        if self._again is not None:
            self._shares = [list(share) for share in self._again(reason)]
            self.__dict__.pop("frame", None)

    def shares(self) -> list[list[tuple[str, str]]]:
        """Rows (source, split) for one task each."""
        return self._shares

    def without(self, records: Iterable[RecordPlace], sources: Mapping[str, Any]) -> Batch:
        """The same, but for these records, which are set aside."""
        numbers: dict[str, dict[str, list[int]]] = {}
        for name, split, number in records:
            numbers.setdefault(name, {}).setdefault(split, []).append(number)
        if not numbers:
            return self
        shares = [
            [
                (name, one)
                for name, split in share
                for one in (
                    without(split, numbers[name], isinstance(sources.get(name), RangeSplits))
                    if name in numbers
                    else [split]
                )
            ]
            for share in self.shares()
        ]
        return Batch(self._spark, shares)

    @cached_property
    def frame(self) -> DataFrame:
        """The same as a DataFrame with a partition for each share, and a column for each of Spark's own sources."""
        return shares_frame(self._spark, self._shares)


class QueryBatch(Batch):
    """Of a streaming query, which has Spark's own sources beside those of Ferry."""

    def __init__(self, frame: DataFrame) -> None:
        super().__init__(frame.sparkSession, ())
        self.frame = frame

    def shares(self) -> list[list[tuple[str, str]]]:
        """As Spark has planned them for a query of `ferry` rows alone.

        Reads the partitions of the plan instead of running it: every task would otherwise need a second Python worker, only
        to be handed its own share. The bytes are Spark's own, of a `Share` that its process on this machine has planned.
        """
        partitions = self.frame._jdf.queryExecution().toRdd().partitions()
        spark = CPickleSerializer()
        return [spark.loads(bytes(p.inputPartition().get().pickedPartition())).rows for p in partitions]


def shares_frame(spark: SparkSession, shares: Sequence[Sequence[tuple[str, str]]]) -> DataFrame:
    """A DataFrame of (source, split) with a partition for each share."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in [] if died_before() else batches:
            for i in batch.column(0).to_pylist():
                yield rows_of(shares[i])

    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, SCHEMA)


def rows_of(share: Sequence[Sequence[str]]) -> pa.RecordBatch:
    """The rows (source, split) of a share."""
    names, splits = zip(*share, strict=True)
    return pa.RecordBatch.from_pydict({"source": list(names), "split": list(splits)})


def splits_source(
    sources: dict[str, Splits], max_rows: int, tasks: int, directory: Path, first: Mapping[str, int], slow_ms: int
) -> type[DataSource]:
    """A Spark data source named `ferry` for these sources, beside others that never end.

    `first`: those that are read before any other, and how many rows of each an epoch has.
    """

    class FerrySplits(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ferry"

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return WaitingReader(sources, max_rows, tasks, directory, first, slow_ms)

    return FerrySplits
