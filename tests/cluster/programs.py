"""Random programs of one job.

All programs read the same numbers, and write them to the sink `all`: so its output tells which records an epoch has. Every
operator belongs to a name, which has a kind for the whole case. A program chooses operators, their inputs (the numbers, or an
operator before), their filters, keys and sinks, and whether counts of changes have one more column.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

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
        v = pa.array(rows.column("v").to_numpy() % {bound})
        rows = rows.set_column(rows.schema.get_field_index("v"), "v", v)
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
    "changes": '.aggregate("{name}", emit=ferry.changes(), n=ferry.count(), v=ferry.sum("v"){more})',
    "windows": '.window(ferry.tumbling("400ms")).aggregate("{name}", n=ferry.count(), v=ferry.sum("v"))',
}
WINDOW_MS = 400
BOUND = 1_000_000
"""Operators read values modulo this: sums of sums of sums stay far below 64 bits."""
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
    more: bool = False
    """whether it has the column `m`, too: the greatest value"""


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
            f"{u.name} {u.kind}{' with m' * u.more} of {u.input} {u.rest} mod {u.modulus}, {u.keys} keys, to {u.sink or 'none'}"
            for u in self.uses
        )
        return f"{f'BAD {self.bad}: ' if self.bad else ''}{uses} (x{self.times} +{self.plus}, weight {self.weight})"

    def text(self) -> str:
        """The text of its file."""
        lines, sinks = [], [f'streams["smq"].sink(ferry.parquet("{ALL}"))']
        for use in self.uses:
            call = KINDS[use.kind].format(name=use.name, more=', m=ferry.max("v")' * use.more)
            lines.append(f"    {use.name} = keyed({use.input}, {use.modulus}, {use.rest}, {use.keys}){call}")
            sinks += [f'{use.name}.sink(ferry.parquet("{use.sink}"))'] * bool(use.sink)
        text = TEXT.format(
            helper=self.helper,
            bound=BOUND,
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
            name + draw.choice(["", "", "_x"]), kinds[name] == "changes" and draw.random() < 0.5,
        )  # fmt: skip
        uses.append(use)
    read = {use.input for use in uses}
    uses = [replace(use, sink="") if use.name in read and draw.random() < 0.4 else use for use in uses]
    helper = draw.choice(["helper", "kit.values"])
    return Program(tuple(uses), draw.randint(1, 9), draw.randint(1, 9), draw.randint(0, 99), helper)
