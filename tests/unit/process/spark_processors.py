"""StatefulProcessors as they are written for Spark: what a test gives in, and every method of the handle and of state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

OUTPUT = "k LONG, what STRING, a LONG, b STRING"


def told(key: Any, what: str, a: int | None = None, b: Any = None) -> Row:
    """A row of `OUTPUT`."""
    return Row(k=key[0], what=what, a=a, b=None if b is None else repr(b))


class Everything(StatefulProcessor):
    """Does what each row says: `op` on value, list and map state and on timers, with `v`; tells what it sees."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("oneValue", "n LONG, t STRING")
        self.list = handle.getListState("listState", "n LONG")
        self.map = handle.getMapState("map", "a LONG, b STRING", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield from getattr(self, row.op)(key, row.v)
        yield from self.shown(key)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        yield told(key, "timer", time, list(self.handle.listTimers()))
        if time % 3 == 0:
            self.list.appendValue((time,))
        if time % 5 == 0:
            self.handle.registerTimer(time + 1000)

    def shown(self, key: Any) -> Iterator[Row]:
        """All state."""
        yield told(key, "value", int(self.value.exists()), self.value.get())
        yield told(key, "list", int(self.list.exists()), [tuple(one) for one in self.list.get()])
        pairs = sorted((tuple(k), tuple(v)) for k, v in self.map.iterator())
        assert sorted(map(tuple, self.map.keys())) == [k for k, _ in pairs]
        assert sorted(tuple(v) for v in self.map.values()) == sorted(v for _, v in pairs)
        yield told(key, "map", int(self.map.exists()), pairs)

    def update(self, key: Any, v: int) -> Iterator[Row]:
        self.value.update((v, f"t{v}" if v % 2 else None))
        return iter(())

    def clear(self, key: Any, v: int) -> Iterator[Row]:
        (self.value, self.list, self.map)[v % 3].clear()
        return iter(())

    def append(self, key: Any, v: int) -> Iterator[Row]:
        self.list.appendValue((v,))
        return iter(())

    def extend(self, key: Any, v: int) -> Iterator[Row]:
        self.list.appendList([(v,), (v + 1,)])
        return iter(())

    def put(self, key: Any, v: int) -> Iterator[Row]:
        self.list.put([(v,), (-v,)])
        return iter(())

    def set(self, key: Any, v: int) -> Iterator[Row]:
        self.map.updateValue((v % 4, "x"), (v,))
        return iter(())

    def ask(self, key: Any, v: int) -> Iterator[Row]:
        found = self.map.getValue((v % 4, "x"))
        yield told(key, "has", int(self.map.containsKey((v % 4, "x"))), found if found is None else tuple(found))

    def unset(self, key: Any, v: int) -> Iterator[Row]:
        self.map.removeKey((v % 4, "x"))
        return iter(())

    def register(self, key: Any, v: int) -> Iterator[Row]:
        self.handle.registerTimer(500 + v)
        yield told(key, "timers", None, sorted(self.handle.listTimers()))

    def delete(self, key: Any, v: int) -> Iterator[Row]:
        self.handle.deleteTimer(500 + v)
        yield told(key, "timers", None, sorted(self.handle.listTimers()))


class Plain(Everything):
    """The same without timers."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        raise AssertionError


class Begun(Plain):
    """The same, with an initial state: each row is in all three."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert key == (initialState.k,) and timerValues.getCurrentWatermarkInMs() == -1
        self.value.update((initialState.n, initialState.t))
        self.list.appendValue((initialState.n,))
        self.map.updateValue((initialState.n % 4, "x"), (initialState.n,))


@dataclass
class Lasting(StatefulProcessor):
    """Every kind of state, with a time to live."""

    ttl: int

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n LONG", self.ttl)
        self.list = handle.getListState("list", "n LONG", self.ttl)
        self.map = handle.getMapState("map", "n LONG", "n LONG", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.op == "update":
                self.value.update((row.v,))
                self.list.appendValue((row.v,))
                self.map.updateValue((row.v,), (row.v,))
            if row.op == "register":
                self.handle.registerTimer(row.v)
            if row.op == "delete":
                self.handle.deleteTimer(row.v)
        seen = [self.value.get(), [*self.list.get()], sorted(self.map.keys()), self.map.exists()]
        yield told(key, "now", timerValues.getCurrentProcessingTimeInMs(), seen)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield told(key, "timer", expiredTimerInfo.getExpiryTimeInMs())


class Frames(StatefulProcessor):
    """Sums by DataFrames of pandas."""

    def __init__(self, factor: int, offset: int = 0) -> None:
        self._factor = factor
        self.offset = offset

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            before = self.sum.get()
            total = (before[0] if before else self.offset) + frame.v.sum() * self._factor
            self.sum.update((total,))
            self.handle.registerTimer(frame.ts.max() + 10)
            yield pd.DataFrame({"k": [key[0]], "what": ["sum"], "a": [total], "b": [None]})

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert timerValues.getCurrentWatermarkInMs() == 0 and set(initialState.k) == {key[0]}
        self.sum.update((int(initialState.n.sum()),))
        self.handle.registerTimer(1_000)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame([(key[0], "timer", expiredTimerInfo.getExpiryTimeInMs(), "none")])


@dataclass
class Clock(StatefulProcessor):
    """Tells what time it is."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now, watermark = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        seen = [(row.ts, row.v) for row in rows]
        yield told(key, "rows", now, (watermark, seen))
        self.handle.registerTimer(100)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield told(key, "timer", timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())


class Named(StatefulProcessor):
    """Declares whatever it is told to."""

    def __init__(self, states: list[Any], delete: str | None = None) -> None:
        self.states = states
        self.delete = delete

    def init(self, handle: Any) -> None:
        for state, name, *arguments in self.states:
            getattr(handle, f"get{state}State")(name, *arguments)
        if self.delete is not None:
            handle.deleteIfExists(self.delete)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter([])


class Types(StatefulProcessor):
    """Keeps a value of every type, and tells what it was."""

    schema = "b BOOLEAN, i1 TINYINT, i4 INT, f FLOAT, d DOUBLE, n DECIMAL(9,2), day DATE, at TIMESTAMP_NTZ, z TIMESTAMP, x BINARY"

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.schema)
        self.map = handle.getMapState("map", self.schema, "n INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.op == "update":
                self.value.update(VALUES)
                self.map.updateValue(VALUES, (1,))
            yield told(key, row.op, int(self.map.containsKey(VALUES)), self.value.get())


VALUES: tuple[Any, ...] = ()
"""What `Types` keeps."""


class Odd(StatefulProcessor):
    """Gives columns whose names are those of methods."""

    def init(self, handle: Any) -> None:
        """Nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row("columns", "asDict")(row.v, row.v)


class Secret(StatefulProcessor):
    """Does not keep what it was given."""

    def __init__(self, words: Any) -> None:
        self.length = len(words)

    def init(self, handle: Any) -> None:
        """Nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter([])


class Wrong(StatefulProcessor):
    """Gives what cannot be its output."""

    def __init__(self, what: str) -> None:
        self.what = what

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n LONG")
        if self.what == "reads in init":
            self.value.get()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if self.what == "declares late":
            self.handle.getValueState("other", "n LONG")
        if self.what == "keeps two":
            self.value.update((1, 2))
        if self.what == "keeps a text":
            self.value.update(("one",))
        if self.what == "sets a timer":
            self.handle.registerTimer(1)
        if self.what == "raises":
            1 // 0
        yield (1, 2) if self.what == "gives a tuple" else told(key, "x") if self.what != "gives a text" else Row(k="a")
