"""`ferry.read_state` of a job that runs: at each of its checkpoints, what the oracle says is open after so many arrivals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import ferry
from tests.cluster import queries, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

EVENTS, EPOCH = 1_200_000, 20_000

ARGS: dict[str, Any] = {"seed": 89, "rate": 1000, "group": 1000, "delay_prob": 0.01}

MINUTE, SLIDE = 60_000, 10_000

JOINED = """SELECT id AS key, ts // 60000 * 60000 AS slice, 'left' AS side, seq, NULL, NULL FROM person WHERE {open}
    UNION ALL SELECT seller, ts // 60000 * 60000, 'right', NULL, id, reserve FROM auction WHERE {open}"""

SESSIONS = """WITH m AS (SELECT *, CASE WHEN ts - lag(ts) OVER w <= 10000 THEN 0 ELSE 1 END AS opens FROM bid
                         WINDOW w AS (PARTITION BY bidder ORDER BY ts, seq)),
  n AS (SELECT *, sum(opens) OVER (PARTITION BY bidder ORDER BY ts, seq) AS sid FROM m)
  SELECT bidder, min(ts), max(ts), count(*), max(price) FROM n GROUP BY bidder, sid HAVING max(ts) + 10000 > {watermark}"""

AUCTIONS = "SELECT id, ts, expires, reserve, seller, category FROM auction WHERE expires > {watermark}"

BIDS = """SELECT b.auction, b.seq, b.price, b.ts, b.bidder FROM bid b JOIN auction a ON b.auction = a.id
    WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve AND a.expires > {watermark}
    QUALIFY row_number() OVER (PARTITION BY b.auction ORDER BY b.price DESC, b.ts, b.seq) = 1"""


def rows(con: duckdb.DuckDBPyConnection, text: str) -> list[tuple[Any, ...]]:
    """In an order of their own."""
    return sorted(con.execute(text).fetchall(), key=repr)


def best_bids(read: Any) -> pa.Table:
    """Of auctions that are open; others wait for their auction to come."""
    bids = read("winners", table="bid").select(["id", "seq", "price", "ts", "bidder"])
    return bids.join(read("winners", table="auction").select(["id"]), "id", join_type="inner")


def manifests(location: Path) -> list[Path]:
    """The files of the checkpoints, the oldest first."""
    return sorted(location.glob("states/manifests/*.json"))


def epoch_of(manifest: Path) -> int:
    """The last one whose changes are in it."""
    return int(json.loads(manifest.read_text())["commit_id"][0][0])


def check(manifest: dict[str, Any], data: Path, read: Any) -> dict[str, int]:
    """The state of every operator is what the oracle has open; how many rows of each."""
    epoch = manifest["commit_id"][0][0]
    arrivals = EPOCH * (epoch + 1)
    named = zip(manifest["operators"], manifest["results"], strict=True)
    watermarks = {operator["name"]: high for operator, (_, _, high, *_) in named}
    con, slices, _ = queries.oracle.expect("nbq5", str(data), max_seq=arrivals, window=SLIDE, slide=SLIDE)
    ends = f"ts // {MINUTE} * {MINUTE} + {MINUTE}"
    expected = {
        "counts": f"SELECT auction, window_start, num FROM ({slices}) "
        f"WHERE window_start + {MINUTE} > {watermarks['counts']}",
        "pairs": JOINED.format(open=f"{ends} > {watermarks['pairs']}"),
        "active": SESSIONS.format(watermark=watermarks["active"]),
        "winners": AUCTIONS.format(watermark=watermarks["winners"]),
        "bids": BIDS.format(watermark=watermarks["winners"]),
    }
    state = {
        "counts": read("counts").select(["auction", "slice", "num"]),
        "pairs": read("pairs").select(["id", "slice", "side", "left_person", "right_auction", "right_reserve"]),
        "active": read("active", table="sessions").select(["bidder", "entry", "last", "n", "top"]),
        "winners": read("winners", table="auction"),
        "bids": best_bids(read),
    }
    sizes = {}
    for name, text in expected.items():
        con.register("state", state[name])
        found, right = rows(con, "FROM state"), rows(con, text)
        sizes[name] = len(right)
        assert found == right, (
            f"{name} at epoch {epoch}: missing {sorted(set(right) - set(found), key=repr)[:5]}, "
            f"unexpected {sorted(set(found) - set(right), key=repr)[:5]}"
        )
    return sizes


def test_the_state_of_every_kind_is_read_while_the_job_runs(tmp_path: Path) -> None:
    file, location, data = tmp_path / "states.yaml", tmp_path / "store", tmp_path / "oracle"
    spec = {
        "pipeline": {"file": str(Path(__file__).parent / "pipelines" / "states.py"), "args": ARGS},
        "workers": 2,
        "state": {"virtualNodes": 16, "checkpoint": {"location": str(location), "every": "1s", "keep": 100}},
        "epoch": {"maxRows": EPOCH, "interval": "300ms"},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "states"}, "spec": spec}
    file.write_text(json.dumps(document))
    running = runner.start(file, tmp_path, EVENTS, at=["epoch=3:ingest workers=3", "epoch=6:commit kill-instance=0.0"])
    try:
        queries.generate_input("nexmark", EVENTS, ARGS, data)
        running.await_that(
            lambda: max(map(epoch_of, manifests(location)), default=0) > 7, "a checkpoint of epoch 8", 120
        )
        assert running.process.poll() is None, (tmp_path / "stderr").read_text()[-3000:]
        found = manifests(location)  # of state that has moved, too, and of a leader that was a copy
        for file in found[1:]:
            sizes = check(
                json.loads(file.read_text()),
                data,
                partial(ferry.read_state, str(location), job="states", checkpoint=str(file)),
            )
            assert min(sizes.values()) > 10, sizes
        assert epoch_of(found[-1]) > 7 and len(found) > 2
    finally:
        runner.lose_everything(running)
