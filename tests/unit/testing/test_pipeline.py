"""`ferry.test` beside the oracle, and what it tells of a pipeline."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ferry
from ferry.contract.errors import SpecRefused, UserCodeFailed
from tests.unit.process.queries import Case, generated, rows_of

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("cents", pa.int64())])

QUERIES = {
    "nbq5": ({"window_ms": 20_000, "slide_ms": 5_000}, {"window": 20_000, "slide": 5_000}),
    "q5_counts": ({"slide_ms": 5_000}, {"slide": 5_000}),
    "q11": ({"gap_ms": 500}, {"gap": 500}),
    "nbq8": ({"window_ms": 20_000}, {"window": 20_000}),
    "q3": ({}, {}),
    "q8_within": ({"window_ms": 5_000}, {"window": 5_000}),
    "q9": ({}, {}),
    "q4_updates": ({}, {}),
}
"""Arguments of the job, and of the oracle."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    options = {"seed": 3, "rate": 200, "keys": "zipf", "domain": 300, "proportions": "10,30,60"}
    return generated(tmp_path_factory.mktemp("nexmark"), "nexmark", 3_000, **options)


@pytest.mark.parametrize("query", QUERIES)
def test_the_papers_queries_equal_the_oracle(case: Case, query: str) -> None:
    args, options = QUERIES[query]
    job: Any = importlib.import_module(f"ferry_workloads.jobs.{query}")
    names = job.sources(None, {})
    made = ferry.test(job.pipeline, {name: case.tables[name] for name in names}, 7, {"delay_ms": case.delay, **args})
    con, text, _ = importlib.import_module("oracle.expect").expect(query, str(case.directory), **options)
    want = con.sql(text).to_arrow_table()
    assert rows_of([made[query].select(want.column_names)]) == rows_of([want]) and want.num_rows
    assert not any(made.late.values()) and not made.malformed


def sales(streams: Any, args: dict[str, Any]) -> Any:
    orders = streams["orders"].event_time("ts", delay="1s").key_by("shop").window(ferry.tumbling("10s"))
    return orders.aggregate("sales", cents=ferry.sum("cents"), late=ferry.parquet("too/late")).sink(ferry.console())


def order(shop: str | None, ts: int | None, cents: int = 1) -> dict[str, Any]:
    return {"shop": shop, "ts": ts, "cents": cents}


def test_late_and_malformed_records_are_told() -> None:
    first = pa.Table.from_pylist([order("a", 1_000), order("a", 25_000), order("b", None)], schema=ORDERS)
    second = [order("a", 2_000, 7), order("a", 26_000, 3)]
    made = ferry.test(sales, {"orders": [first, second]})
    assert rows_of([made["console"]]) == Counter([("a", 0, 10_000, 1), ("a", 20_000, 30_000, 4)])
    assert made["late"].to_pylist() == [order("a", 2_000, 7)] and made.late == {"sales": 1}
    ((letter),) = made.malformed
    assert "orders" in letter["reason"] and '"shop":"b"' in letter["record"]


@dataclass
class Alarm(ferry.Process):
    """Five milliseconds after each record."""

    output = pa.schema([("at", pa.int64())])

    def process(self, work: Any) -> None:
        work.set_timer(work.key_of(), work.times() + 5)
        key, time = work.timers()
        work.emit(key, {"at": time})


@pytest.mark.parametrize("epochs", [1, 3, 10])
def test_timers_go_off_in_any_epoch(epochs: int) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        keyed = streams["orders"].event_time("ts").key_by("shop")
        return keyed.process("alarms", Alarm(), columns=["cents"]).sink(ferry.parquet("alarms"))

    orders = [order(random.Random(i).choice("abc"), 10 * i) for i in range(20)]
    made = ferry.test(pipeline, {"orders": orders}, epochs)
    assert sorted(made["alarms"].column("at").to_pylist()) == [10 * i + 5 for i in range(20)]


def test_what_the_users_code_raises_is_said() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise ValueError("no rate for today")
        return batch

    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        return (
            streams["orders"]
            .map_batches(broken)
            .key_by("shop")
            .aggregate("n", n=ferry.count(), emit=ferry.at_end())
            .sink(ferry.console())
        )

    with pytest.raises(UserCodeFailed, match=r"no rate for today \(test_pipeline.py:\d+ in broken"):
        ferry.test(pipeline, {"orders": [order("a", 1)]})


@pytest.mark.parametrize(
    ("inputs", "epochs", "text"),
    [
        ({"orders": []}, 1, "its columns are unknown; give a pyarrow.Table"),
        ({"orders": [order("a", 1)]}, 0, "give at least 1"),
        ({"order": [order("a", 1)]}, 1, "no source 'orders'; there are order"),
    ],
)
def test_what_cannot_be_run_is_refused(inputs: Any, epochs: int, text: str) -> None:
    with pytest.raises(SpecRefused, match=text):
        ferry.test(sales, inputs, epochs)


def test_no_input_is_an_input(tmp_path: Path) -> None:
    made = ferry.test(sales, {"orders": ORDERS.empty_table()}, epochs=3)
    assert made["console"].num_rows == 0 and made["console"].column_names == [
        "shop",
        "window_start",
        "window_end",
        "cents",
    ]


def test_a_pipeline_without_an_operator_gives_its_records_to_its_sinks() -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        dear = streams["orders"].map_batches(ferry.filter(pc.field("cents") > 5))
        return [streams["orders"].sink(ferry.parquet("all")), dear.sink(ferry.parquet("dear"))]

    orders = [order("a", n, n) for n in range(10)]
    made = ferry.test(pipeline, {"orders": orders}, epochs=3)
    assert made["all"].to_pylist() == orders and made["dear"].to_pylist() == orders[6:]
