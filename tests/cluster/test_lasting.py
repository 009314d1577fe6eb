"""What lasts: a wire that stays cut, a disk that stays full, a process that stands still, a sink that refuses for minutes.

Four workers with one replica each. Whatever lasts longer than a job's patience must not end the job.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster import clicks, runner
from tests.cluster.test_disturbance import some
from tests.cluster.test_workloads import right
from tests.cluster.wires import Wires

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(900)]

FOUR = ["workers=4", "state.replicas=1", "state.virtualNodes=16"]
SLOWLY = ["epoch.interval=1s", "epoch.maxRows=10000"]


def test_two_instances_cut_from_each_other_for_good(tmp_path: Path) -> None:
    args = {"seed": 41, "group": 100}
    wires = Wires()

    def cut(running: runner.Running) -> None:
        running.await_epoch(3)
        wires.cut("0.0", "1.0")
        wires.cut("2.0", "3.0")

    try:
        sets = [*runner.sets_of(args), *FOUR, *SLOWLY]
        result = runner.run("nbq5", tmp_path, 250_000, sets, meanwhile=cut, wires=wires)
    finally:
        wires.close()
    assert len(wires.seen) == 6, f"all instances were connected: {wires.seen}"
    right(result, "nbq5", 250_000, args, tmp_path)


@runner.needs_root
def test_the_disk_of_one_worker_is_full(tmp_path: Path) -> None:
    args = {"seed": 43, "keys": "uniform", "domain": 10_000_000}
    state = tmp_path / "state"
    disk = state / "workers" / "2"

    def fill(running: runner.Running) -> None:
        running.await_epoch(3)
        runner.fill(disk)

    with runner.disk(disk, "1g"):
        sets = [*runner.sets_of(args), *FOUR, f"state.directory={state}", "epoch.maxRows=60000", "epoch.interval=1s"]
        result = runner.run("nbq5", tmp_path, 900_000, sets, meanwhile=fill)
        right(result, "nbq5", 900_000, args, tmp_path)
    removed = {i for r in result.kinds("groups") for _, what, i in r["changes"] if what == "removed"}
    assert "2.0" in removed, result.story()


def test_one_instance_stands_still_while_its_parent_lives(tmp_path: Path) -> None:
    args = {"seed": 47, "group": 100}
    stood: list[float] = []

    def stand(running: runner.Running) -> None:
        running.await_epoch(3)
        pid = running.instance("1.0")
        os.kill(pid, signal.SIGSTOP)
        stood.append(time.time())
        time.sleep(50)  # After a minute its parent would kill it.
        stood.append(time.time())
        os.kill(pid, signal.SIGCONT)

    result = runner.run("nbq5", tmp_path, 800_000, [*runner.sets_of(args), *FOUR, *SLOWLY], meanwhile=stand)
    right(result, "nbq5", 800_000, args, tmp_path)
    meanwhile = [r for r in result.kinds("epoch") if stood[0] + 25 < r["end"] < stood[1]]
    assert len(meanwhile) >= 10, result.story()


def test_a_sink_refuses_for_a_minute_and_a_half(tmp_path: Path) -> None:
    good = [some(n, n * 10_000, 100) for n in range(6)]
    clicks.write(tmp_path / "in", good)
    sink = tmp_path / "sink"
    sink.mkdir()
    (sink / "broken").write_text("3")
    job = clicks.job(tmp_path, {"input": str(tmp_path / "in"), "sink": str(sink)})

    def refuse(running: runner.Running) -> None:
        running.await_epoch(2)
        time.sleep(90)
        (sink / "broken").unlink()

    result = runner.run(job, tmp_path, sets=FOUR, meanwhile=refuse)
    assert result.code == 0 and not result.left, result.story()
    assert len(result.kinds("ready")) == 1, "the driver has waited, and was not started again"
    lines = [line for file in sink.glob("epoch-*.jsonl") for line in file.read_text().splitlines()]
    assert Counter(clicks.row(json.loads(line)) for line in lines) == clicks.expected(
        [c for part in good for c in part]
    )
