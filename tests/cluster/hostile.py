"""Random jobs with hostile input and hostile code, drawn by a seed; `tests.cluster.fuzz` runs them.

What must hold of each: it ends well, and has written what a few lines of Python compute of the records that are good; or it
stops within STOP_SECONDS of when its driver is ready, and the last lines of the terminal name the culprit.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cluster import runner
from tests.cluster.hostile_code import OPERATORS, Way, program, ways_of
from tests.cluster.hostile_columns import LONG, SCALARS, Kind, Value, array, kind_of, plain
from tests.cluster.hostile_jobs import SECOND, SHAPES, Plan, Row, Shape, aggregates_of, code_of, second

STOP_SECONDS = 60.0
"""From when the driver is ready to the end of a job that cannot go on, where a run is ready within QUIET_SECONDS.

A machine that needs longer for that is slower by as much, up to SLOWER times: what never stops is found all the same.
"""
QUIET_SECONDS, SLOWER = 10.0, 5.0

BAD_LINES = [
    "null", " null ", "null null", "[]", "5", "true", '"text"', "{", "}", "{'id': 1}", "\x00", "nul", "\ufeffnull", "NaN", "-",
    "[null]", "\x1b[2J", "{} {}", '{"id": 1', "{" * 500, "[" * 5000,
]  # fmt: skip
"""None of them is an object."""

ODD_FIELDS = [
    "", ', "more": null', ', "more": [null]', ', "more": {"a": [1, {"b": null}]}', ', "more": ' + "9" * 400,
    ', "more": ' + "[" * 60 + "]" * 60, ', "id2": "x"',
]  # fmt: skip
"""Behind the fields of a record that is one all the same."""

FAR_AHEAD = 7_258_118_400_000
"""Milliseconds since 1970: no event time of a record that is good."""

TIMES = [
    "pa.int64()",
    *(f"pa.timestamp({unit!r}, {zone!r})" for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")),
]
FACTORS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass
class Source:
    """A directory of files."""

    name: str
    is_json: bool
    files: dict[str, list[Any]] = field(default_factory=dict)
    """lines of JSON, or records"""
    good: list[Row] = field(default_factory=list)
    """values as Arrow is told them, in their order"""
    malformed: int = 0


@dataclass
class Case:
    """One random job."""

    seed: int
    site: str
    way: Way
    shape: Shape
    columns: dict[str, Kind]
    plan: Plan
    sources: list[Source]
    set_aside: bool
    sink: str
    sets: tuple[str, ...]
    text: str
    """the program; {here} is its directory"""
    through_spark: bool
    passes: list[tuple[str, Any]]
    """conditions of records that go on: (code, the same in Python)"""
    united: bool = False
    then: bool = False
    """a second operator is behind the first one"""

    def command(self) -> str:
        """In one line."""
        inputs = ", ".join(
            f"{'json' if one.is_json else 'parquet'} of {sum(map(len, one.files.values()))}" for one in self.sources
        )
        types = ", ".join(f"{name} {kind.type}" for name, kind in self.columns.items())
        words = f"hostile: {self.way.name} in {self.site}, {self.shape.name}{' and another' if self.then else ''}, {self.sink}"
        return " ".join([f"{words}; {inputs}; {types};", *(f"--set {one}" for one in self.sets)])

    def records(self, source: Source) -> list[Row]:
        """The good records, comparable, `ts` in milliseconds, but for those that are filtered, or set aside."""
        kinds = {name: kind.type for name, kind in self.columns.items()}
        parts = {
            n: plain(array(kind, [row[n] for row in source.good]), self.through_spark) for n, kind in kinds.items()
        }
        rows = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
        if self.shape.timed and kinds["ts"] != pa.int64():
            rows = [{**row, "ts": row["ts"] // 1_000_000} for row in rows]
        kept = [row for row in rows if all(test(row) for _, test in self.passes)]
        return [row for row in kept if not (self.set_aside and self.kills_tasks and row["mark"])]

    @property
    def kills_tasks(self) -> bool:
        """Whether tasks die of the marked record, and it can be told which record that is."""
        condenses = self.shape.name == "own sessions" and "commutative = True" in self.text
        in_tasks = (self.site == "map" and bool(self.shape.code)) or (self.site == "update" and condenses)
        return in_tasks and self.way.kills and not self.way.first

    def expected(self) -> tuple[list[Row], bool]:
        """Rows of the last stage, and whether the marked record comes to the site."""
        first, *others = self.sources
        records, more = self.records(first), [row for other in others for row in self.records(other)]
        rows = self.shape.rows(self.plan, records + more if self.united else records, more)
        there = any(row["mark"] for row in (rows if self.site in ("behind", "sink") else records))
        return second(self.plan, rows) if self.then else rows, there


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"hostile {seed}")
    shape = draw.choice(SHAPES)
    sources = [Source("in", draw.random() < 0.6)]
    united = not shape.other and not shape.ordered and bool(shape.code) and draw.random() < 0.25
    if shape.other or united:
        sources.append(Source("more", draw.random() < 0.5))
    sink = draw.choice(["parquet", "parquet", "foreach_epoch", "console"])
    then = shape.windowed and draw.random() < 0.3
    sites = [
        "map",
        "map",
        "build",
        *shape.sites * 2,
        *["behind"] * bool(shape.code),
        *["sink"] * (sink == "foreach_epoch"),
    ]
    site = draw.choice(sites)
    way = draw.choice(draw.choice(ways_of(site)))
    columns, plan = _columns(draw, shape)
    set_aside = draw.random() < 0.5
    passes: list[tuple[str, Any]] = []
    if draw.random() < 0.3:
        least = draw.randint(1, 100)
        passes.append(
            (
                f'(pc.field("id") >= {least}) | (pc.field("mark") == 1)',
                lambda row: row["id"] >= least or row["mark"] == 1,
            )
        )
    frames = draw.random() < 0.3 and not way.kills and not way.wrong
    framed = frames and site in ("map", "behind") and (site == "behind" or not any(one.is_json for one in sources))
    keys = {name: [columns[name].draw(draw) for _ in range(draw.choice([1, 3, 8]))] for name in plan.keys}
    keys = {name: [_even(columns[name], value) for value in values] for name, values in keys.items()}
    chance = draw.choice([0.0, 0.01, 0.2, 0.9])
    number = 0
    for source in sources:
        number = _fill(draw, source, columns, plan, keys, chance if source.name == "in" else 0.0, number, shape, passes)
    sets = [
        f"workers={draw.choice([1, 1, 2])}",
        "cores=1",
        "state.virtualNodes=4",
        f"state.replicas={draw.choice([0, 1])}",
    ]
    sets += [f"epoch.mode={draw.choice(['auto', 'micro-batch'])}", f"epoch.maxRows={draw.choice([50, 1000])}"]
    sets += ["deadLetter.onCrash=set-aside"] if set_aside else []
    case = Case(
        seed, site, way, shape, columns, plan, sources, set_aside, sink, tuple(sets), "", False, passes, united, then
    )
    case.through_spark = framed or sink == "foreach_epoch" or not shape.code
    case.text = _program(draw, case, framed)
    return case


def _columns(draw: random.Random, shape: Shape) -> tuple[dict[str, Kind], Plan]:
    """Three that all have, keys, values and some that are carried along."""
    # Python's datetime, which a StatefulProcessor is given, has not all of them.
    scalars = [kind for kind in SCALARS if shape.name != "processor" or "timestamp" not in kind.code]
    keys = {f"k{i}": draw.choice(scalars) for i in range(draw.choice([1, 1, 2]))}
    tame = [kind for kind in SCALARS if kind.tame is not None]
    values = {f"v{i}": draw.choice(draw.choice([tame, scalars])) for i in range(draw.choice([0, 1, 2]))}
    carried = {f"c{i}": kind_of(draw, scalars) for i in range(draw.choice([0, 1, 2]))}
    time_kind = Kind(draw.choice(TIMES), LONG.draw, LONG.text, ('"x"', "true", "[]", '""'))
    columns = {"id": LONG, "mark": LONG, "ts": time_kind, **keys, **values, **carried}
    kept = tuple(name for name, kind in carried.items() if kind.ordered and kind.code != "pa.binary(3)")
    return columns, Plan(tuple(keys), aggregates_of(draw, values), kept)


def _even(kind: Kind, value: Value) -> Value:
    """Keys that Spark tells apart, too, and those that fit into the 64 bits of a key."""
    if "'ns'" in kind.code:
        return value // 1000 * 1000
    return value % 2**63 if kind.code == "pa.uint64()" else value


def _fill(
    draw: random.Random, source: Source, columns: dict[str, Kind], plan: Plan, keys: dict[str, list[Value]], chance: float,
    number: int, shape: Shape, passes: list[tuple[str, Any]],
) -> int:  # fmt: skip
    """Draw the files, with a marked record in that named "in", and good ones on both sides; the number of the last record."""
    sizes = [draw.choice([0, 1, 7, 60, 300]) for _ in range(draw.randint(1, 3))]
    marked = -1 if source.name != "in" else draw.randrange(sum(sizes) + 1)
    sizes[-1] += marked == sum(sizes)
    count = 0
    for i, size in enumerate(sizes):
        lines: list[Any] = []
        for _ in range(size):
            number, is_marked, count = number + 1, count == marked, count + 1
            row = _row(draw, columns, plan, keys, number, is_marked)
            if draw.random() < chance and not is_marked:
                line, is_read = _bad(draw, source, columns, row, shape)
                if line is not None:
                    # What a filter drops has no event time that anybody looks at.
                    source.malformed += is_read or all(test(row) for _, test in passes)
                    lines.append(line)
                    continue
            source.good.append(row)
            lines.append(_line(draw, columns, row) if source.is_json else row)
        source.files[f"{i}.{'json' if source.is_json else 'parquet'}"] = lines
    return number


def _row(
    draw: random.Random, columns: dict[str, Kind], plan: Plan, keys: dict[str, list[Value]], number: int, marked: bool
) -> Row:
    row: Row = {"id": number, "mark": int(marked), "ts": draw.randrange(10_000)}
    if "timestamp" in columns["ts"].code:
        factor = FACTORS[columns["ts"].type.unit]
        row["ts"] = row["ts"] * factor + draw.randrange(factor)
    for name, kind in list(columns.items())[3:]:
        tame = kind.tame if name.startswith("v") and kind.tame is not None else kind.draw
        row[name] = draw.choice(keys[name]) if name in keys else None if draw.random() < 0.1 else tame(draw)
    if draw.random() < 0.05 and not marked:
        row[draw.choice(plan.keys)] = None
    return row


def _line(draw: random.Random, columns: dict[str, Kind], row: Row, spoilt: dict[str, str] | None = None) -> str:
    """A record as a line of JSON, fields in any order, some nulls left out."""
    names = [name for name in row if name in (spoilt or ()) or row[name] is not None or draw.random() < 0.5]
    draw.shuffle(names)
    parts = []
    for name in names:
        text = "null" if row[name] is None else _text(draw, columns[name], row[name])
        parts.append(f"{json.dumps(name)}:{draw.choice(['', ' '])}{(spoilt or {}).get(name, text)}")
    return draw.choice(["", "", " ", "\t"]) + "{" + ", ".join(parts) + draw.choice(ODD_FIELDS) + "}"


def _text(draw: random.Random, kind: Kind, value: Value) -> str:
    if kind.type == pa.int64() or not pa.types.is_timestamp(kind.type):
        return kind.text(draw, value)
    return next(one for one in SCALARS if one.code == kind.code).text(draw, value)


def _bad(draw: random.Random, source: Source, columns: dict[str, Kind], row: Row, shape: Shape) -> tuple[Any, bool]:
    """A line, or a record, that is set aside, and whether where it is read; None: the source has none."""
    if shape.timed and draw.random() < 0.3:
        factor = FACTORS[columns["ts"].type.unit] if "timestamp" in columns["ts"].code else 1
        row = {**row, "ts": draw.choice([None, FAR_AHEAD * factor])}
        return _line(draw, columns, row) if source.is_json else row, False
    if not source.is_json:
        return None, True
    name = draw.choice([*columns, None])
    if name is None:
        return draw.choice(BAD_LINES), True
    if draw.random() < 0.1:
        return _line(draw, columns, row)[:-1] + f", {json.dumps(name)}: null, {json.dumps(name)}: null}}", True
    return _line(draw, columns, row, {name: draw.choice(columns[name].bad)}), True


def _program(draw: random.Random, case: Case, framed: bool) -> str:
    shape, plan = case.shape, case.plan
    lines = []
    for letter, source in zip("so", case.sources, strict=False):
        time = '.event_time("ts", delay="1h")' if shape.timed else ""
        kept = "".join(f".map_batches(ferry.filter({code}))" for code, _ in case.passes)
        lines.append(f'{letter} = streams["{source.name}"]{time}{kept}')
    touch = ".transform(checked)" if framed else ".map_batches(touch)"
    lines += [f"s = s{touch}"] if case.site == "map" else []
    lines += ["s = s.union(o)"] if case.united else []
    fill = {
        "keys": ", ".join(f'"{key}"' for key in plan.keys), "aggregates": code_of(plan.aggregates),
        "kept": "".join(f'"{name}", ' for name in plan.kept), "joined": json.dumps(["id", "mark", *plan.kept]),
    }  # fmt: skip
    lines += [f"s = s{shape.code.format(**fill)}"]
    lines += [f"s = s{touch}"] if case.site == "behind" else []
    lines += [f"s = s{SECOND.format(key=plan.keys[0])}"] if case.then else []
    sinks = {"parquet": ['ferry.parquet("out")'], "foreach_epoch": ["ferry.foreach_epoch(store)"]}
    ends = sinks.get(case.sink, ['ferry.parquet("out")', "ferry.console()"])
    lines.append(f"return [{', '.join(f's.sink({one})' for one in ends)}]")
    schema = ", ".join(
        f'pa.field("{name}", {kind.code}, {name not in ("id", "mark")})' for name, kind in case.columns.items()
    )
    inputs = ", ".join(
        f'"{one.name}": ferry.{"json" if one.is_json else "parquet"}_files(HERE + "/{one.name}", SCHEMA, finite=True)'
        for one in case.sources
    )
    more = {"schema": schema, "sources": inputs, "commutative": draw.random() < 0.5, "here": "HERE"}
    return program(case.way, case.site, shape.sites, pipeline="".join(f"    {line}\n" for line in lines), **more)


def written(case: Case, base: Path) -> Path:
    """The files of a case; the job's."""
    for source in case.sources:
        (base / source.name).mkdir(parents=True)
        for name, lines in source.files.items():
            file = base / source.name / name
            if source.is_json:
                file.write_bytes("".join(f"{line}\n" for line in lines).encode())
                continue
            schema = pa.schema([pa.field(name, kind.type) for name, kind in case.columns.items()])
            columns = [array(kind.type, [row[name] for row in lines]) for name, kind in case.columns.items()]
            pq.write_table(pa.Table.from_arrays(columns, schema=schema), file, row_group_size=100)
    (base / "job.py").write_text(case.text.replace("HERE = 'HERE'", f"HERE = {str(base)!r}"))
    document = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "hostile"},
        "spec": {"pipeline": {"file": str(base / "job.py")}},
    }  # fmt: skip
    (base / "job.yaml").write_text(json.dumps(document))
    return base / "job.yaml"


def check(case: Case, base: Path) -> str | None:
    """Run a case; what is wrong, or None."""
    rows, there = case.expected()
    stops = _culprit(case, there)
    running = runner.start(written(case, base), base, sets=case.sets)
    late = _await_end(running) if stops else ""
    result = runner.finish(running, 5 if late else runner.TIMEOUT_SECONDS)
    wrong = [late] if late else []
    if result.left:
        wrong.append(f"left behind: {result.left}")
    if stops:
        wrong += _not_named(stops, result)
    elif result.code != 0:
        wrong.append(f"exit code {result.code}")
    else:
        wrong += _other_rows(case, rows, result.output if case.sink != "foreach_epoch" else base)
        malformed = sum(one.malformed for one in case.sources) + (case.set_aside and case.kills_tasks)
        if result.summary.get("malformed") != malformed:
            wrong.append(f"{result.summary.get('malformed')} records are malformed, of {malformed}")
    return f"{'; '.join(wrong)}\n{result.story(25)}" if wrong else None


def _culprit(case: Case, there: bool) -> str:
    """Pattern that the terminal has to match; empty: the job ends well."""
    way = case.way
    if case.site == "build" or way.named:
        return way.named if case.site == "build" or there else ""
    if way.first or not (way.kills or way.wrong) or not there or (case.set_aside and case.kills_tasks):
        return ""
    if way.wrong:
        return way.named
    if case.kills_tasks:
        return r"dies of record \d+ .*'in', \d\.(json|parquet).*(touch|Own) \(job\.py:\d+\)"
    if case.site in OPERATORS:
        return r"job\.py:\d+|user code: it ended the process of instance .*, operator 'op'"
    return r"job\.py:\d+"


def _await_end(running: runner.Running) -> str:
    """Why it has not ended in time, if so."""
    began = time.monotonic()
    try:
        running.await_that(lambda: any(r["kind"] == "ready" for r in running.records()), "driver that is ready", 120)
    except TimeoutError as error:
        return str(error)
    ready = time.monotonic()
    seconds = STOP_SECONDS * min(max((ready - began) / QUIET_SECONDS, 1), SLOWER)
    while running.process.poll() is None:
        if time.monotonic() > ready + seconds:
            return f"no end {seconds:.0f} s after the driver was ready, which took {ready - began:.0f} s"
        time.sleep(0.05)
    return ""


def _not_named(pattern: str, result: runner.Result) -> list[str]:
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", result.errors).split())
    if result.code in (0, -1000):
        return [f"it should have stopped, exit code {result.code}"]
    return [] if re.search(pattern, said) else [f"the terminal does not match {pattern!r}"]


def _other_rows(case: Case, rows: list[Row], output: Path) -> list[str]:
    folder = output / ("stored" if case.sink == "foreach_epoch" else "out")
    found: list[Row] = []
    for file in sorted(folder.glob("epoch=*/*.parquet"), key=lambda one: int(one.parent.name[6:])):
        table = pq.ParquetFile(file).read()
        parts = {name: plain(table.column(name).combine_chunks(), case.through_spark) for name in table.column_names}
        found += [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    if case.shape.name == "changes":
        found = list({tuple(row[key] for key in case.plan.keys): row for row in found}.values())
    expected, actual = (Counter(tuple(sorted(row.items())) for row in some) for some in (rows, found))
    missing, extra = expected - actual, actual - expected
    if not missing and not extra:
        return []
    return [f"missing {missing.total()} {[*missing][:2]}, unexpected {extra.total()} {[*extra][:2]}"]
