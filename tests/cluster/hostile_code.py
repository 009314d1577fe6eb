"""Programs of hostile jobs: where the user's code is called, in which ways it goes wrong, and how the culprit is named."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

LINE = r"job\.py:\d+"


@dataclass(frozen=True)
class Way:
    """One way in which the user's code goes wrong."""

    name: str
    action: str
    """statement of `provoke(marks)`, which is called with the marks of all records that the code is given"""
    named: str = ""
    """pattern that the terminal matches when the job stops; empty: it goes on"""
    first: bool = False
    """the first time, and never again; else wherever the marked record is"""
    kills: bool = False
    """its process"""
    wrong: str = ""
    """what the function returns in place of its rows"""
    only: tuple[str, ...] = ()
    """sites"""
    but: tuple[str, ...] = ()


RAISES = [
    Way("raises", 'raise ValueError("bad record")', rf"ValueError: bad record \({LINE}"),
    Way("divides by zero", "1 // 0", rf"ZeroDivisionError: .*\({LINE}"),
    Way(
        "raises from another error",
        'raise KeyError("x") from ValueError("inner")',
        rf"KeyError: 'x' \(from ValueError: inner\) \({LINE}",
    ),
    Way("raises two lines", 'raise TypeError("two\\nlines\\x1b[2J")', rf"TypeError: two lines\S* \({LINE}"),
    Way("raises what cannot be pickled", "raise Pair(1, 2)", rf"Pair: .*\({LINE}", but=("sink",)),
    Way("raises no Exception", 'raise Base("base")', rf"Base: base \({LINE}"),
    Way("raises what has no words", "raise Wordless()", rf"Wordless.*\({LINE}", but=("sink",)),
    Way("raises for want of memory", "raise MemoryError()", rf"MemoryError.*\({LINE}", but=("sink",)),
    Way("stops an iteration", "raise StopIteration()", rf"StopIteration.*\({LINE}", but=("sink",)),
    Way("recurs", "provoke(marks)", rf"RecursionError: .*\({LINE}"),
    Way("asserts", 'assert False, "x" * 100_000', rf"AssertionError: x+.*\({LINE}"),
    Way("sys.exit", "sys.exit(3)", rf"SystemExit: 3 \({LINE}"),
    Way("sys.exit of words", 'sys.exit("enough")', rf"SystemExit: enough \({LINE}"),
    Way("says that it is final", 'raise ferry.Final("enough of it")', "enough of it"),
]
PASSES = [
    Way("raises at first", 'raise ConnectionError("not yet")', first=True),
    Way("exits at first", "os._exit(0)", first=True, kills=True, but=("sink", "behind")),
    Way("is killed at first", "os.kill(os.getpid(), 9)", first=True, kills=True),
    Way("forks", "os.fork() == 0 and os._exit(0)", first=True),
    Way("forks and goes on", "os.fork()", first=True, only=("map", "behind")),
    Way("starts a thread that raises", "threading.Thread(target=lambda: 1 // 0).start()", first=True),
    Way("writes escapes", 'print("\\x1b[2J\\nhostile: halted", file=sys.stderr, flush=True)', first=True),
    Way("closes what it does not own", "sys.stdout.close()", first=True, but=("sink",)),
    Way("takes another directory", 'os.chdir("/")', first=True),
]
DIES = [
    Way("signal", "signal.raise_signal(11)", "", kills=True),
    Way("aborts", "os.abort()", "", kills=True),
    Way("is killed", "os.kill(os.getpid(), 9)", "", kills=True),
    Way("exits", "os._exit(3)", "", kills=True),
    Way("exits with 0", "os._exit(0)", "", kills=True),
]
BATCHES = [
    ("other columns", 'rows.drop_columns(["mark"])'), ("other types", 'rows.set_column(0, "id", pa.array(["x"] * rows.num_rows))'),
    ("more columns", 'rows.append_column("more", rows.column("mark"))'), ("no batch", "None"), ("a list", "[1, 2]"),
    ("a class", "pa.RecordBatch"),
]  # fmt: skip
STATES = [
    ("no state", "None"), ("a state without a column", '{"n": made["n"]}'), ("too few", '{k: v[:-1] for k, v in made.items()}'),
    ("too many", '{k: [*v, 1] for k, v in made.items()}'), ("words", '{**made, "n": ["x"] * len(made["n"])}'),
]  # fmt: skip
EMITS = [
    ("too few", '{**made, "n": made["n"][:-1]}'), ("words", '{**made, "n": ["x"] * len(made["n"])}'),
    ("no rows", "None"), ("a missing column", '{"n": made["n"]}'),
]  # fmt: skip
ROWS = [
    ("a tuple", "(1, 2)"),
    ("other names", "Row(other=1)"),
    ("nothing", "None"),
    ("words", 'Row(id="x", mark="y", n="z")'),
]
FRAMES = [("no frame", "None"), ("other columns", 'rows.drop("mark")')]
"""(what is returned, its code), at each kind of site"""

WRONG = {"read": [one for one in BATCHES if one[0] != "more columns"], "map": BATCHES, "behind": BATCHES, "update": STATES, "result": STATES, "process": EMITS, "timer": EMITS, "rows": ROWS,
         "expired": ROWS}  # fmt: skip
BUILDS = [
    Way("import", "import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module'"),
    Way("syntax", "def f(:", rf"SyntaxError|{LINE}"),
    Way("raises while imported", '{}["no"]', rf"KeyError: 'no' \({LINE}"),
    Way("exits while imported", "sys.exit(0)", rf"SystemExit: 0 \({LINE}"),
    Way("os._exit while imported", "os._exit(0)", rf"os\._exit\(0\) \({LINE}"),
    Way("no functions", "del sources", r"job\.py"),
    Way("no sources", "sources = lambda spark, args: None", r"job\.py|sources"),
    Way("no sinks", "pipeline = lambda streams, args: []", r"source 'in' is read by no operator and no sink"),
    Way("no pipeline", "pipeline = 5", r"job\.py|pipeline"),
    Way("sources that raise", "sources = lambda spark, args: 1 // 0", rf"ZeroDivisionError: .*\({LINE}"),
    Way("no base", "pipeline = lambda streams, args: sys.exit()", rf"SystemExit.*\({LINE}"),
    Way("base", 'pipeline = lambda streams, args: (_ for _ in ()).throw(Base("base"))', rf"Base: base \({LINE}"),
]
"""Statements at the end of the file."""

PROGRAM = """
import os, signal, sys, threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import ferry

HERE = {here!r}
SCHEMA = pa.schema([{schema}])

class Base(BaseException):
    pass

class Pair(Exception):
    def __init__(self, one, other):
        super().__init__("a pair")

class Wordless(Exception):
    def __str__(self):
        raise self

def first(marks):
    if not marks:
        return False
    try:
        os.close(os.open(HERE + "/mark", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def is_it(marks):
    return {condition}

def provoke(marks):
    if is_it(marks):
        {action}

def touch(rows):
    marks = rows.column("mark").to_pylist()
    provoke(marks)
    return {wrong} if {is_wrong} and is_it(marks) else rows

def checked(rows):
    from pyspark.sql import functions as F

    @F.udf("bigint")
    def mark_of(mark):
        provoke([mark])
        return mark

    return rows.withColumn("mark", mark_of("mark"))

{operator}
def store(epoch, generation, rows):
    table = rows.toArrow()
    if {in_sink}:
        provoke(table.column("mark").to_pylist())
    os.makedirs(f"{{HERE}}/stored/epoch={{epoch}}", exist_ok=True)
    pq.write_table(table, f"{{HERE}}/stored/epoch={{epoch}}/part.parquet")

class Files:
    def __init__(self, directory):
        self.directory = directory

    def schema(self):
        return SCHEMA

    def start(self):
        return 0

    def latest(self, start, rows):
        return min(start + 1, len(os.listdir(self.directory)))

    def ended(self, position):
        return position == len(os.listdir(self.directory))

    def plan(self, start, end, tasks):
        return [{{"file": name}} for name in sorted(os.listdir(self.directory))[start:end]]

    def read(self, split, columns):
        for batch in pq.read_table(self.directory + "/" + split["file"]).cast(SCHEMA).to_batches():
            marks, rows = batch.column("mark").to_pylist(), batch.select(columns or SCHEMA.names)
            if {in_source}:
                provoke(marks)
                rows = {wrong} if {is_wrong} and is_it(marks) else rows
            yield rows

def sources(spark, args):
    return {{{sources}}}

def pipeline(streams, args):
{pipeline}

{build}
"""

OWN = """
@dataclass
class Own(ferry.Aggregator):
    state = output = pa.schema([("n", pa.int64()), ("mark", pa.int64())])
    commutative = {commutative}

    def update(self, rows, begins):
        marks = rows.column("mark").to_numpy()
        made = {{"n": np.diff([*begins, len(marks)]), "mark": np.maximum.reduceat(marks, begins)}}
        return self.checked("update", made, marks)

    def merge(self, states, begins):
        n, marks = (column.to_numpy() for column in states.columns)
        return {{"n": np.add.reduceat(n, begins), "mark": np.maximum.reduceat(marks, begins)}}

    def result(self, states):
        made = {{name: states.column(name).to_numpy() for name in ("n", "mark")}}
        return self.checked("result", made, made["mark"])

    def checked(self, what, made, marks):
        if what != {site!r}:
            return made
        provoke(marks.tolist())
        return {wrong} if {is_wrong} and is_it(marks.tolist()) else made

"""
COUNTING = """
@dataclass
class Counting(ferry.Process):
    hold: int
    tables = {{"kept": ferry.StateTable(pa.schema([("n", pa.int64()), ("id", pa.int64()), ("mark", pa.int64())]))}}
    output = pa.schema([("id", pa.int64()), ("mark", pa.int64()), ("n", pa.int64())])

    def process(self, work):
        key, ids, marks = work.key_of(), *(work.rows().column(name).to_numpy() for name in ("id", "mark"))
        kept = work.get("kept")
        n, top, mark = (kept.column(name).fill_null(0).to_numpy().copy() for name in ("n", "id", "mark"))
        np.add.at(n, key, 1)
        np.maximum.at(top, key, ids)
        np.maximum.at(mark, key, marks)
        heard = np.unique(key)
        work.put("kept", heard, {{"n": n[heard], "id": top[heard], "mark": mark[heard]}})
        work.set_timer(heard, self.hold)
        self.emit("process", work, key, {{"id": ids, "mark": marks, "n": np.zeros(len(key), np.int64)}})
        key, _ = work.timers()
        self.emit("timer", work, key, {{"id": top[key], "mark": mark[key], "n": n[key]}})

    def emit(self, what, work, key, made):
        marks = made["mark"].tolist()
        if what == {site!r}:
            provoke(marks)
            if {is_wrong} and is_it(marks):
                made = {wrong}
        work.emit(key, made)

"""
COUNTED = """
class Counted(StatefulProcessor):
    def init(self, handle):
        self.handle, self.kept = handle, handle.getValueState("kept", "n LONG, id LONG, mark LONG")

    def handleInputRows(self, key, rows, timerValues):
        n, top, mark = self.kept.get() or (0, 0, 0)
        for row in rows:
            n, top, mark = n + 1, max(top, row.id), max(mark, row.mark)
            yield self.checked("rows", Row(id=row.id, mark=row.mark, n=0), row.mark)
        self.kept.update((n, top, mark))
        self.handle.registerTimer(10_000_000)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n, top, mark = self.kept.get()
        yield self.checked("expired", Row(id=top, mark=mark, n=n), mark)

    def checked(self, what, made, mark):
        if what != {site!r}:
            return made
        provoke([mark])
        return {wrong} if {is_wrong} and is_it([mark]) else made

"""
OPERATORS = {"update": OWN, "result": OWN, "process": COUNTING, "timer": COUNTING, "rows": COUNTED, "expired": COUNTED}
"""By what is called in them."""


def ways_of(site: str) -> list[list[Way]]:
    """What can go wrong at a site, in kinds that are as likely."""
    if site == "build":
        return [BUILDS]
    wrong = [Way(f"gives {name}", "pass", LINE, wrong=code) for name, code in WRONG.get(site, [])]
    kinds = [RAISES, RAISES, PASSES, DIES, wrong]
    fitting = [[w for w in ways if site not in w.but and (not w.only or site in w.only)] for ways in kinds]
    return [ways for ways in fitting if ways]


def program(way: Way, site: str, sites: tuple[str, ...], **fill: object) -> str:
    """The user's file. `sites` are those of the operator, of which `site` may be another one."""
    mine = site in OPERATORS
    of_way = {"wrong": way.wrong or "None", "is_wrong": bool(way.wrong), "site": site}
    operator = OPERATORS[sites[0]].format(**{**fill, **of_way}) if sites else ""
    condition = "first(marks)" if way.first else "1 in marks"
    body = {"wrong": "None", "is_wrong": False} if mine else of_way
    action = textwrap.indent(way.action, " " * 8).strip() if site != "build" else "pass"
    build = way.action if site == "build" else ""
    return PROGRAM.format(
        **{
            **fill,
            **body,
            "operator": operator,
            "condition": condition,
            "action": action,
            "build": build,
            "in_sink": site == "sink",
            "in_source": site == "read",
        }
    )
