"""Flows that are hours of event time apart: none makes the records of another late, and one that is idle is not waited for."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

PIPELINES = Path(__file__).parent / "pipelines"
HOUR = 3_600_000
SALES = pa.schema(
    [("seq", pa.int64()), ("shop", pa.string()), ("ts", pa.int64()), ("amount", pa.int64()), ("partition", pa.int32())]
)


def job(folder: Path, name: str, **spec: Any) -> Path:
    """A job file for one of the pipelines."""
    file = folder / f"{name}.json"
    pipeline = {"file": str(PIPELINES / f"{name}.py"), "args": spec.pop("args", {})}
    spec = {"workers": 2, "state": {"virtualNodes": 16}, "pipeline": pipeline, **spec}
    kind = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name}}
    file.write_text(json.dumps({**kind, "spec": spec}))
    return file


def test_flows_that_lag_by_an_hour_are_not_late_whoever_dies(tmp_path: Path) -> None:
    events, args = 60_000, {"seed": 13, "rate": 5, "group": 100}
    file = job(tmp_path, "lagging", args=args, epoch={"maxRows": 6000})
    at = ["epoch=2:commit kill-worker=0", "epoch=4:commit kill-driver", "epoch=6 workers=3"]
    result = runner.run(file, tmp_path, events, at=at)
    assert result.code == 0 and not result.left, result.story()
    missing, extra = runner.difference("nbq5", events, args, result.output, tmp_path)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"
    epochs = result.kinds("epoch")
    assert sum(r["late"] for r in epochs) == 0
    watermarks = [r["watermark"] for r in epochs if r["watermark"] is not None]
    assert watermarks == sorted(watermarks) and watermarks[-1] - watermarks[0] > HOUR / 2, "that of the slowest goes on"
    assert sum(r["fired"] for r in epochs[:-1]) > 0


class Shops:
    """Writes files of one sale each, and remembers what has to come out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sums: Counter[tuple[str, int]] = Counter()
        self.files = 0

    def sell(self, shop: str, ts: int, late: bool = False) -> None:
        """One sale of an amount that tells it from all others."""
        self.files += 1
        amount = 2**self.files
        (self.folder / shop).mkdir(parents=True, exist_ok=True)
        hidden = self.folder / shop / f".{self.files}"
        hidden.write_text(json.dumps({"shop": shop, "ts": ts, "amount": amount}) + "\n")
        hidden.rename(self.folder / shop / f"{self.files}.json")
        if not late:
            self.sums[shop, ts // 10_000 * 10_000 + 10_000] += amount

    def expected(self, watermark: int) -> list[tuple[str, int, int]]:
        """(shop, window_end, total) of the windows that have ended."""
        return sorted((shop, end, total) for (shop, end), total in self.sums.items() if end <= watermark)


def test_the_windows_of_the_rest_fire_when_a_flow_is_idle(tmp_path: Path) -> None:
    shops = Shops(tmp_path / "sales")
    (tmp_path / "sales" / "closed").mkdir(parents=True)
    shops.sell("fast", HOUR)
    shops.sell("slow", 0)
    file = job(tmp_path, "shops", args={"sales": str(tmp_path / "sales"), "idle": "5s"}, epoch={"interval": "300ms"})

    def meanwhile(running: runner.Running) -> None:
        def epochs() -> list[dict[str, Any]]:
            return [r for r in running.records() if r["kind"] == "epoch"]

        def reached(watermark: int) -> bool:
            return any((r["watermark"] or 0) >= watermark for r in epochs())

        def all_read() -> bool:
            return sum(r["rows"] for r in epochs()) == shops.files

        running.await_that(lambda: bool(epochs()), "first epoch", 120)
        for second in range(1, 60):  # As long as both go on, what is awaited is the closed one.
            shops.sell("slow", second * 1000)
            shops.sell("fast", HOUR + second * 1000)
            time.sleep(0.5)
            if reached(1):
                break
        assert reached(1) and not reached(HOUR // 2)
        for number in (2, 3):
            running.await_that(all_read, "end of the files", 60)
            time.sleep(3)
            shops.sell("fast", number * HOUR)  # And then nothing: a tick has to tell that the slow one is idle.
            running.await_that(lambda n=number: reached(n * HOUR - 1000), f"hour {number}", 60)  # type: ignore[misc]
            assert sum(r["late"] for r in epochs()) == number - 2
            shops.sell("slow", 5000, late=True)
        running.await_that(all_read, "end of the files", 60)
        time.sleep(7)
        known = len(epochs())
        time.sleep(2)
        assert len(epochs()) == known, "when all are idle nobody asks for epochs"
        runner.stop(running)

    result = runner.run(file, tmp_path, meanwhile=meanwhile)
    assert result.code == 0 and not result.left, result.story()
    assert sum(r["late"] for r in result.kinds("epoch")) == 2
    rows = duckdb.sql(
        f"SELECT shop, window_end, total FROM read_parquet('{result.output}/shops/*/*.parquet')"
    ).fetchall()
    assert sorted(rows) == shops.expected(3 * HOUR - 1000)


def test_a_column_of_sparks_own_source_names_flows_and_states_begin_beside_it(tmp_path: Path) -> None:
    shops, sums, begun, sales = ("north", "south", "west"), Counter[Any](), Counter[str](), 0
    (tmp_path / "sales").mkdir()
    (tmp_path / "opening").mkdir()
    for number in range(12):  # a file of each partition an epoch; the second partition is an hour behind
        partition = number % 2
        rows = [
            {"seq": sales + i, "shop": shops[i % 3], "ts": (1 - partition) * HOUR + number * 4_000 + i * 80,
             "amount": 2**number * (i + 1), "partition": partition}
            for i in range(50)
        ]  # fmt: skip
        sales += len(rows)
        for row in rows:
            sums[row["shop"], row["ts"] // 10_000 * 10_000 + 10_000] += row["amount"]
        file = tmp_path / "sales" / f"{number:02}.parquet"
        pq.write_table(pa.Table.from_pylist(rows).cast(SALES), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    for number in range(5):
        rows = [{"shop": shop, "amount": 10**number + i} for i, shop in enumerate(shops)]
        begun.update({row["shop"]: row["amount"] for row in rows})
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "opening" / f"{number}.parquet")
    args = {name: str(tmp_path / name) for name in ("sales", "opening")}
    file = job(tmp_path, "partitions", args=args, epoch={"maxRows": 1, "interval": "300ms"})

    def meanwhile(running: runner.Running) -> None:
        def epochs() -> list[dict[str, Any]]:
            return [r for r in running.records() if r["kind"] == "epoch"]

        running.await_that(lambda: sum(r["rows"] for r in epochs()) == sales + 15, "end of the files", 300)
        runner.stop(running)

    at = ["epoch=0:prepare kill-driver", "epoch=1:commit kill-worker=0", "epoch=3:sink kill-driver"]
    result = runner.run(file, tmp_path, at=at, meanwhile=meanwhile)
    assert result.code == 0 and not result.left, result.story()
    epochs = result.kinds("epoch")
    assert sum(r["late"] for r in epochs) == 0 and epochs[0]["rows"] == 115, (
        "the first epoch has all that states begin from"
    )
    watermark = 11 * 4_000 + 49 * 80 - 1_000
    columns = "shop, window_end, total"
    rows = duckdb.sql(f"SELECT {columns} FROM '{result.output}/sums/*/*.parquet' ORDER BY ALL").fetchall()
    assert rows == sorted((*key, total) for key, total in sums.items() if key[1] <= watermark)
    told = duckdb.sql(f"SELECT seq, begun FROM '{result.output}/begun/*/*.parquet' ORDER BY seq").fetchall()
    assert told == [(seq, begun[shops[seq % 50 % 3]]) for seq in range(sales)]
