"""Tasks that pass rows of an operator on and keep nothing: what they die of is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Output
from ferry.contract.errors import Final, UserCodeFailed
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import probing
from ferry.driver.poison import Poison
from ferry.driver.probing import Probing
from ferry.spark.tasks import reading
from tests.unit.streams import sources

ROWS = pa.record_batch({"user": ["a", "b", "dies"], "n": [1, 2, 3]})


class Died(Exception):
    """A task's process is gone."""


class Spark:
    """Runs a task here; one that dies is begun again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sparkContext: Any = self
        self.attempts = 0
        monkeypatch.setattr(probing, "died_before", lambda: self.attempts > 1)
        monkeypatch.setattr(reading.flight, "read_rows", lambda split: iter([ROWS]))

    def setLocalProperty(self, name: str, value: str | None) -> None:
        """Of the job."""

    def parallelize(self, splits: Any, parts: int) -> Any:
        def job(task: Callable[[Any], Iterator[Any]]) -> Any:
            return SimpleNamespace(collect=lambda: self._run(task, splits))

        return SimpleNamespace(mapPartitions=job)

    def _run(self, task: Callable[[Any], Iterator[Any]], splits: Any) -> list[Any]:
        self.attempts = 0
        while True:
            self.attempts += 1
            try:
                return list(task(splits))
            except UserCodeFailed as failed:
                assert isinstance(failed.__cause__, Died)


def touch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As a native library does."""
    if "dies" in (batch.column(0).to_pylist() if batch.num_rows else []):
        raise Died
    return batch


def output(*functions: Any) -> Output:
    stream = sources()["bids"]
    for function in functions:
        stream = stream.map_batches(function)
    made = stream.event_time("ts").key_by("bidder").window(ferry.tumbling("1s")).aggregate("w", n=ferry.count())
    steps = made.build.operators[0].inputs[0].steps
    return Output(SimpleNamespace(steps=steps, origin=0), "out")  # type: ignore[arg-type]


def test_the_row_is_named_of_which_a_function_before_a_sink_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = Spark(monkeypatch)
    operator: Any = SimpleNamespace(name="counts")
    metrics = DriverMetrics("job", str(tmp_path))
    made = Probing(spark, Poison({}, metrics, True, lambda: 0, [operator]), {})
    made.of(0, output(), [{"ticket": "t"}])
    assert not spark.attempts, "there is nothing to try"
    with pytest.raises(
        Final, match=r'of row {"user":"dies","n":3} of operator \'counts\', 3 .* mend touch \(test_probing'
    ):
        made.of(0, output(touch), [{"ticket": "t"}])
    monkeypatch.setattr(reading.flight, "read_rows", lambda split: iter([ROWS.slice(0, 2)]))
    made.of(0, output(touch), [{"ticket": "t"}])
    assert [one.reason for one in metrics.problems.current] == ["PoisonRecord"], "of the one before"
