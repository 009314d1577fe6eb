"""Ferry's side: the processor over a directory of Parquet files that ends. Spark's is in `bench/shared/vanilla_spark.py`."""

from __future__ import annotations

from typing import Any

import ferry
from bench.parts.stateful_processor.counting import OUTPUT, RunningCount


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files of `directory`."""
    return {"events": ferry.parquet_files(args["directory"], finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Counts by key."""
    keyed = streams["events"].event_time("ts", delay="0s").key_by("k")
    return keyed.transform_with_state("counts", RunningCount(), OUTPUT, "None").sink(ferry.parquet("rows"))
