"""Computes the rows that a job of random programs has to write, in Python, from the records of each epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.cluster.programs import ALL, BOUND, NUMBERS, ROWS, WINDOW_MS, Program, Use

Row = tuple[Any, ...]


class World:
    """The state of the operators of a program."""

    def __init__(self) -> None:
        self.state: dict[str, dict[int, Row]] = defaultdict(dict)
        self.parts: dict[str, dict[Row, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        """Count and sum by operator, window and epoch."""
        self.more: set[str] = set()
        """Operators with one more column."""

    def copy(self) -> World:
        """The same state, on its own."""
        out = World()
        out.more = {*self.more}
        out.state.update({name: dict(state) for name, state in self.state.items()})
        for name, places in self.parts.items():
            out.parts[name].update({place: dict(part) for place, part in places.items()})
        return out

    def with_rest(self, gone: World, rest: set[str], written: World, until: int) -> World:
        """This world, with the operators `rest` of the other one, and the windows that have fired until this time."""
        out = self.copy()
        for name in rest:
            out.state[name], out.parts[name] = gone.state[name], gone.parts[name]
            out.more = out.more - {name} | gone.more & {name}
        for name, places in written.parts.items():
            fired = {place: part for place, part in places.items() if place[1] + WINDOW_MS <= until}
            out.parts[name] = defaultdict(dict, {**out.parts[name], **fired})
        return out


class Oracle:
    """The output of a job whose epochs have these programs: `since` has their first epochs.

    After a restore to the end of epoch `restored`, a sink keeps its later epochs until a program has the sink. `silent`:
    programs that run beside programs of the same first epochs, and are not written.
    """

    def __init__(
        self,
        output: Path,
        since: dict[int, Program],
        restored: int | None = None,
        silent: dict[int, Program] | None = None,
    ) -> None:
        self._output, self._restored = output, restored
        self._firsts = sorted(since)
        self._since, self._silent = since, silent or {}
        self._rows: dict[str, dict[int, Counter[Row]]] = defaultdict(lambda: defaultdict(Counter))
        self._written, self._other = World(), World()
        self._unwritten: set[tuple[str, Row]] = set()
        """Windows of the program that goes on which ended while it was not written."""
        self._times: dict[int, int] = {}
        """The last event time of each epoch."""

    def wrong(self) -> list[str]:
        """The first few errors."""
        records = by_epoch(self._output / ALL, ("seq", "ts"))
        out, following, last = [], 0, 0
        for epoch, rows in records.items():
            seqs = sorted(seq for seq, _ in rows)
            if seqs != [*range(following, following + len(seqs))]:
                out.append(f"epoch {epoch} has records {seqs[0]} to {seqs[-1]} ({len(seqs)}), after {following - 1}")
            following = seqs[-1] + 1
            first = self._first(epoch)
            if first != last:
                self._switch(last, first)
                last = first
            self._times[epoch] = max(ts for _, ts in rows)
            self._epoch(epoch, self._since[first], sorted(rows), self._written, is_written=True)
            if first in self._silent:
                self._epoch(epoch, self._silent[first], sorted(rows), self._other, is_written=False)
        # Programs whose epochs have no records fire the last windows.
        for before, first in pairwise([last, *(epoch for epoch in self._firsts if epoch > last)]):
            self._switch(before, first)
        sinks = {use.sink: use for program in self._since.values() for use in program.uses if use.sink}
        for sink in sorted(sinks):
            out += self._wrong_windows(sinks[sink]) if sinks[sink].kind == "windows" else self._wrong_rows(sinks[sink])
        return out[:6] if following else ["no output"]

    def program(self, epoch: int) -> Program:
        """The program of an epoch."""
        return self._since[self._first(epoch)]

    def _first(self, epoch: int) -> int:
        return self._firsts[bisect_right(self._firsts, epoch) - 1]

    def _switch(self, before: int, now: int) -> None:
        """Begin to run two programs, or go on with one of two."""
        if now in self._silent and self._since[now] is not self._since[before]:
            self._other, self._written = self._written, self._written.copy()
        elif now in self._silent:
            self._other = self._written.copy()
        elif before in self._silent:
            fresh = self._silent[before] if self._since[before] is self.program(before - 1) else self._since[before]
            is_new = self._since[now] is fresh
            goes_on = self._written if self._since[now] is self._since[before] else self._other
            gone = self._other if goes_on is self._written else self._written
            # An operator that only the program before has keeps its state; one that only the new program has loses it.
            rest = {*gone.state, *gone.parts} - {use.name for use in fresh.uses} if is_new else set[str]()
            until = max(self._times.values(), default=0)
            for name, places in goes_on.parts.items():
                ended = {place for place in places if place[1] + WINDOW_MS <= until}
                self._unwritten |= {(name, place) for place in ended - self._written.parts[name].keys()}
            self._written = goes_on.with_rest(gone, rest, self._written, until)

    def _epoch(self, epoch: int, program: Program, records: list[Row], world: World, is_written: bool) -> None:
        streams = {NUMBERS: [(seq, ts, seq % 1000 * program.times + program.plus) for seq, ts in records]}
        for use in program.uses:
            state, emitted, counted = world.state[use.name], list[Row](), dict[Row, Row]()
            if use.more and use.name not in world.more:  # A column begins empty, also if it returns.
                state.update({key: (n, total, None) for key, (n, total, _) in state.items()})
            world.more = world.more | {use.name} if use.more else world.more - {use.name}
            for seq, ts, v in streams[use.input]:
                if seq % use.modulus != use.rest:
                    continue
                key, v = seq // 3 % use.keys, v % BOUND
                if use.kind in ROWS:
                    (total,) = state[key] = (
                        state.get(key, (0,))[0] + v * (program.weight if use.kind == "tally" else 1),
                    )
                    emitted.append((seq, ts, total))
                    continue
                begin = ts // WINDOW_MS * WINDOW_MS
                if use.kind == "windows":
                    n, total = counted.get((key, begin), (0, 0))
                    counted[key, begin] = (n + 1, total + v)
                else:
                    n, total, most = state.get(key, (0, 0, None))
                    state[key] = (n + 1, total + v, v if most is None else max(most, v))
                    counted[(key,)] = state[key] if use.more else state[key][:2]
            streams[use.name] = emitted
            if use.kind == "windows":
                for place, part in counted.items():
                    world.parts[use.name][place][epoch] = part
            elif use.sink and is_written:
                rows = emitted if use.kind in ROWS else [(*key, *values) for key, values in counted.items()]
                self._rows[use.sink][epoch] += Counter(rows)

    def _wrong_rows(self, use: Use) -> list[str]:
        columns = ("seq", "ts", "v") if use.kind in ROWS else ("k", "n", "v", "m")
        found, expected, out = self._found(use.sink, columns), self._rows[use.sink], []
        for epoch in sorted({*found, *expected}):
            rows = Counter(found.get(epoch, ()))
            if rows != expected.get(epoch, Counter()):
                missing, extra = expected.get(epoch, Counter()) - rows, rows - expected.get(epoch, Counter())
                out.append(
                    f"{use.sink}, epoch {epoch}: missing {missing.total()} {sorted(missing)[:2]}, unexpected "
                    f"{extra.total()} {sorted(extra)[:2]}"
                )
        return out

    def _found(self, sink: str, columns: tuple[str, ...]) -> dict[int, list[Row]]:
        found, restored = by_epoch(self._output / sink, columns), self._restored
        if restored is None:
            return found
        begins = (restored + 1, *(epoch for epoch in self._firsts if epoch > restored))
        there = [epoch for epoch in begins if any(use.sink == sink for use in self.program(epoch).uses)]
        return {e: rows for e, rows in found.items() if e <= restored or (there and e >= there[0])}

    def _wrong_windows(self, use: Use) -> list[str]:
        """A whole window fires one row with all its records. A partial window fires no more records than the window has."""
        fired: dict[Row, list[tuple[int, Row]]] = defaultdict(list)
        sinks = {u.sink for program in self._since.values() for u in program.uses if u.name == use.name and u.sink}
        for sink in sinks:
            for epoch, rows in self._found(sink, ("k", "window_start", "n", "v")).items():
                for k, begin, n, v in rows:
                    fired[(k, begin)].append((epoch, (n, v)))
        out, parts = [], self._written.parts[use.name]
        for place in sorted({*fired, *parts}):
            contributed = [*parts.get(place, {}).values()]
            all_of_it = (sum(n for n, _ in contributed), sum(v for _, v in contributed))
            rows = [row for _, row in fired.get(place, ())]
            is_whole = self._is_whole(use.name, place[1]) and (rows or (use.name, place) not in self._unwritten)
            if sum(n for n, _ in rows) > all_of_it[0] or (is_whole and rows != [all_of_it]):
                out.append(f"{use.name}: window {place} fired {fired.get(place)}, and has {all_of_it}")
        return out

    def _is_whole(self, name: str, begin: int) -> bool:
        """Whether the operator was there, and written, until two epochs after the end of the window."""
        over = [epoch for epoch, ts in self._times.items() if ts >= begin + WINDOW_MS]
        if len(over) < 3:
            return False
        during = [epoch for epoch, ts in self._times.items() if ts >= begin and epoch <= over[2]]
        return all(any(u.name == name and u.sink for u in self.program(e).uses) for e in range(during[0], over[2] + 1))


def by_epoch(folder: Path, columns: tuple[str, ...]) -> dict[int, list[Row]]:
    """Rows of a sink, with those of the columns that they have, by epoch; epochs without a row are left out."""
    out: dict[int, list[Row]] = defaultdict(list)
    for file in folder.glob("epoch=*/*.parquet"):
        table = pq.ParquetFile(file).read()
        rows: Iterator[Row] = zip(
            *(table.column(name).to_pylist() for name in columns if name in table.column_names), strict=True
        )
        out[int(file.parent.name.removeprefix("epoch="))] += rows
    return {epoch: rows for epoch, rows in sorted(out.items()) if rows}
