"""Skewed keys: a job moves its virtual nodes by itself until each instance gets about as many records, against the oracle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferry.contract.names import vnode_shift
from ferry.kernels.hashing import hash_ints
from tests.cluster import runner
from tests.cluster.test_workloads import right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

VNODES, WORKERS, DOMAIN, EVENTS, ROWS = 64, 3, 20_000, 1_500_000, 4000
ARGS: dict[str, Any] = {"seed": 5, "keys": "zipf", "zipf_s": 1.5, "domain": DOMAIN}


def shares() -> np.ndarray:
    """Of all records: what is drawn for each virtual node, by the weights of the keys."""
    weights = 1.0 / np.arange(1, DOMAIN + 1) ** 1.5
    vnodes = (hash_ints(np.arange(DOMAIN)) >> np.uint64(vnode_shift(VNODES))).astype(int)
    return np.bincount(vnodes, weights, VNODES) / weights.sum()


def levels(status: dict[str, Any]) -> dict[str, float]:
    """Records of each instance, as a multiple of the average."""
    found = {f"{k}.0": 0.0 for k in range(WORKERS)}
    for share, (in_sync, _) in zip(shares(), status["groups"], strict=True):
        found[in_sync[0]] += WORKERS * share
    return found


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_zipf_is_within_a_fifth_of_uniform_by_itself(tmp_path: Path, mode: str) -> None:
    seen: dict[str, Any] = {}

    def balanced(running: runner.Running) -> bool:
        return any(r["kind"] == "action" and r["text"].startswith("balance to move") for r in running.records())

    def settled(running: runner.Running) -> bool:
        seen["after"] = runner.ask(running, "GET", "/job")
        return bool(seen["after"]["status"]) and seen["after"]["status"]["settled"]

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(5)
        seen["before"] = runner.ask(running, "GET", "/job")
        running.await_that(lambda: balanced(running), "move for balance", 120)
        time.sleep(1)
        running.await_that(lambda: settled(running), "end of it", 60)

    sets = [
        *runner.sets_of(ARGS), f"workers={WORKERS}", f"state.virtualNodes={VNODES}", "balance.mode=auto", "balance.horizon=10s",
        f"epoch.mode={mode}", f"epoch.maxRows={ROWS}", "epoch.interval=150ms", "handover.strategy=optimized",
    ]  # fmt: skip
    result = runner.run("hash_count", tmp_path, EVENTS, sets, (), meanwhile)
    right(result, "hash_count", EVENTS, ARGS, tmp_path)
    before, after = levels(seen["before"]["status"]), levels(seen["after"]["status"])
    assert max(before.values()) > 1.5, f"it begins uneven: {before}"
    assert max(after.values()) < 1.2 and min(after.values()) > 0.8, f"{before} became {after}"
    hot = int(shares().argmax())
    leader = seen["after"]["status"]["groups"][hot][0][0]
    assert [v for v, (in_sync, _) in enumerate(seen["after"]["status"]["groups"]) if in_sync[0] == leader] == [hot]
    loads = np.array([rate for rate, _ in seen["after"]["status"]["load"]["vnodes"]])
    assert loads[hot] / loads.sum() == pytest.approx(shares()[hot], abs=0.05), "records, not rows, are what is measured"
    moves = [r["text"] for r in result.kinds("action") if r["text"].startswith("balance to move")]
    assert len(moves) == 1, f"once it is even nothing moves again: {moves}"
