"""What a module declares is judged as a whole before anything runs, without Spark where Spark has no part in it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Output
from ferry.api.stream import Stream
from ferry.connectors.files.parquet_sink import Parquet
from ferry.contract.errors import SpecRefused
from ferry.spark.compile import CompiledPipeline, build

ROWS = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def counted(stream: Stream, name: str) -> Stream:
    return stream.event_time("ts").key_by("k").window(ferry.tumbling("10s")).aggregate(name, n=ferry.count())


def built(
    directory: Path, *sinks: str, names: str = "a", output: str | None = None, events: int | None = None
) -> CompiledPipeline:
    """A pipeline that counts each of these sources; the last count goes to these sinks."""

    def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
        return {name: ferry.parquet_files(directory, schema=ROWS) for name in names}

    def pipeline(streams: dict[str, Stream], args: dict[str, Any]) -> list[Output]:
        *_, last = [counted(streams[name], f"count_of_{name}") for name in names]
        return [last.sink(ferry.parquet(sink)) for sink in sinks]

    module = ModuleType("jobs")
    module.sources, module.pipeline = sources, pipeline  # type: ignore[attr-defined]
    return build(cast(Any, None), module, {}, output, events)


def test_an_operator_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="operator 'count_of_a' is read by no operator and no sink"):
        built(tmp_path, "out", names="ab")


def test_sinks_know_their_directories_and_have_one_each(tmp_path: Path) -> None:
    plan = built(tmp_path, "clicks/one", "views/two", output=str(tmp_path / "out"))
    assert [cast(Parquet, one.sink).directory for one in plan.outputs] == [
        tmp_path / "out" / "one",
        tmp_path / "out" / "two",
    ]
    with pytest.raises(SpecRefused, match="both write to"):
        built(tmp_path, "clicks/out", "views/out", output=str(tmp_path / "out"))


def test_sinks_of_late_records_are_the_plan_s_and_have_directories_of_their_own(tmp_path: Path) -> None:
    def judged(late: str) -> CompiledPipeline:
        def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
            return {"a": ferry.json_files(tmp_path, ROWS)}

        def pipeline(streams: dict[str, Stream], args: dict[str, Any]) -> Output:
            minutes = streams["a"].event_time("ts").key_by("k").window(ferry.tumbling("1m"))
            return minutes.aggregate("n", n=ferry.count(), late=ferry.parquet(late)).sink(ferry.parquet("n"))

        module = ModuleType("jobs")
        module.sources, module.pipeline = sources, pipeline  # type: ignore[attr-defined]
        return build(cast(Any, None), module, {}, str(tmp_path / "out"))

    plan = judged("late")
    assert [one.operator for one in plan.late] == [0] and len(plan.outputs) == 1
    assert [cast(Parquet, sink).directory.name for sink in plan.sinks] == ["n", "late"]
    with pytest.raises(SpecRefused, match="both write to"):
        judged("other/n")


def test_a_bound_that_no_source_heeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=r"--events .*does not read args\['events'\]"):
        built(tmp_path, "out", events=1000)
