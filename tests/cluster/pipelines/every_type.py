"""Columns of every type: carried along from each kind of source, as keys, aggregated, and kept as state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

import ferry


class Stored(ferry.Splits):
    """A source of the user's own: the batches of a file of Arrow."""

    def __init__(self, file: str) -> None:
        self.file = file

    def schema(self) -> pa.Schema:
        """As the file has them."""
        return read(self.file).schema

    def start(self) -> int:
        """The number of the next batch."""
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        """All at once."""
        return 1

    def ended(self, position: int) -> bool:
        """After that."""
        return position == 1

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, Any]]:
        """One task has all."""
        return [{}] if start < stop else []

    def read(self, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """As they are."""
        for batch in read(self.file).to_batches():
            yield batch if columns is None else batch.select(list(columns))


def read(file: str) -> pa.Table:
    """A file of Arrow."""
    with ipc.open_file(file) as stored:
        return stored.read_all()


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Those that end, or with `stream` Spark's own, which does not."""
    folder = Path(args["data"])
    if args["stream"]:
        frame = spark.read.parquet(str(folder / "int96"))
        return {"stream": spark.readStream.schema(frame.schema).parquet(str(folder / "int96"))}
    texts = read(str(folder / "texts.arrow")).schema
    binary = read(str(folder / "avro.arrow")).schema
    return {
        "int96": ferry.parquet_files(folder / "int96", finite=True),
        "legacy": ferry.parquet_files(folder / "legacy", finite=True),
        "json": ferry.json_files(folder / "json", texts, finite=True),
        "stored": Stored(str(folder / "stored.arrow")),
        "topic": ferry.kafka(args["servers"], "lines", texts, finite=True),
        "avro": ferry.kafka(args["servers"], "avro", binary, registry=args["registry"], finite=True),
    }


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Each source to files, one of them to all sinks; keys and aggregates of two."""

    def keep(epoch: int, generation: int, rows: Any) -> None:
        rows.write.mode("overwrite").parquet(f"{args['data']}/{'kept' if args['stream'] else 'foreach'}/epoch={epoch}")

    plan = json.loads(Path(args["data"], "plan.json").read_text())
    if args["stream"]:
        outputs = [streams["stream"].sink(ferry.parquet("stream"))]
    else:
        outputs = [streams[name].sink(ferry.parquet(name)) for name in ("int96", "legacy")]
        outputs.append(streams["stored"].transform(lambda rows: rows).sink(ferry.parquet("stored")))
        outputs += [carried(streams[name], name) for name in ("json", "topic", "avro")]
    if args["stream"]:
        kept = aggregated(streams["stream"].key_by("k"), "kept", plan["held"]["kept"], emit=ferry.changes())
        return [*outputs, kept.sink(ferry.parquet("kept")), kept.sink(ferry.foreach_epoch(keep))]
    one = streams["int96"]
    topic = ferry.kafka_sink(args["servers"], "rows", key="n")
    outputs += [one.sink(topic), one.sink(ferry.console()), one.sink(ferry.foreach_epoch(keep))]
    for name, keys in plan["keys"].items():
        timed = streams[name].event_time("at", delay="0s", ahead=None)
        grouped = timed.key_by(*keys).window(ferry.tumbling("1h")).aggregate(f"{name}_keys", rows=ferry.count())
        outputs.append(grouped.sink(ferry.parquet(f"{name}_keys")))
        windows = timed.key_by("k").window(ferry.tumbling("1h"), bounds=pa.int64())
        for held, what in plan["held"].items():
            if held.startswith(f"{name}_"):
                outputs.append(aggregated(windows, held, what).sink(ferry.parquet(held)))
    return outputs


def carried(stream: Any, name: str) -> Any:
    """Rows of a source through an operator."""
    keyed = stream.map_batches(packed).event_time("at", delay="0s", ahead=None).key_by("n")
    return (
        keyed.window(ferry.tumbling("1h")).aggregate(f"{name}_rows", row=ferry.first("row")).sink(ferry.parquet(name))
    )


def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each record as the bytes of a batch of its own."""
    rows = []
    for i in range(batch.num_rows):
        with ipc.new_stream(sink := pa.BufferOutputStream(), batch.schema) as out:
            out.write_batch(batch.slice(i, 1))
        rows.append(sink.getvalue().to_pybytes())
    return pa.record_batch({"n": batch["n"], "at": batch["at"], "row": pa.array(rows, pa.binary())})


def aggregated(keyed: Any, name: str, what: dict[str, list[str]], **more: Any) -> Any:
    """Columns of (function, column), in the order of their names."""
    by = {"arg_max": {"by": "n"}}
    made = {out: getattr(ferry, function)(column, **by.get(function, {})) for out, (function, column) in what.items()}
    return keyed.aggregate(name, aggregator=made, **more)
