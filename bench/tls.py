"""Cost of encryption: the same job with `security.tls` off and run, alternating, on hosts of `tests/cluster/hosts.py`.

    PYTHONPATH=runtime:operator:. .venv/bin/python bench/tls.py [--rounds 2] [--epochs 40] [--rows 20000]

On a busy machine time by the clock says little, so all processes' processor seconds per epoch are measured, too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from tests.cluster.hosts import Hosts
from tests.cluster.test_hosts import settings

WARM = 10
"""Warm-up epochs, in which Java compiles; they are not measured."""


def seconds(hosts: Hosts) -> float:
    """Processor seconds of all running processes."""
    total = 0.0
    for host in [*hosts.workers.values(), *hosts.drivers]:
        for process in host.tree():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def measure(tls: str, epochs: int, rows: int) -> tuple[float, float]:
    """Processor seconds, and median seconds on the clock, of an epoch."""
    with tempfile.TemporaryDirectory() as base:
        one = settings(Path(base))
        hosts = Hosts(Path(base), replace(one, tls=tls, epoch_interval_ms=0, epoch_max_rows=rows, events=10**9))
        try:
            hosts.start_redis()
            for index in range(2):
                hosts.start_worker(index)
            hosts.start_driver(Path(base) / "checkpoint")
            hosts.await_epochs(WARM, 240)
            first, before = hosts.epoch(), seconds(hosts)
            hosts.await_epochs(epochs, 240)
            last, after = hosts.epoch(), seconds(hosts)
            took = [r["end"] - r["begin"] for r in hosts.records("epoch") if first < r["epoch"] <= last]
            return (after - before) / (last - first), statistics.median(took)
        finally:
            hosts.close()


def main() -> None:
    """Print each round, and the ratio of the means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"off": [], "run": []}
    for _ in range(options.rounds):
        for tls, results in found.items():
            results.append(measure(tls, options.epochs, options.rows))
            print(
                f"{tls:>3}  {results[-1][0]:.3f} processor s an epoch, {results[-1][1]:.3f} s by the clock (median)",
                flush=True,
            )
    for column, name in enumerate(("processor", "clock")):
        off, run = (statistics.mean(r[column] for r in found[tls]) for tls in ("off", "run"))
        print(f"{name}: run / off = {run / off:.3f}")


if __name__ == "__main__":
    main()
