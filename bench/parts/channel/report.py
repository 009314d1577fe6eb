"""Medians, ratios, tables and the picture of the benchmark of channels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.shared.results import Panel, Results, draw, show

BESIDE, BY_SLOTS = "beside others", "by slots"
ENOUGH = 0.8
"""Of iperf3, that channels over TCP have to reach."""

TCP, BARE = (
    {"system": "Ferry", "carrier": "tcp", "checksum": True},
    {"system": "Ferry", "carrier": "tcp", "checksum": False},
)
RDMA = {"system": "Ferry", "carrier": "rdma", "checksum": True, "notify": None}
ROWS: dict[str, dict[str, Any]] = {
    "iperf3": {"system": "iperf3"},
    "Ferry, TCP": TCP,
    "Ferry, TCP, no checksum": BARE,
    "sockets": {"system": "sockets"},
    "ib_write_bw": {"system": "ib_write_bw"},
    "ib_write_lat": {"system": "ib_write_lat"},
    "Ferry, RDMA": RDMA,
    "Ferry, RDMA, footer": {**RDMA, "notify": "footer"},
    "Ferry, RDMA, no checksum": {**RDMA, "checksum": False},
}


class Report:
    """What is made of the records of one call."""

    def __init__(self, results: Results, places: Sequence[str], console: Console) -> None:
        self.r, self.places, self.console = results, places, console

    def _speed(self, place: str, name: str, **more: Any) -> float | None:
        found = {**ROWS[name], **({"bytes": 65536} if name == "ib_write_bw" else {}), **more}
        return self.r.median(case=BESIDE, metric="throughput", place=place, **found)

    def _latency(self, place: str, name: str, size: int) -> float | None:
        return self.r.median(case=BESIDE, metric="latency", place=place, bytes=size, **ROWS[name])

    def ratios(self) -> None:
        """Add what channels reach of what the programs reach: the median over the turns."""
        pairs = (("Ferry, TCP", "iperf3"), ("Ferry, TCP, no checksum", "iperf3"), ("Ferry, RDMA", "ib_write_bw"))
        turns = range(1 + max((r.get("repeat", 0) for r in self.r.records), default=0))
        for place, (ours, theirs) in product(self.places, pairs):
            both = [(self._speed(place, ours, repeat=n), self._speed(place, theirs, repeat=n)) for n in turns]
            ratios = [mine / other for mine, other in both if mine and other]
            if ratios:
                found = {k: v for k, v in ROWS[ours].items() if v is not None}
                value = statistics.median(ratios)
                self.r.add(found.pop("system"), BESIDE, f"ratio to {theirs}", value, "x", place=place, **found)

    def tables(self) -> None:
        """Print medians."""
        for place in self.places:
            rows = []
            for name, row in ROWS.items():
                speed = self._speed(place, name)
                cpus = [
                    self.r.median(case=BESIDE, metric=f"{side} cpu", place=place, **row)
                    for side in ("sender", "receiver")
                ]
                latencies = [self._latency(place, name, size) for size in (64, 65536)]
                if speed or any(latencies):
                    rows.append([name, None if speed is None else speed / 1e6, *cpus, *latencies])
            heads = ["", "MB/s", "sender CPU", "receiver CPU", "us, 64 bytes", "us, 64 KiB"]
            show(self.console, f"{place}: messages of 64 KiB; half of a round trip", heads, rows)
            for carrier in ("tcp", "rdma"):
                self._grid(place, carrier)
            ratio = self.r.median(metric="ratio to iperf3", place=place, **ROWS["Ferry, TCP"])
            if ratio is not None:
                good = ratio >= ENOUGH
                text = f"TCP reaches {ratio:.0%} of iperf3" + ("" if good else f": less than {ENOUGH:.0%}")
                self.console.print(text, style="green" if good else "bold red")

    def _grid(self, place: str, carrier: str) -> None:
        sizes, slots = self._axes(place, carrier)
        rows = [
            [f"{size // 1024} KiB", *(self._cell(place, carrier, size, n, "throughput", 65536, 1e-6) for n in slots)]
            for size in sizes
        ]
        if rows:
            show(self.console, f"{place}, {carrier}: MB/s, by slots and their size", ["", *map(str, slots)], rows)

    def _axes(self, place: str, carrier: str) -> tuple[list[int], list[int]]:
        found = [
            r for r in self.r.records if (r["case"], r.get("place"), r.get("carrier")) == (BY_SLOTS, place, carrier)
        ]
        return sorted({r["slot_bytes"] for r in found}), sorted({r["slots"] for r in found})

    def _cell(
        self, place: str, carrier: str, slot_bytes: int, slots: int, metric: str, size: int, factor: float
    ) -> float | None:
        wanted: dict[str, Any] = {
            "place": place,
            "carrier": carrier,
            "slot_bytes": slot_bytes,
            "slots": slots,
            "bytes": size,
        }
        value = self.r.median(case=BY_SLOTS, metric=metric, **wanted)
        return None if value is None else value * factor

    def picture(self, file: Path, title: str) -> None:
        """Beside others first, then a panel for each carrier, place and question."""
        speeds = {name: [self._speed(place, name) for place in self.places] for name in SPEEDS}
        latencies = {n: [self._latency(place, n, 64) for place in self.places] for n in LATENCIES}
        panels = [
            Panel("messages of 64 KiB, by place", "bytes/s", self.places, _seen(speeds), logarithmic=True),
            Panel("half of a round trip, 64 bytes, by place", "us", self.places, _seen(latencies), logarithmic=True),
        ]
        for place in self.places:
            for carrier in ("tcp", "rdma"):
                panels += self._slots(place, carrier)
        draw(file, title, panels)

    def _slots(self, place: str, carrier: str) -> list[Panel]:
        sizes, slots = self._axes(place, carrier)
        panels = []
        for metric, what, unit, factor in (
            ("throughput", "messages of 64 KiB", "bytes/s", 1.0),
            ("latency", "half of a round trip, 64 KiB", "us", 1.0),
        ):
            series = {
                f"slots of {size // 1024} KiB": [
                    self._cell(place, carrier, size, n, metric, 65536, factor) for n in slots
                ]
                for size in sizes
            }
            if series:
                labels = [str(n) for n in slots]
                panels.append(Panel(f"{carrier}, {place}: {what}, by number of slots", unit, labels, series, "lines"))
        return panels


SPEEDS = ("iperf3", "Ferry, TCP", "Ferry, TCP, no checksum", "ib_write_bw", "Ferry, RDMA")
LATENCIES = ("sockets", "Ferry, TCP", "ib_write_lat", "Ferry, RDMA")


def _seen(series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    return {name: values for name, values in series.items() if any(values)}
