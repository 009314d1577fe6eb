"""Bad input, bad sinks, full disks, interrupts, neighbours: what the world does to a job that is right."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import clicks, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


def some(seed: int, first_ms: int, count: int) -> list[clicks.Click]:
    """Clicks of ten seconds from first_ms on."""
    draw = random.Random(seed)
    return [(f"u{draw.randint(0, 40)}", first_ms + draw.randrange(10_000), draw.randint(-5, 100)) for _ in range(count)]


def test_malformed_records_are_set_aside_and_late_ones_counted(tmp_path: Path) -> None:
    good = [some(n, n * 10_000, 300) for n in range(6)]
    bad = ['{"user": "u1", "ts": "noon"}', "{", "", '["u1"]', '{"user": "u1", "ts": null, "amount": 1}', "\x00"]
    nobody = (None, 31_000, 1)  # A null is a key as any other.
    late = some(99, 10_000, 7)
    clicks.write(tmp_path / "in", [good[0], good[1], [*good[2], *bad, nobody], good[3], [*late, *good[4]], good[5]])
    job = clicks.job(tmp_path, {"input": str(tmp_path / "in")})
    letters = tmp_path / "letters"
    at = ["epoch=2:prepare kill-instance=0.0", "epoch=3:ingest kill-instance=1.0", "epoch=4:emit kill-driver"]
    result = runner.run(job, tmp_path, sets=[f"deadLetter.directory={letters}"], at=at)
    assert result.code == 0 and not result.left, result.story()
    found: Counter[tuple[str | None, int, int, int]] = Counter()
    for file in result.output.glob("clicks/epoch=*/*.parquet"):
        found.update(clicks.row(one) for one in pq.read_table(file).to_pylist())
    assert found == clicks.expected([*(c for part in good for c in part), nobody])
    assert (result.summary["malformed"], result.summary["late"]) == (5, 7), result.summary
    records = [json.loads(line) for file in letters.glob("epoch=*/*") for line in file.read_text().splitlines()]
    assert len(records) == 5 and all(r["reason"] for r in records), records
    assert any("noon" in r["record"] for r in records)


def test_input_that_is_broken_or_away_is_named_and_waited_for(tmp_path: Path) -> None:
    good = [some(n, n * 10_000, 300) for n in range(8)]
    folder, whole = tmp_path / "in", tmp_path / "whole"
    for where in (folder, whole):
        where.mkdir()
        for n, records in enumerate(good):
            table = pa.table(dict(zip(("user", "ts", "amount"), map(list, zip(*records, strict=True)), strict=True)))
            pq.write_table(table, where / f"{n}", compression="none", use_dictionary=False, write_page_checksum=True)
    (folder / "0").write_bytes(b"")
    data = bytearray((folder / "3").read_bytes())
    data[300:320] = bytes(20)
    (folder / "3").write_bytes(data)
    for n in range(len(good)):
        os.utime(folder / f"{n}", ns=(10**18 + n, 10**18 + n))
    (folder / "loop").symlink_to("loop")

    def mend(running: runner.Running) -> None:
        def await_degraded(text: str) -> None:
            running.await_that(
                lambda: any(r["kind"] == "degraded" and text in r["text"] for r in running.records()), text, 120
            )

        await_degraded("loop: Too many levels of symbolic links")
        (folder / "loop").unlink()
        shutil.copy(whole / "0", folder / "0")
        running.await_epoch(0)
        os.rename(folder, tmp_path / "away")
        await_degraded("/in cannot be listed")
        os.rename(tmp_path / "away", folder)
        await_degraded("/in/3 cannot be read: ")
        os.rename(folder, tmp_path / "away")
        time.sleep(3)
        shutil.copy(whole / "3", tmp_path / "away" / "3")
        os.rename(tmp_path / "away", folder)

    job = clicks.job(tmp_path, {"input": str(folder), "format": "parquet"})
    result = runner.run(job, tmp_path, sets=["epoch.interval=1s"], meanwhile=mend)
    assert result.code == 0 and not result.left, result.story()
    found: Counter[tuple[str | None, int, int, int]] = Counter()
    for file in result.output.glob("clicks/epoch=*/*.parquet"):
        found.update(clicks.row(one) for one in pq.read_table(file).to_pylist())
    assert found == clicks.expected([click for records in good for click in records])
    assert not [r for r in result.kinds("action") if "driver" in r["text"]], result.story()


def test_a_sink_that_fails_stops_the_job_and_a_later_run_goes_on(tmp_path: Path) -> None:
    good = [some(n, n * 10_000, 100) for n in range(6)]
    clicks.write(tmp_path / "in", good)
    sink = tmp_path / "sink"
    sink.mkdir()
    (sink / "broken").write_text("3")
    job = clicks.job(tmp_path, {"input": str(tmp_path / "in"), "sink": str(sink)})
    sets = [f"state.directory={tmp_path / 'state'}", "sink.patience=2s"]
    first = runner.run(job, tmp_path, sets=sets)
    assert first.code == 1 and not first.left, first.story()
    assert "sink of epoch 3" in first.summary["reason"] and "the database is away" in first.summary["reason"]
    *_, last = (tmp_path / "state" / "logs" / "driver.log").read_text().strip().splitlines()
    assert "the database is away (for 2 s); nothing is lost" in last, "whoever looks for the reason looks there"
    said = [f"sink of epoch {n}: RuntimeError: a hiccup of the database" for n in (1, 2)]
    assert first.summary["degraded"] == [*said, "sink of epoch 3: RuntimeError: the database is away"], "each once"
    (sink / "broken").unlink()
    second = runner.run(job, tmp_path, sets=[*sets, "workers=3"])
    assert second.code == 0 and not second.left, second.story()
    found = Counter(
        clicks.row(json.loads(line)) for file in sink.glob("epoch-*.jsonl") for line in file.read_text().splitlines()
    )
    assert found == clicks.expected([c for part in good for c in part])


def test_an_interrupted_run_leaves_nothing_and_its_neighbour_does_not_notice(tmp_path: Path) -> None:
    args = {"seed": 19}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sets = [*runner.sets_of(args), "epoch.maxRows=20000"]
    stays = runner.start(runner.ROOT / "examples" / "nbq5.yaml", tmp_path / "a", 200_000, sets)

    def interrupt(running: runner.Running) -> None:
        running.await_epoch(2)
        running.process.send_signal(signal.SIGINT)

    interrupted = runner.run("nbq5", tmp_path / "b", 100_000_000, sets, meanwhile=interrupt)
    assert interrupted.code == 1 and not interrupted.left, interrupted.story()
    assert interrupted.summary["outcome"] == "stopped", interrupted.story()
    result = runner.finish(stays)
    assert result.code == 0 and not result.left, result.story()
    missing, extra = runner.difference("nbq5", 200_000, args, result.output, tmp_path)
    assert not missing and not extra


def test_a_killed_supervisor_leaves_nothing_and_the_job_goes_on(tmp_path: Path) -> None:
    args = {"seed": 29, "window_ms": 30_000, "delay_prob": 0.05, "proportions": "10,30,10"}
    sets = [
        *runner.sets_of(args),
        f"state.directory={tmp_path / 'state'}",
        "epoch.maxRows=20000",
        "epoch.interval=300ms",
    ]

    def kill(running: runner.Running) -> None:
        running.await_epoch(4)
        running.process.kill()

    first = runner.run("nbq8", tmp_path, 240_000, sets, meanwhile=kill)
    assert first.code == -signal.SIGKILL and not first.left, first.story()
    second = runner.run("nbq8", tmp_path, 240_000, [*sets, "workers=1"])
    assert second.code == 0 and not second.left, second.story()
    missing, extra = runner.difference("nbq8", 240_000, args, second.output, tmp_path)
    assert not missing and not extra


def test_a_frozen_worker_is_passed_over_and_taken_back_when_it_thaws(tmp_path: Path) -> None:
    args = {"seed": 31, "group": 100}
    frozen: list[float] = []

    def freeze(running: runner.Running) -> None:
        running.await_epoch(3)
        running.signal("worker-1", signal.SIGSTOP)
        frozen.append(time.time())
        time.sleep(20)
        frozen.append(time.time())
        running.signal("worker-1", signal.SIGCONT)

    sets = [*runner.sets_of(args), "epoch.maxRows=20000", "epoch.interval=1s"]
    result = runner.run("nbq5", tmp_path, 800_000, sets, meanwhile=freeze)
    assert result.code == 0 and not result.left, result.story()
    missing, extra = runner.difference("nbq5", 800_000, args, result.output, tmp_path)
    assert not missing and not extra
    during = [r for r in result.kinds("epoch") if frozen[0] + 6 < r["end"] < frozen[1]]
    assert len(during) >= 3, result.story()
    assert result.changes("in-sync"), result.story()


@runner.needs_root
def test_a_full_disk_stops_the_job_with_a_reason_and_room_lets_it_go_on(tmp_path: Path) -> None:
    with runner.disk(tmp_path / "disk", "40m") as disk:
        args = {"seed": 23, "keys": "uniform", "domain": 10_000_000}
        sets = [*runner.sets_of(args), f"state.directory={disk / 'state'}", "epoch.maxRows=60000"]
        sets.append("failure.returnDeadline=1s")
        first = runner.run("nbq5", tmp_path, 900_000, sets)
        assert first.code == 1 and not first.left, first.story()
        assert any(word in first.summary["reason"].lower() for word in ("space", "room", "disk")), first.story()
        subprocess.run(["mount", "-o", "remount,size=2g", disk], check=True)
        second = runner.run("nbq5", tmp_path, 900_000, [*sets, "state.memory=16Mi"])
        assert second.code == 0 and not second.left, second.story()
        missing, extra = runner.difference("nbq5", 900_000, args, second.output, tmp_path)
        assert not missing and not extra
