"""What an epoch and a changed table cost the driver, and what an epoch costs one instance, by workers and virtual nodes."""

from __future__ import annotations

import argparse
import statistics

from rich.console import Console

from bench.parts.scale.driver import Driver
from bench.parts.scale.instance import NAME, Member
from bench.shared.results import Panel, Results, draw, show
from ferry.protocol.io import Tick

Cost = tuple[float, int, int]
"""CPU seconds, bytes sent, messages."""
CASES = ("driver, epoch", "driver, table", "instance, epoch")
METRICS = (("cpu", "s"), ("sent", "bytes"), ("messages", ""))


def measure(a: argparse.Namespace, console: Console, results: Results) -> bool:
    """All sizes; there is nothing that is not as it should be."""
    medians: dict[tuple[int, int], dict[str, list[float]]] = {}
    for workers in a.workers:
        for vnodes in (v for v in a.table if v >= workers):
            found = medians[workers, vnodes] = {}
            for case, costs in costs_of(workers, vnodes, a.epochs).items():
                found[case] = [statistics.median(values) for values in zip(*costs, strict=True)]
                for (metric, unit), value in zip(METRICS, found[case], strict=True):
                    results.add("ferry", case, metric, value, unit, workers=workers, vnodes=vnodes)
            console.print(f"  {workers} workers, {vnodes} virtual nodes", highlight=False)
    rows = [
        [f"{w:,}", f"{v:,}", *(f"{c * 1000:,.1f} / {b / 1000:,.1f} / {n:,.0f}" for c, b, n in found.values())]
        for (w, v), found in medians.items()
    ]
    show(console, "median ms of the processor / kB sent / messages", ["workers", "virtual nodes", *CASES], rows)
    if a.json is not None:
        most = {w: found for (w, _), found in medians.items()}  # The last of each: with most virtual nodes.
        panels = [
            Panel(
                f"{name}, with most virtual nodes", unit, [f"{w:,}" for w in most],
                {case: [found[case][at] * scale for found in most.values()] for case in CASES}, "lines", True,
            )
            for at, (name, unit, scale) in enumerate((("processor", "ms", 1000.0), ("sent", "bytes", 1.0)))
        ]  # fmt: skip
        draw(a.json.with_name(f"{a.json.stem}-epoch.png"), "What an epoch costs, by workers", panels)
    return True


def costs_of(workers: int, vnodes: int, epochs: int) -> dict[str, list[Cost]]:
    """Of each case, what some epochs or changes cost; the first epoch is not counted."""
    driver = Driver(workers, vnodes, NAME)
    driver.tell(Tick(0))
    member = Member(driver)
    found: dict[str, list[Cost]] = {case: [] for case in CASES}
    for epoch in range(epochs + 1):
        costs = driver.measure(lambda epoch=epoch: driver.epoch(epoch)), member.measure()
        if epoch:
            found["driver, epoch"].append(costs[0])
            found["instance, epoch"].append(costs[1])
    # Far from each other: no group loses both.
    others = [name for name in driver.names if name != NAME]
    for name in others[:: workers // min(epochs, workers // 10)][: workers // 10]:
        found["driver, table"].append(driver.measure(lambda name=name: driver.lose(name)))
    return found
