"""How long an instance's loop stands at a time while its state grows to very many keys."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.shared.instance_loop import Clock, Loop
from bench.shared.results import Panel, Results, draw, show
from ferry.contract.names import InstanceId

KINDS = ("unbounded", "aggregate")
NAME = InstanceId("0.0")
TENTHS = 10

Longest = dict[str, tuple[float, float]]
"""Kind of step -> the longest one by the clock and by the processor, milliseconds."""


def measure(a: argparse.Namespace, console: Console, results: Results) -> bool:
    """Grow; whether no step took longer than it may."""
    with tempfile.TemporaryDirectory(dir=a.directory) as folder:
        # As an instance does before its loop begins.
        grow(Loop(NAME, a.kind, Path(folder) / "warm", Clock(), a.vnodes), 100_000)
        gc.collect()
        gc.freeze()
        clock, found = Clock(), []
        loop = Loop(NAME, a.kind, Path(folder) / "grown", clock, a.vnodes)
        begin = time.monotonic()
        for tenth in range(1, TENTHS + 1):
            clock.steps.clear()
            grow(loop, int(a.keys * tenth / TENTHS))
            found.append((loop.keys, longest(clock)))
    about = {"vnodes": a.vnodes, "kind": a.kind}
    for keys, steps in found:
        for step, values in steps.items():
            for name, value in zip(("longest", "longest, of the processor"), values, strict=True):
                results.add("ferry", "growth", f"{step}, {name}", value, "ms", keys=keys, **about)
    kinds = sorted({step for _, tenth in found for step in tenth})
    rows = [[f"{keys:,}", *(f"{t[s][0]:.0f} / {t[s][1]:.0f}" for s in kinds)] for keys, t in found]
    title = f"growth ({a.kind}, {a.vnodes} virtual nodes): longest step, ms of the clock / of the processor"
    show(console, title, ["keys", *kinds], rows)
    worst = max(clocked for _, tenth in found for clocked, _ in tenth.values())
    console.print(f"longest step {worst:.0f} ms, allowed {a.max_ms:.0f}; {time.monotonic() - begin:.0f} s")
    if a.json is not None:
        picture(a.json.with_name(f"{a.json.stem}-growth.png"), found)
    return bool(worst <= a.max_ms)


def grow(loop: Loop, keys: int) -> None:
    """With epochs of new keys, until there are so many."""
    while loop.keys < keys:
        loop.apply(loop.epoch)
        loop.rest()


def longest(clock: Clock) -> Longest:
    """Of each kind."""
    return {
        step: (1000 * max(clocked for clocked, _ in times), 1000 * max(computed for _, computed in times))
        for step, times in clock.steps.items()
    }


def picture(file: Path, found: list[tuple[int, Longest]]) -> None:
    """The longest step of each kind, by keys."""
    labels = [f"{keys / 1e6:.3g} M" for keys, _ in found]
    panels = []
    for position, name in enumerate(("of the clock", "of the processor")):
        series: dict[str, list[float | None]] = {
            step: [tenth[step][position] for _, tenth in found] for step in found[0][1]
        }
        panels.append(Panel(f"longest step, {name}", "ms", labels, series, kind="lines"))
    draw(file, "The loop of an instance while its state grows, by keys", panels)
