"""Clicks from files, counted and summed per user in windows of 10 s; the sink can be made to fail from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import ferry

SCHEMA = pa.schema([("user", pa.string()), ("ts", pa.int64()), ("amount", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    read = ferry.parquet_files if args.get("format") == "parquet" else ferry.json_files
    return {"clicks": read(args["input"], SCHEMA, finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count and sum per user and window."""
    clicks = streams["clicks"].event_time("ts").key_by("user").window(ferry.tumbling("10s"))
    sums = clicks.aggregate("sums", num=ferry.count(), total=ferry.sum("amount"))
    return sums.sink(ferry.foreach_epoch(_Files(Path(args["sink"]))) if "sink" in args else ferry.parquet("clicks"))


class _Files:
    """One file an epoch. Fails once for every epoch, and always while a file `broken` says so from an epoch on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, epoch: int, generation: int, rows: Any) -> None:
        broken, tried = self.directory / "broken", self.directory / f"tried-{epoch}"
        if broken.exists() and epoch >= int(broken.read_text()):
            raise RuntimeError("the database is away")
        if not tried.exists():
            tried.touch()
            raise RuntimeError("a hiccup of the database")
        text = "".join(json.dumps(row.asDict()) + "\n" for row in rows.collect())
        hidden = self.directory / f".{epoch}"
        hidden.write_text(text)
        hidden.rename(self.directory / f"epoch-{epoch}.jsonl")
