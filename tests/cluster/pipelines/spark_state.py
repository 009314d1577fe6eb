"""Six StatefulProcessors as they are written for Spark, beside each other; `on_spark` runs one of them without Ferry.

What they give depends on the order of a key's records, by `seq`, and not on where a batch or an epoch ends: they are told
which records are theirs in any order, and a timer that is due after all of them says what the next record would have said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

import ferry

READINGS = "who STRING, ts TIMESTAMP, at LONG, seq LONG, page STRING, v LONG"
BALANCES = "who STRING, balance LONG, due LONG"


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """In the order of `seq`: Spark has none."""
    return sorted(rows, key=lambda row: row.seq)


class RunningCount(StatefulProcessor):
    """Value state, by DataFrames of pandas: of each record how many its key has had, and their sum."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n LONG, s LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows)).sort_values("seq")
        n, s = self.total.get() if self.total.exists() else (0, 0)
        counts, sums = n + pd.RangeIndex(1, len(frame) + 1), s + frame.v.cumsum()
        self.total.update((int(counts[-1]), int(sums.iloc[-1])))
        yield pd.DataFrame({"who": key[0], "seq": frame.seq.array, "n": counts, "s": sums.array})


class LastOnes(StatefulProcessor):
    """List state: of each record the sum of the last `size` values of its key."""

    def __init__(self, size: int) -> None:
        self.size = size

    def init(self, handle: Any) -> None:
        self.last = handle.getListState("lastOnes", StructType([StructField("v", LongType())]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [v for (v,) in self.last.get()] if self.last.exists() else []
        for row in sorted_rows(rows):
            values = [*values, row.v][-self.size :]
            yield Row(who=key[0], seq=row.seq, s=sum(values))
        self.last.put([(v,) for v in values])


class PageCounts(StatefulProcessor):
    """Map state with a time to live that nobody sees the end of: of each record how many its key has had of the page."""

    def init(self, handle: Any) -> None:
        page = StructType([StructField("page", StringType())])
        self.pages = handle.getMapState("pages", page, "n INT", ttlDurationMs=3_600_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted_rows(rows):
            n = self.pages.getValue((row.page,))[0] + 1 if self.pages.containsKey((row.page,)) else 1
            self.pages.updateValue((row.page,), (n,))
            if n == 30:
                self.pages.removeKey((row.page,))
            yield Row(who=key[0], seq=row.seq, n=n, pages=len(list(self.pages.keys())))


class Downtime(StatefulProcessor):
    """Timers of event time that are deleted and set: for how long, longer than `hold`, a key has been silent."""

    def __init__(self, hold: int) -> None:
        self._hold = hold

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("lastSeen", "at LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last = self.seen.get()[0] if self.seen.exists() else None
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        for row in sorted_rows(rows):
            if last is not None and row.at > last + self._hold:
                yield Row(who=key[0], since=last, alarm=last + self._hold)
            last = row.at
        self.seen.update((last,))
        self.handle.registerTimer(last + self._hold)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        assert timerValues.getCurrentWatermarkInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        yield Row(who=key[0], since=self.seen.get()[0], alarm=expiredTimerInfo.getExpiryTimeInMs())
        self.seen.clear()


class Sessions(StatefulProcessor):
    """A session is closed by a timer of its own, or by the first record behind its gap; timers that are old say nothing."""

    def __init__(self, gap: int) -> None:
        self.gap = gap

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.open = handle.getValueState("session", "begins LONG, last LONG, n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted_rows(rows):
            session = self.open.get()
            if session is not None and row.at > session[1] + self.gap:
                yield self.closed(key, session)
                session = None
            begins, _, n = session or (row.at, row.at, 0)
            self.open.update((begins, row.at, n + 1))
            self.handle.registerTimer(row.at + self.gap)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        session = self.open.get()
        if session is not None and session[1] + self.gap == expiredTimerInfo.getExpiryTimeInMs():
            yield self.closed(key, session)
            self.open.clear()

    def closed(self, key: Any, session: tuple[int, int, int]) -> Row:
        """What is told of it."""
        return Row(who=key[0], begins=session[0], ends=session[1], n=session[2])


class Balances(StatefulProcessor):
    """An initial state of several rows for a key, which timers tell again, also of keys that never have a record."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "s LONG")
        self.begun = handle.getListState("begun", "balance LONG")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert key == (initialState.who,) and timerValues.getCurrentWatermarkInMs() == 0 and not self.sum.exists()
        self.begun.appendValue((initialState.balance,))
        self.handle.registerTimer(initialState.due)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        balances = [balance for (balance,) in self.begun.get()]
        total = self.sum.get()[0] if self.sum.exists() else sum(balances)
        for row in sorted_rows(rows):
            total += row.v
            yield Row(who=key[0], seq=row.seq, s=total, n=len(balances))
        self.sum.update((total,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        balances = [balance for (balance,) in self.begun.get()]
        yield Row(who=key[0], seq=-expiredTimerInfo.getExpiryTimeInMs(), s=sum(balances), n=len(balances))


class Case(NamedTuple):
    """A processor with its output, its time mode, and whether it is for pandas."""

    processor: StatefulProcessor
    output: str
    time_mode: str
    pandas: bool = False
    initial: bool = False


CASES = {
    "counts": Case(RunningCount(), "who STRING, seq LONG, n LONG, s LONG", "None", pandas=True),
    "lasts": Case(LastOnes(3), "who STRING, seq LONG, s LONG", "None"),
    "pages": Case(PageCounts(), "who STRING, seq LONG, n INT, pages LONG", "ProcessingTime"),
    "alarms": Case(Downtime(4_000), "who STRING, since LONG, alarm LONG", "EventTime"),
    "sessions": Case(Sessions(1_500), "who STRING, begins LONG, ends LONG, n LONG", "EventTime"),
    "balances": Case(Balances(), "who STRING, seq LONG, s LONG, n LONG", "EventTime", initial=True),
}


def on_spark(spark: SparkSession, name: str, folder: str, balances: str, output: str) -> None:
    """What Spark alone makes of the files, some in each batch, in Parquet files."""
    case = CASES[name]
    read = spark.readStream.schema(READINGS).option("maxFilesPerTrigger", 4).parquet(folder)
    keyed = read.withWatermark("ts", "1 second").groupBy("who")
    transform = keyed.transformWithStateInPandas if case.pandas else keyed.transformWithState
    initial = spark.read.schema(BALANCES).parquet(balances).groupBy("who") if case.initial else None
    made = transform(case.processor, case.output, "Append", case.time_mode, initial)
    # With processing time there are batches without data for ever, and `availableNow` never ends.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", case.time_mode == "EventTime")
    query = made.writeStream.format("parquet").option("checkpointLocation", f"{output}-checkpoint")
    query.trigger(availableNow=True).start(output).awaitTermination()


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {name: ferry.parquet_files(args[name], finite=True) for name in ("readings", "balances")}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """All six of one stream, each into its own sink."""
    keyed, balances = streams["readings"].event_time("ts", delay="1s").key_by("who"), streams["balances"].key_by("who")
    outputs = []
    for name, (*case, initial) in CASES.items():
        made = keyed.transform_with_state(name, *case, initial_state=balances if initial else None)
        outputs.append(made.sink(ferry.parquet(name)))
    return outputs
