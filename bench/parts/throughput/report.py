"""Medians, ratios, tables and the picture of the throughput benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.shared.results import Panel, Results, draw, show

STAGES = ("spark", "ingest", "prepare", "commit", "emit", "sink")


class Report:
    """What is made of the records of one call."""

    def __init__(self, results: Results, arguments: argparse.Namespace, console: Console) -> None:
        self.r, self.a, self.console = results, arguments, console

    def ratios(self) -> None:
        """Add medians and ratios: the same batch, and the best of each."""
        r, a = self.r, self.a
        for query in a.queries:
            case, best = f"{query}, files", dict[str, float]()
            for batch in self._batches():
                medians = {
                    s: r.median(system=s, case=case, metric="throughput", batch=batch) for s in ("Ferry", "Spark")
                }
                if medians["Ferry"] and medians["Spark"]:
                    r.add(
                        "both",
                        case,
                        "ratio, same batch",
                        medians["Ferry"] / medians["Spark"],
                        "x",
                        query=query,
                        batch=batch,
                    )
                for system, value in medians.items():
                    best[system] = max(best.get(system, 0.0), value or 0.0)
            if best.get("Spark"):
                r.add("both", case, "ratio, best of each", best["Ferry"] / best["Spark"], "x", query=query)
                base = r.median(system="Ferry", case=case, metric="throughput", batch=self._batches()[0])
                r.add("both", case, "ratio, Spark's best", (base or 0.0) / best["Spark"], "x", query=query)

    def _batches(self) -> list[int]:
        size = max(self.a.batch // self.a.file_rows, 1) * self.a.file_rows
        return sorted({size, size * self.a.larger})

    def tables(self) -> None:
        """Print medians."""
        r, a = self.r, self.a
        rows = []
        for query in a.queries:
            for batch in self._batches():
                one: dict[str, Any] = {"case": f"{query}, files", "batch": batch}
                ferry, spark = (r.median(system=s, metric="throughput", **one) for s in ("Ferry", "Spark"))
                cpus = [r.median(system=s, metric="cpu", **one) for s in ("Ferry", "Spark")]
                ratio = ferry / spark if ferry and spark else None
                rates = (f"{rate:,.0f}" if rate else None for rate in (ferry, spark))
                rows.append([query, f"{batch:,}", *rates, ratio, *cpus])
        heads = ["query", "batch", "Ferry/s", "Spark/s", "ratio", "Ferry CPU", "Spark CPU"]
        show(self.console, "Records/s from the same files (CPU: seconds per million records)", heads, rows)
        self._table("own generator", "query", a.queries)
        self._table("replicas", "replicas", (0, 1, 2))
        if "stages" in a.cases:
            rows = [
                [f"{n:,} vnodes, {b:,} arrivals", *(self._stage(n, b, s) for s in STAGES)]
                for n in (64, 1024)
                for b in (20_000, a.batch)
            ]
            show(self.console, "Median milliseconds per stage of an epoch", ["", *STAGES], rows)

    def _stage(self, nodes: int, batch: int, stage: str) -> float | None:
        value = self.r.median(case="stages", virtual_nodes=nodes, batch=batch, metric=f"stage {stage}")
        return None if value is None else value * 1000

    def _table(self, case: str, parameter: str, values: Sequence[Any]) -> None:
        rows = []
        for value in values:
            found = [
                self.r.median(case=case, metric=m, **{parameter: value})
                for m in ("throughput", "cpu", "sidecar cpu", "batch")
            ]
            if found[0] is not None:
                rows.append([str(value), f"{found[0]:,.0f}", *found[1:]])
        if rows:
            heads = [parameter, "records/s", "CPU s/M", "sidecar CPU s/M", "epoch s"]
            show(self.console, f"Ferry: {case}", heads, rows)

    def _each(self, metric: str, **wanted: Any) -> list[float | None]:
        """Medians of the queries."""
        return [self.r.median(case=f"{query}, files", metric=metric, **wanted) for query in self.a.queries]

    def picture(self, file: Path) -> None:
        """One panel per question."""
        r, a = self.r, self.a
        panels = [
            Panel(
                f"same files, {batch:,} arrivals per batch", "records/s", a.queries,
                {x: self._each("throughput", system=x, batch=batch) for x in ("Ferry", "Spark")}, logarithmic=True,
            )
            for batch in self._batches()
        ]  # fmt: skip
        ratios = {f"{batch:,} a batch": self._each("ratio, same batch", batch=batch) for batch in self._batches()}
        panels.append(Panel("records/s of Ferry over those of Spark, by arrivals per batch", "x", a.queries, ratios))
        if "replicas" in a.cases:
            for metric, unit in (("throughput", "records/s"), ("cpu", "CPU s per million records")):
                values = [r.median(case="replicas", metric=metric, replicas=n) for n in (0, 1, 2)]
                panels.append(
                    Panel(f"NBQ5, 3 workers, by number of replicas: {metric}", unit, ["0", "1", "2"], {"Ferry": values})
                )
        if "stages" in a.cases:
            columns = [(n, b) for n in (64, 1024) for b in (20_000, a.batch)]
            series = {s: [self._stage(n, b, s) for n, b in columns] for s in STAGES}
            names = [f"{n:,} vnodes\n{b:,}" for n, b in columns]
            panels.append(Panel("stages of an epoch, by vnodes and arrivals", "ms", names, series))
        draw(file, f"Throughput, {a.cores} cores, medians of {a.repeats}", panels)
