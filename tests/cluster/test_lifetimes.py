"""Another `ttl` and another `delay` for a running job: which keys are there, which windows fire, which records are late."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferry_workloads.smq import SmqGenerator
from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

SPAN_MS, BURST_MS, NEVER = 500, 1000, float("inf")

TIMED = """timed = streams["smq"].map_batches(jittered).event_time("ts", delay="{delay}ms")
    lives = timed.key_by("j").aggregate("lives", n=ferry.count(), emit=ferry.changes(){ttl})
    windows = timed.key_by("k").window(ferry.tumbling("500ms")).aggregate("windows", n=ferry.count())
    return [lives.sink(ferry.parquet("lives")), windows.sink(ferry.parquet("windows")), seen]


def jittered(numbers):
    seq, ts = numbers["seq"].to_numpy(), numbers["ts"].to_numpy()
    keys = pa.array(ts // 1000 % 6 * 4 + seq % 4)
    rows = passing(numbers).append_column("j", keys)
    return rows.set_column(1, "ts", pa.array(ts - seq * 7919 % 1500))"""
"""A key `j` has records in one second of six; a record is at most 1.5 s older than the newest one."""

TTLS = (None, 3000, 60_000, 2000)
DELAYS = (0, 1500, 200, 900)


def wrong(output: Path, since: dict[int, int]) -> list[str]:
    """Epochs with other rows than a recomputation; `since`: a program's place in TTLS and DELAYS, by its first epoch."""
    seen, lives, windows = (deploys.read(output / name) for name in ("seen", "lives", "windows"))
    ends, counts, spans = dict[int, float](), dict[int, int](), defaultdict[tuple[int, int], int](int)
    low, greatest, out, late, forgotten = -(10**18), -(10**18), list[str](), 0, 0
    before = since[0]
    for epoch in range(min(seen), max(seen) + 1):
        now = since[max(first for first in since if first <= epoch)]
        old, ttl = TTLS[before], TTLS[now]
        if now != before and old is not None and ttl is not None:
            ends = {key: end + min(0, ttl - old) for key, end in ends.items()}
        before, count = now, len(counts)
        counts = {key: n for key, n in counts.items() if ends[key] > low}
        forgotten += count - len(counts)
        ends = {key: ends[key] for key in counts}
        seq = seen[epoch]["seq"].to_numpy() if epoch in seen else np.zeros(0, np.int64)
        made = SmqGenerator(rate=deploys.PACE).times(seq)
        times, keys = made - seq * 7919 % 1500, made // BURST_MS % 6 * 4 + seq % 4
        for key, time, number in zip(keys.tolist(), times.tolist(), seq.tolist(), strict=True):
            end, known = NEVER if ttl is None else time + ttl, ends.get(key, NEVER)
            ends[key], counts[key] = end if known == NEVER else max(known, end), counts.get(key, 0) + 1
            begin = time // SPAN_MS * SPAN_MS
            late += begin + SPAN_MS <= low
            spans[number % 8, begin] += begin + SPAN_MS > low
        greatest = max([greatest, *times.tolist()])
        low = max(low, greatest - DELAYS[now])
        fires = {(k, b, spans.pop((k, b))) for k, b in [*spans] if b + SPAN_MS <= low}
        expected: dict[str, Counter[Any]] = {
            "lives": Counter({(key, counts[key]) for key in keys.tolist()}),
            "windows": Counter(one for one in fires if one[2]),
        }
        columns = {"lives": (lives, ("j", "n")), "windows": (windows, ("k", "window_start", "n"))}
        for name, (rows, chosen) in columns.items():
            table = rows.get(epoch)
            there = Counter(tuple(row[c] for c in chosen) for row in table.to_pylist()) if table else Counter()
            if there != expected[name]:
                out.append(f"epoch {epoch}, {name}: {there - expected[name]}, expected {expected[name] - there}")
    return out[:5] if late > 100 and forgotten > 20 else [f"{late} late records, {forgotten} forgotten keys: too few"]


def test_keys_live_and_watermarks_wait_for_another_time_from_the_switch_on(tmp_path: Path) -> None:
    """A key is forgotten at the earlier of both times until its next record; a watermark never goes back."""
    texts = [
        TIMED.format(delay=delay, ttl="" if ttl is None else f', ttl="{ttl}ms"')
        for ttl, delay in zip(TTLS, DELAYS, strict=True)
    ]
    since, files = {0: 0}, [deploys.program(tmp_path, f"lives{n}", 1, text) for n, text in enumerate(texts)]

    def changes(running: runner.Running) -> None:
        running.await_epoch(40)
        for number, victim in ((1, "worker-0"), (2, "driver"), (3, "worker-1"), (1, ""), (2, "")):
            if number == 1:
                runner.ask(running, "POST", "/move", {"vnodes": [0, 1, 2, 3], "instance": "1.0"})
            epoch = deploys.deploy(running, files[number])
            since[epoch] = number
            if victim:
                running.signal(victim, signal.SIGKILL)
            running.await_epoch(epoch + 60)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=texts[0]), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert wrong(result.output, since) == [], (since, result.story())
