"""Values at the ends of every type that vanilla Spark writes, and of Arrow's others, through each source and sink: as Spark has them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import ferry
from ferry.connectors.formats.json_lines import parse_each
from ferry.kernels import columns, kinds
from tests.cluster import runner
from tests.kafka import KafkaBroker
from tests.unit.every_type import COLUMNS, SECONDS, seen

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parent / "pipelines" / "every_type.py"
US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
ENDS = [9 * 10**18, -2 * 10**17]
"""Microseconds near the ends of what INT96 has."""
SHORT: dict[str, pa.Array] = {
    "text": pa.array(["", "a", None, "nul\0", "ü" * 9000]),
    "bytes": pa.array([b"", b"\0\xff", None, b"x" * 9000]),
    **{
        name: pa.array([v for v in seen(COLUMNS[str(kind)]) if v is None or abs(v) < 10**18] + ENDS).cast(kind)
        for name, kind in (("at_utc", UTC), ("at_local", US))
    },
}
SPARKS: dict[str, pa.Array] = {
    name: SHORT.get(name, COLUMNS[kind])
    for name, kind in {
        "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f32": "float", "f64": "double",
        "text": "string", "bytes": "binary", "day": "date32[day]", "at_utc": "timestamp[us, tz=UTC]", "at_local": "timestamp[us]",
        "took": "duration[us]", "clock": "time64[us]",
    }.items()
} | {
    f"d{p}_{s}": pa.array([Decimal((0, (9,) * p, -s)), Decimal((1, (9,) * p, -s)), Decimal(0), None], pa.decimal128(p, s))
    for p, s in ((5, 2), (9, 0), (18, 18), (27, 3), (38, 0), (38, 38))
}  # fmt: skip
ROWS = max(map(len, SPARKS.values()))
YEAR_US = [int(at) * 10**6 for at in (-62_135_596_800, 1_710_037_800, 253_402_297_200)]
"""Begins of hours in the years 1, 2024 and 9999."""


def in_turns(column: pa.Array, rows: int) -> pa.Array:
    """Its values again and again."""
    return columns.taken(column, pa.array([i % len(column) for i in range(rows)]))


def around(column: pa.Array) -> dict[str, pa.Array]:
    """Lists, maps and structs of the values, to a depth of two; null, empty and full ones."""
    n = len(column)
    sizes = [i % 3 for i in range(n)]
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    inside = in_turns(column, ends[-1])
    offsets = pa.array(ends, pa.int32())
    mask = pa.array([i % 5 == 4 for i in range(n)])
    keys = pa.array([f"k{i}" for i in range(ends[-1])])
    lists = pa.ListArray.from_arrays(offsets, inside, mask=mask)
    pairs = pa.StructArray.from_arrays([inside, keys], ["a", "b"])
    return {
        "list": lists,
        "map": pa.MapArray.from_arrays(offsets, keys, inside),
        "structs": pa.ListArray.from_arrays(offsets, pairs),
        "struct": pa.StructArray.from_arrays([lists, column], ["l", "v"]),
    }


def table_of(some: dict[str, pa.Array], nested: bool) -> pa.Table:
    """Each column with its number, time and group; with `nested` its values inside of others, too."""
    rows = max(map(len, some.values()))
    made: dict[str, pa.Array] = {
        "n": pa.array(range(rows), pa.int64()),
        "k": pa.array([i % 3 for i in range(rows)], pa.int32()),
        "at": pa.array([YEAR_US[i % 3] + 1000 * i for i in range(rows)], pa.int64()).cast(UTC),
    }
    for name, column in some.items():
        whole = in_turns(column, rows)
        made |= {name: whole} | ({f"{name}_{how}": inner for how, inner in around(whole).items()} if nested else {})
    return pa.table(made)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "1")
    one = (
        builder.config("spark.sql.timeType.enabled", "true")
        .config("spark.sql.codegen.wholeStage", "false")
        .getOrCreate()
    )
    yield one
    one.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    one = KafkaBroker(tmp_path_factory.mktemp("kafka"), wired=False)
    yield one
    one.kill()


def micros(table: pa.Table) -> pa.Table:
    """With times of the day in Spark's microseconds, which PySpark gives out as nanoseconds."""

    def kind(of: pa.DataType) -> pa.DataType:
        if of == pa.time64("ns"):
            return pa.time64("us")
        if pa.types.is_list(of):
            return pa.list_(kind(of.value_type))
        if pa.types.is_map(of):
            return pa.map_(of.key_type, kind(of.item_type))
        return pa.struct([f.with_type(kind(f.type)) for f in of]) if pa.types.is_struct(of) else of

    return table.cast(pa.schema([f.with_type(kind(f.type)) for f in table.schema]))


def differences(
    found: pa.Table, right: pa.Table, by: Sequence[str] = ("n",), near: Sequence[str] = ()
) -> dict[str, Any]:
    """By column, in this order of rows, the first values that differ; `near` ones are equal within a rounding."""
    if found.num_rows != right.num_rows:
        return {"rows": (found.num_rows, right.num_rows)}
    found, right = (micros(one.sort_by([(name, "ascending") for name in by])) for one in (found, right))
    wrong: dict[str, Any] = {}
    for name in right.column_names:
        if name not in found.column_names:
            wrong[name] = "is not there"
            continue
        for i, (x, y) in enumerate(zip(*(seen(one[name].combine_chunks()) for one in (found, right)), strict=True)):
            if repr(x) != repr(y) and not (name in near and x == pytest.approx(y, rel=1e-9)):
                wrong.setdefault(name, (i, repr(x)[:80], repr(y)[:80]))
    return wrong


def written(result: runner.Result, sink: str) -> pa.Table:
    """What a sink of files has."""
    files = sorted(result.output.glob(f"{sink}/epoch=*/*.parquet"))
    assert files, (sink, result.story())
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])


def unpacked(table: pa.Table) -> pa.Table:
    """The records that were packed as bytes."""
    return pa.concat_tables([ipc.open_stream(row).read_all() for row in table["row"].to_pylist()])


def store(file: Path, table: pa.Table) -> None:
    with ipc.new_file(file, table.schema) as out:
        out.write_table(table)


# ---- Avro
AVRO: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float",
    pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes", pa.duration("us"): "long",
    pa.date32(): {"type": "int", "logicalType": "date"}, UTC: {"type": "long", "logicalType": "timestamp-micros"},
    US: {"type": "long", "logicalType": "local-timestamp-micros"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
}  # fmt: skip


def avro_of(kind: pa.DataType, name: str) -> Any:
    """The schema of Avro for a column, which may be null."""
    if pa.types.is_decimal(kind):
        own: Any = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    elif pa.types.is_list(kind):
        own = {"type": "array", "items": avro_of(kind.value_type, f"{name}_i")}
    elif pa.types.is_map(kind):
        own = {"type": "map", "values": avro_of(kind.item_type, f"{name}_v")}
    elif pa.types.is_struct(kind):
        fields = [{"name": f.name, "type": avro_of(f.type, f"{name}_{f.name}")} for f in kind]
        own = {"type": "record", "name": name, "fields": fields}
    else:
        own = AVRO[kind]
    return ["null", own]


def integers(kind: pa.DataType) -> pa.DataType:
    """The type that Avro writes, where it is another one."""
    if pa.types.is_list(kind):
        return pa.list_(integers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, integers(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(integers(f.type)) for f in kind])
    return {pa.date32(): pa.int32()}.get(kind, pa.int64() if pa.types.is_temporal(kind) else kind)


def for_avro(value: Any, kind: pa.DataType) -> Any:
    """A value as fastavro writes it where times are integers."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: for_avro(one, kind.item_type) for key, one in value}
    if pa.types.is_list(kind):
        return [for_avro(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {f.name: for_avro(value[f.name], f.type) for f in kind}
    if pa.types.is_decimal(kind):
        whole = int(value.scaleb(kind.scale, Context(prec=100)))
        return whole.to_bytes(whole.bit_length() // 8 + 1, signed=True)
    return value


def without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_logical(one) for name, one in schema.items() if name != "logicalType"}


def avro_values(table: pa.Table) -> tuple[Any, list[bytes]]:
    """(the schema, the rows as values of it)."""
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": f.name, "type": avro_of(f.type, f.name)} for f in table.schema],
    }
    plain, made = fastavro.parse_schema(without_logical(schema)), []
    whole = table.cast(pa.schema([f.with_type(integers(f.type)) for f in table.schema]))
    kind = pa.struct(list(whole.schema))
    for row in whole.to_pylist():
        fastavro.schemaless_writer(data := io.BytesIO(), plain, for_avro(row, kind))
        made.append(b"\0" + (1).to_bytes(4) + data.getvalue())
    return schema, made


@contextlib.contextmanager
def registry(schema: Any) -> Iterator[str]:
    """That knows one schema."""
    text = json.dumps({"schema": json.dumps(schema)}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ---- Arrow's other types
def others() -> pa.Table:
    """Columns of every type of Arrow that there is something of in Spark, with the values that Spark's type has."""
    some = {}
    for name, column in COLUMNS.items():
        kind = column.type
        if kind in (pa.month_day_nano_interval(), pa.decimal256(76, 3)):
            continue
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            fits = [v is None or -(2**63) <= v * 10**6 // SECONDS[kind.unit] < 2**63 for v in seen(column)]
            column = column.filter(pa.array(fits))
        some[name] = column
    return table_of(some, nested=False)


def as_spark(kind: pa.DataType, value: Any) -> Any:
    """What Spark has of a value of this type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if value is None:
        return None
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return value * 10**6 // SECONDS[kind.unit]
    if pa.types.is_time(kind):
        return value * 10**6 // SECONDS[kind.unit]
    if kind == pa.uint64():
        return Decimal(value)
    return value // 86_400_000 if kind == pa.date64() else value


# ---- what is aggregated
ORDERED = "min", "max", "first", "last", "arg_max", "count"
KEYS = {
    "int96": [name for name in SPARKS if name not in ("took", "clock")],
    "stored": [name for name, column in COLUMNS.items() if kinds.key_kind_of(column.type) and name != "uint64"],
}
NUMBERS = [name for name in SPARKS if name[0] in "ifd" and name not in ("day", "i64", "d38_0", "d38_38")]


def held() -> dict[str, dict[str, tuple[str, str]]]:
    """By operator, what it makes: (function, column); few enough for one."""
    made: dict[str, dict[str, tuple[str, str]]] = {}
    plain = [name for name in SPARKS if name not in ("text", "bytes")]
    for number, some in enumerate([*(plain[i : i + 2] for i in range(0, len(plain), 2)), ["text", "bytes"]]):
        made[f"int96_{number}"] = {f"{what}_{name}": (what, name) for name in some for what in ORDERED}
    for number in range(0, len(NUMBERS), 3):
        some = NUMBERS[number : number + 3]
        made[f"int96_n{number}"] = {
            f"{what}_{name}": (what, name) for name in some for what in ("sum", "mean", "stddev")
        }
    return made


def by_spark(frame: DataFrame, by: Sequence[Any], what: dict[str, tuple[str, str]]) -> pa.Table:
    """The same aggregates by vanilla Spark."""
    words = {"first": "min_by({0}, at) filter (where {0} is not null)", "last": "max_by({0}, at) filter (where {0} is not null)",
             "arg_max": "max_by({0}, n) filter (where {0} is not null)", "mean": "avg({0})"}  # fmt: skip
    made = [
        functions.expr(words.get(function, f"{function}({{0}})").format(name)).alias(out)
        for out, (function, name) in what.items()
    ]
    return frame.groupBy(*by).agg(*made).toArrow()


def job(folder: Path, name: str, args: dict[str, Any], **spec: Any) -> Path:
    file = folder / f"{name}.yaml"
    whole = {
        "pipeline": {"file": str(PIPELINE), "args": args}, "workers": 2,
        "state": {"virtualNodes": 8, **spec.pop("state", {})}, "deadLetter": {"directory": str(folder / "dead")}, **spec,
    }  # fmt: skip
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name}, "spec": whole}
    file.write_text(json.dumps(document))
    return file


def vanilla(spark: SparkSession, folder: Path) -> DataFrame:
    """The data set as Spark has written it: by its defaults, in the old ways, and as JSON."""
    table = table_of(SPARKS, nested=True)
    frame = spark.createDataFrame(table).coalesce(1)
    frame.write.parquet(str(folder / "int96"))
    for option, value in (("outputTimestampType", "TIMESTAMP_MICROS"), ("writeLegacyFormat", "true")):
        spark.conf.set(f"spark.sql.parquet.{option}", value)
    frame.write.parquet(str(folder / "legacy"))
    for option in ("outputTimestampType", "writeLegacyFormat"):
        spark.conf.unset(f"spark.sql.parquet.{option}")
    texts = frame.drop(*(name for name in table.column_names if name.startswith("took")))
    texts.write.json(str(folder / "json"))
    physical = {pq.read_metadata(file).schema.column(2).physical_type for file in folder.glob("*/*.parquet")}
    assert physical == {"INT96", "INT64"}
    return frame


def test_values_of_all_types_through_each_source_and_sink(
    tmp_path: Path, spark: SparkSession, broker: KafkaBroker
) -> None:
    data = tmp_path / "data"
    frame = vanilla(spark, data)
    read = spark.read.parquet(str(data / "int96"))
    table, other = micros(read.toArrow()), others()
    texts = pa.schema([field for field in table.schema if not field.name.startswith("took")])
    lines = [line for file in data.glob("json/*.json") for line in file.read_bytes().splitlines()]
    schema, values = avro_values(table)
    for name, stored in (("texts", texts.empty_table()), ("avro", table.schema.empty_table()), ("stored", other)):
        store(data / f"{name}.arrow", stored)
    for topic, records in (("lines", [*lines, b'{"i8": 300}']), ("avro", values), ("rows", [])):
        broker.create(topic, 2)
        broker.produce(topic, ((i % 2, record) for i, record in enumerate(records)))
    with registry(schema) as url:
        (data / "plan.json").write_text(json.dumps({"keys": KEYS, "held": held()}))
        args = {"data": str(data), "servers": broker.servers, "registry": url, "stream": False}
        result = runner.run(job(tmp_path, "types", args), tmp_path)
    assert result.code == 0 and not result.left, result.story()
    wrong: dict[str, Any] = {way: differences(written(result, way), table) for way in ("int96", "legacy")}
    wrong["avro"] = differences(unpacked(written(result, "avro")), table)
    by_texts = spark.read.schema(frame.schema).json(str(data / "json")).toArrow().select(texts.names)
    wrong |= {way: differences(unpacked(written(result, way)), by_texts) for way in ("json", "topic")}
    wrong["foreach"] = differences(spark.read.parquet(str(data / "foreach")).toArrow(), table)
    wrong["stored"] = of_others(written(result, "stored"), other)
    wrong["rows"] = of_topic(spark, [record.value() for record in broker.read("rows")], frame, table, data)
    window = functions.window("at", "1 hour")
    for name, what in held().items():
        right = by_spark(read, ["k", window.start.cast("long").alias("window_start")], what)
        near = [out for out, (function, _) in what.items() if function in ("sum", "mean", "stddev")]
        found = written(result, name)
        found = found.set_column(0, "k", found["k"].cast(pa.int32()))
        wrong[name] = differences(
            found, right.set_column(1, "window_start", pc.multiply(right["window_start"], 1000)), ["k"], near
        )
    for name, own in (("int96", table), ("stored", other)):
        wrong[f"{name}_keys"] = of_keys(written(result, f"{name}_keys"), own, KEYS[name])
    assert not any(wrong.values()), "\n".join(f"{way}: {what}" for way, what in wrong.items() if what)
    (letter,) = [json.loads(line) for file in tmp_path.glob("dead/*/*.jsonl") for line in file.read_text().splitlines()]
    assert letter["record"] == '{"i8": 300}' and "does not fit int8" in letter["reason"]
    printed = (result.directory / "logs" / "driver.log").read_text()
    assert f": {ROWS} rows" in printed and 'at="0001-01-01T00:00:00+00:00"' in printed


def of_others(found: pa.Table, other: pa.Table) -> dict[str, Any]:
    """Columns of Arrow's types that are not what Spark has of them."""
    found, wrong = micros(found).sort_by("n"), {}
    for field in other.schema:
        right = [as_spark(field.type, value) for value in seen(other[field.name].combine_chunks())]
        mine = seen(found[field.name].combine_chunks())
        if repr(mine) != repr(right):
            wrong[field.name] = next((x, y) for x, y in zip(mine, right, strict=True) if repr(x) != repr(y))
    return wrong


def of_topic(spark: SparkSession, lines: list[bytes], frame: DataFrame, table: pa.Table, data: Path) -> dict[str, Any]:
    """What vanilla Spark, or Ferry, reads otherwise in the records of a topic; they are strict JSON."""
    for line in lines:
        json.loads(line, parse_constant=lambda word: pytest.fail(word))
    (data / "rows").mkdir()
    (data / "rows" / "0.json").write_bytes(b"\n".join(lines))
    found = spark.read.schema(frame.schema).json(str(data / "rows")).toArrow()
    names = [name for name in table.column_names if not name.startswith("took")]  # PnDTnS is no interval of Spark's
    own, bad = parse_each(lines, table.schema)
    return differences(found, table.select(names)) | ({"bad": bad} if bad else {}) | differences(own, table)


def of_keys(found: pa.Table, own: pa.Table, keys: Sequence[str]) -> dict[str, Any]:
    """Groups that differ from those of plain Python, to which -0.0 is 0.0, too; Parquet has no seconds."""
    for number, field in enumerate(own.schema):
        if pa.types.is_timestamp(field.type) and field.name in keys:
            own = own.set_column(number, field.name, own[field.name].cast(found[field.name].type))
    rows = zip(*(seen(own[name].combine_chunks()) for name in keys), strict=True)
    made = zip(*(seen(found[name].combine_chunks()) for name in keys), strict=True)
    right, mine = Counter(rows), dict(zip(made, found["rows"].to_pylist(), strict=True))
    return {"groups": [*(right.items() ^ mine.items())][:2]} if right != mine else {}


def test_values_of_all_types_as_a_stream_of_spark_and_as_state(tmp_path: Path, spark: SparkSession) -> None:
    data, location = tmp_path / "data", tmp_path / "store"
    frame = vanilla(spark, data)
    what = {f"{w}_{name}": (w, name) for name in ("f64", "d27_3", "at_utc", "day") for w in ("min", "max", "count")}
    what |= {f"{w}_{name}": (w, name) for name in ("f32", "d9_0") for w in ("sum", "mean")}
    (data / "plan.json").write_text(json.dumps({"held": {"kept": what}}))
    state = {"checkpoint": {"location": str(location), "every": "1s"}}
    states: list[pa.Table] = []

    def read(running: runner.Running) -> None:
        running.await_epoch(0)
        running.await_that(lambda: bool(runner.manifests(location)), "a checkpoint", 60)
        states.append(ferry.read_state(str(location), "kept", job="types"))
        runner.stop(running)

    result = runner.run(
        job(tmp_path, "types", {"data": str(data), "stream": True}, state=state), tmp_path, meanwhile=read
    )
    assert result.code == 0 and not result.left, result.story()
    right = by_spark(frame, ["k"], what)
    near = [out for out, (function, _) in what.items() if function in ("sum", "mean")]
    wrong = {"stream": differences(written(result, "stream"), micros(frame.toArrow()))}
    for name, found in (
        ("kept", written(result, "kept")),
        ("foreach", spark.read.parquet(str(data / "kept")).toArrow()),
        ("state", states[0]),
    ):
        wrong[name] = differences(found.set_column(0, "k", found["k"].cast(pa.int32())), right, ["k"], near)
    assert not any(wrong.values()), "\n".join(f"{way}: {what}" for way, what in wrong.items() if what)
