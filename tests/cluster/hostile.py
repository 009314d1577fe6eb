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
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cluster import runner
from tests.cluster.hostile_code import OPERATORS, Way, program, ways_of
from tests.cluster.hostile_columns import LONG, SCALARS, Kind, array, kind_of, plain
from tests.cluster.hostile_jobs import SECOND, SHAPES, Plan, Row, Shape, aggregates_of, code_of, second
from tests.cluster.hostile_sources import TIMES, Drawn, Source

STOP_SECONDS = 60.0
"""From when the driver is ready to the end of a job that cannot go on, where a run is ready within QUIET_SECONDS.

A machine that needs longer for that is slower by as much, up to SLOWER times: what never stops is found all the same.
"""
QUIET_SECONDS, SLOWER = 10.0, 5.0


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
    least: int
    """of the numbers of records that go on; the marked one does anyway"""
    united: bool = False
    then: bool = False
    """a second operator is behind the first one"""

    def command(self) -> str:
        """In one line."""
        read = ", ".join(f"{one.form} of {sum(map(len, one.files))}" for one in self.sources)
        types = ", ".join(f"{name} {kind.type}" for name, kind in self.columns.items())
        words = f"hostile: {self.way.name} in {self.site}, {self.shape.name}{' and another' if self.then else ''}, {self.sink}"
        return " ".join([f"{words}; {read}; {types};", *(f"--set {one}" for one in self.sets)])

    def records(self, source: Source) -> list[Row]:
        """The good records, comparable, `ts` in milliseconds, but for those that are filtered, or set aside."""
        kinds = {name: kind.type for name, kind in self.columns.items()}
        parts = {
            n: plain(array(kind, [row[n] for row in source.good]), self.through_spark) for n, kind in kinds.items()
        }
        rows = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
        if self.shape.timed and kinds["ts"] != pa.int64():
            rows = [{**row, "ts": row["ts"] // 1_000_000} for row in rows]
        kept = [row for row in rows if _passes(row, self.least)]
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


def _passes(row: Row, least: int) -> bool:
    """What the first step of the pipeline lets pass."""
    return row["id"] >= least or bool(row["mark"])


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"hostile {seed}")
    shape = draw.choices(SHAPES, [3 if shape.sites else 1 for shape in SHAPES])[0]
    # What is set aside is foreseen where an operator reads JSON.
    sources = [
        Source("in", draw.choice(["json", "json", "json", "parquet", "own"] if shape.code else ["parquet", "own"]))
    ]
    united = not shape.other and not shape.ordered and bool(shape.code) and draw.random() < 0.25
    if shape.other or united:
        sources.append(Source("more", draw.choice(["json", "parquet"])))
    sink = draw.choice(["parquet", "parquet", "foreach_epoch", "console"])
    then = shape.windowed and draw.random() < 0.3
    sites = ["map", "map", "map", "build", *shape.sites * 3, *["read"] * 3 * (sources[0].form == "own")]
    sites += ["behind"] * 2 * bool(shape.code) + ["sink"] * 2 * (sink == "foreach_epoch")
    site = draw.choice(sites)
    way = draw.choice(draw.choice(ways_of(site)))
    columns, plan = _columns(draw, shape)
    set_aside = draw.random() < 0.5
    least = draw.choice([0, 0, draw.randint(1, 100)])
    frames = draw.random() < 0.3 and not way.kills and not way.wrong
    framed = (
        frames and site in ("map", "behind") and (site == "behind" or not any(one.form == "json" for one in sources))
    )
    drawn = Drawn(draw, columns, plan.keys, shape.timed, lambda row: _passes(row, least))
    chance = draw.choice([0.0, 0.01, 0.2, 0.9])
    for source in sources:
        drawn.fill(source, chance if source is sources[0] else 0.0, source is sources[0])
    sets = [f"workers={draw.choice([1, 1, 2])}", "cores=1", "state.virtualNodes=4"]
    sets += [f"state.replicas={draw.choice([0, 1])}"]
    sets += [f"epoch.mode={draw.choice(['auto', 'micro-batch'])}", f"epoch.maxRows={draw.choice([50, 1000])}"]
    sets += ["deadLetter.onCrash=set-aside"] if set_aside else []
    case = Case(
        seed, site, way, shape, columns, plan, sources, set_aside, sink, tuple(sets), "", False, least, united, then
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
    return columns, Plan(tuple(keys), aggregates_of(draw, values, shape.name != "records"), kept)


def _program(draw: random.Random, case: Case, framed: bool) -> str:
    shape, plan = case.shape, case.plan
    lines = []
    for letter, source in zip("so", case.sources, strict=False):
        time = '.event_time("ts", delay="1h")' if shape.timed else ""
        passing = f'(pc.field("id") >= {case.least}) | (pc.field("mark") == 1)'
        kept = f".map_batches(ferry.filter({passing}))" if case.least else ""
        lines.append(f'{letter} = streams["{source.name}"]{time}{kept}')
    touch = ".transform(checked)" if framed else ".map_batches(touch)"
    lines += [f"s = s{touch}"] if case.site == "map" else []
    # A join and a union want the same types on both sides, and Spark has not all of Arrow's.
    lines += ["o = o.transform(lambda rows: rows)"] if case.site == "map" and framed and len(case.sources) > 1 else []
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
    inputs = ", ".join(f'"{one.name}": {one.code}' for one in case.sources)
    more = {"schema": schema, "sources": inputs, "commutative": draw.random() < 0.5, "here": "HERE"}
    return program(case.way, case.site, shape.sites, pipeline="".join(f"    {line}\n" for line in lines), **more)


def written(case: Case, base: Path) -> Path:
    """The files of a case; the job's."""
    for source in case.sources:
        source.write(base, case.columns)
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
        return r"dies of (the )?record .*'in', .*\d\.(json|parquet).*(touch|Own|source 'in') \(job\.py:\d+\)"
    if case.site == "read":
        return r"dies of .*source 'in'|job\.py:\d+"
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
        for name in {"window_start", "window_end"} & {*table.column_names}:
            at, kind = table.schema.get_field_index(name), table.schema.field(name).type
            bounds = table.column(name).cast(pa.timestamp("ms", getattr(kind, "tz", None))).cast(pa.int64())
            table = table.set_column(at, name, bounds)
        parts = {name: plain(table.column(name).combine_chunks(), case.through_spark) for name in table.column_names}
        found += [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    if case.shape.name == "changes":
        found = list({tuple(row[key] for key in case.plan.keys): row for row in found}.values())
    expected, actual = (Counter(tuple(sorted(row.items())) for row in some) for some in (rows, found))
    missing, extra = expected - actual, actual - expected
    if not missing and not extra:
        return []
    return [f"missing {missing.total()} {[*missing][:2]}, unexpected {extra.total()} {[*extra][:2]}"]
