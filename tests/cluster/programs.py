"""Random programs of one job, and what their job has to write, recomputed in Python from the records of each epoch.

All programs read the same numbers, and write them to the sink `all`: so its output tells which records an epoch has. Every
operator belongs to a name, which has a kind for the whole case. A program chooses operators, their inputs (the numbers, or an
operator before), their filters, keys and sinks.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

NUMBERS, ALL = "numbers", "all"

TEXT = """
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import ferry
from {helper} import TIMES, WEIGHT
from ferry_workloads.jobs.smq import sources as endless


@dataclass
class Tally(ferry.Process):
    tables = {{"sum": ferry.StateTable(pa.schema([("v", pa.int64())]))}}
    output = pa.schema([("seq", pa.int64()), ("ts", pa.int64()), ("v", pa.int64())])

    def process(self, work):
        from {helper} import WEIGHT{process_fails}

        before = work.get("sum").column("v").fill_null(0).to_numpy(zero_copy_only=False)
        key, rows, spans = work.key_of(), work.rows(), work.spans()
        sums = np.concatenate([[0], np.cumsum(rows.column("v").to_numpy() * WEIGHT)])
        work.put("sum", range(work.count), {{"v": before + sums[spans[1:]] - sums[spans[:-1]]}})
        passed = {{name: rows.column(name).to_numpy() for name in ("seq", "ts")}}
        work.emit(key, {{**passed, "v": before[key] + sums[1:] - sums[spans[:-1]][key]}})


def sources(spark, args):
    return endless(spark, {{name: args[name] for name in ("pace", "events") if name in args}})


def numbered(plus):
    def number(rows):
        seq = rows.column("seq")
        v = pa.array(seq.to_numpy() % 1000 * TIMES + plus)
        return pa.RecordBatch.from_arrays([seq, rows.column("ts"), v], ["seq", "ts", "v"])

    return number


def passing(modulus, rest, keys):
    def function(rows):
        seq = rows.column("seq").to_numpy(){task_fails}
        return rows.append_column("k", pa.array(seq // 3 % keys)).filter(pa.array(seq % modulus == rest))

    return function


def keyed(stream, modulus, rest, keys):
    return stream.map_batches(passing(modulus, rest, keys)).event_time("ts").key_by("k")


def pipeline(streams, args):
    numbers = streams["smq"].map_batches(numbered(args["plus"]))
{lines}
    return [{sinks}]
"""

KINDS = {
    "tally": '.process("{name}", Tally(), order="seq")',
    "records": '.aggregate("{name}", emit=ferry.records("seq", "ts", order="seq"), v=ferry.sum("v"))',
    "changes": '.aggregate("{name}", emit=ferry.changes(), n=ferry.count(), v=ferry.sum("v"))',
    "windows": '.window(ferry.tumbling("400ms")).aggregate("{name}", n=ferry.count(), v=ferry.sum("v"))',
}
WINDOW_MS = 400
ROWS = ("tally", "records")
"""Kinds whose rows another operator can read."""

REFUSED = {
    "syntax": ("def pipeline(", "def pipeline(:"),
    "import": ("import ferry\n", "import ferry\nimport nothing_of_this_name\n"),
    "key": (".key_by(", '.map_batches(lambda rows: rows.append_column("w", rows["k"].cast(pa.string()))).key_by("w", '),
    "table": ('pa.schema([("v", pa.int64())]))}', 'pa.schema([("v", pa.float64())]))}'),
    "source": ("def numbered(", "def sources(spark, args, before=sources):\n    return {**before(spark, args), 'more': 1}\n\n\ndef numbered("),
    "exit": ("def numbered(", "import os\nos._exit(3)\n\n\ndef numbered("),
}  # fmt: skip
FAILING = ("task", "process")


@dataclass(frozen=True)
class Use:
    """An operator in a program."""

    name: str
    kind: str
    input: str
    modulus: int
    rest: int
    keys: int
    sink: str
    """empty: nothing writes its rows"""


@dataclass(frozen=True)
class Program:
    """One program; `bad`: the change that gets it refused, or "task" or "process": its code fails."""

    uses: tuple[Use, ...]
    times: int
    weight: int
    plus: int
    helper: str
    bad: str = ""

    def __str__(self) -> str:
        uses = "; ".join(
            f"{u.name} {u.kind} of {u.input} {u.rest} mod {u.modulus}, {u.keys} keys, to {u.sink or 'none'}"
            for u in self.uses
        )
        return f"{f'BAD {self.bad}: ' if self.bad else ''}{uses} (x{self.times} +{self.plus}, weight {self.weight})"

    def text(self) -> str:
        """The text of its file."""
        lines, sinks = [], [f'streams["smq"].sink(ferry.parquet("{ALL}"))']
        for use in self.uses:
            call = KINDS[use.kind].format(name=use.name)
            lines.append(f"    {use.name} = keyed({use.input}, {use.modulus}, {use.rest}, {use.keys}){call}")
            sinks += [f'{use.name}.sink(ferry.parquet("{use.sink}"))'] * bool(use.sink)
        text = TEXT.format(
            helper=self.helper,
            lines="\n".join(lines),
            sinks=", ".join(sinks),
            task_fails=_failing("len(seq)") if self.bad == "task" else "",
            process_fails=_failing("True") if self.bad == "process" else "",
        )
        return text.replace(*REFUSED[self.bad]) if self.bad in REFUSED else text

    def write(self, folder: Path) -> Path:
        """The files of the program: the pipeline's, and a module beside it or in a package."""
        module = folder.joinpath(*self.helper.split(".")).with_suffix(".py")
        module.parent.mkdir(parents=True, exist_ok=True)
        if module.parent != folder:
            (module.parent / "__init__.py").touch()
        module.write_text(f"TIMES, WEIGHT = {self.times}, {self.weight}\n")
        (folder / "job.py").write_text(self.text())
        return folder / "job.py"


def _failing(when: str) -> str:
    return f"\n        if {when}:\n            raise ValueError('it fails on purpose')"


def programs_of(draw: random.Random, count: int) -> list[Program]:
    """Programs of one case; the first one is good, and has an operator."""
    names = ["first", "second", "third", "fourth", "fifth"]
    kinds = dict(zip(names, draw.sample([*KINDS, draw.choice(ROWS)], len(names)), strict=True))
    out: list[Program] = []
    while len(out) < count:
        program = _program(draw, kinds)
        if not out or draw.random() < 0.75:
            if out or program.uses:
                out.append(program)
            continue
        # A bad program that reads as the good one before it, but for its fault.
        bad = draw.choice([*REFUSED, *FAILING, *FAILING])
        # An operator that the job never had has no state that its table or key would contradict.
        had = {use.kind for use in program.uses if use.name in {one.name for one in out[0].uses}}
        # Once its first operator has committed, a program is not taken back any more: a failure behind it stops the job.
        leads = bool(program.uses) and program.uses[0].kind == "tally"
        if (
            (bad == "process" and not leads)
            or (bad == "table" and "tally" not in had)
            or (bad == "key" and not had)
            or (bad == "task" and not program.uses)
        ):
            continue
        out.append(replace(program, bad=bad))
    return out


def _program(draw: random.Random, kinds: dict[str, str]) -> Program:
    names = draw.sample([*kinds], draw.choice([0, 1, 2, 2, 3, 3, 4, 5]))
    uses: list[Use] = []
    for name in names:
        readable = [NUMBERS, NUMBERS, *(use.name for use in uses if use.kind in ROWS)]
        modulus = draw.choice([1, 2, 3])
        use = Use(
            name, kinds[name], draw.choice(readable), modulus, draw.randrange(modulus), draw.choice([1, 4, 16]),
            name + draw.choice(["", "", "_x"]),
        )  # fmt: skip
        uses.append(use)
    read = {use.input for use in uses}
    uses = [replace(use, sink="") if use.name in read and draw.random() < 0.4 else use for use in uses]
    helper = draw.choice(["helper", "kit.values"])
    return Program(tuple(uses), draw.randint(1, 9), draw.randint(1, 9), draw.randint(0, 99), helper)


# ---- the oracle
Row = tuple[Any, ...]


class World:
    """The state of the operators of a program."""

    def __init__(self) -> None:
        self.state: dict[str, dict[int, Row]] = defaultdict(dict)
        self.parts: dict[str, dict[Row, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        """Count and sum by operator, window and epoch."""

    def copy(self) -> World:
        """The same state, on its own."""
        out = World()
        out.state.update({name: dict(state) for name, state in self.state.items()})
        for name, places in self.parts.items():
            out.parts[name].update({place: dict(part) for place, part in places.items()})
        return out

    def with_rest(self, gone: World, rest: set[str], written: World, until: int) -> World:
        """This world, with the operators `rest` of the other one, and the windows that have fired until this time."""
        out = self.copy()
        for name in rest:
            out.state[name], out.parts[name] = gone.state[name], gone.parts[name]
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
        self._ever: set[str] = set()
        """All operators that the job has had."""
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
        if before not in self._silent:
            self._ever |= {use.name for use in self._since[before].uses}
        if now in self._silent and self._since[now] is not self._since[before]:
            self._other, self._written = self._written, self._written.copy()
        elif now in self._silent:
            self._other = self._written.copy()
        elif before in self._silent:
            goes_on = self._written if self._since[now] is self._since[before] else self._other
            gone = self._other if goes_on is self._written else self._written
            fresh = self._silent[before] if self._since[before] is self.program(before - 1) else self._since[before]
            names = {use.name for use in fresh.uses}
            # An operator that only the other one has keeps the state that it had there.
            rest = {*gone.state, *gone.parts} - names if self._since[now] is fresh else names - self._ever
            until = max(self._times.values(), default=0)
            for name, places in goes_on.parts.items():
                ended = {place for place in places if place[1] + WINDOW_MS <= until}
                self._unwritten |= {(name, place) for place in ended - self._written.parts[name].keys()}
            self._written = goes_on.with_rest(gone, rest, self._written, until)
            self._ever |= names

    def _epoch(self, epoch: int, program: Program, records: list[Row], world: World, is_written: bool) -> None:
        streams = {NUMBERS: [(seq, ts, seq % 1000 * program.times + program.plus) for seq, ts in records]}
        for use in program.uses:
            state, emitted, counted = world.state[use.name], list[Row](), dict[Row, Row]()
            for seq, ts, v in streams[use.input]:
                if seq % use.modulus != use.rest:
                    continue
                key = seq // 3 % use.keys
                if use.kind in ROWS:
                    (total,) = state[key] = (
                        state.get(key, (0,))[0] + v * (program.weight if use.kind == "tally" else 1),
                    )
                    emitted.append((seq, ts, total))
                    continue
                begin = ts // WINDOW_MS * WINDOW_MS
                place = (key, begin) if use.kind == "windows" else (key,)
                n, total = counted.get(place, (0, 0)) if use.kind == "windows" else state.get(key, (0, 0))
                counted[place] = (n + 1, total + v)
                if use.kind == "changes":
                    state[key] = counted[place]
            streams[use.name] = emitted
            if use.kind == "windows":
                for place, part in counted.items():
                    world.parts[use.name][place][epoch] = part
            elif use.sink and is_written:
                rows = emitted if use.kind in ROWS else [(*key, *values) for key, values in counted.items()]
                self._rows[use.sink][epoch] += Counter(rows)

    def _wrong_rows(self, use: Use) -> list[str]:
        columns = ("seq", "ts", "v") if use.kind in ROWS else ("k", "n", "v")
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
        """Of a window that its operator saw from begin to end, one row with all of it; of another one, not more than all."""
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
    """Rows of a sink, by epoch; epochs without a row are left out."""
    out: dict[int, list[Row]] = defaultdict(list)
    for file in folder.glob("epoch=*/*.parquet"):
        table = pq.ParquetFile(file).read()
        rows: Iterator[Row] = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        out[int(file.parent.name.removeprefix("epoch="))] += rows
    return {epoch: rows for epoch, rows in sorted(out.items()) if rows}
