"""Medians, ratios, tables and the picture of the throughput benchmark."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench.shared.processes import KINDS
from bench.shared.results import Panel, Results, draw, show

STAGES = ("spark", "ingest", "prepare", "commit", "emit", "sink")


NAMES = {
    "ferry": "Ferry", "earlier": "Earlier", "spark": "Spark", "spark-memory": "Spark, memory", "flink": "Flink",
    "flink-rocksdb": "Flink, RocksDB", "uppar": "UpPar", "single": "One thread",
}  # fmt: skip
"""Systems, as they are asked for, and as records call them."""
SPARKS = {NAMES["spark"], NAMES["spark-memory"]}
"""Spark with each of its state stores."""


class Asked(NamedTuple):
    """One input of files."""

    query: str
    skew: float | None = None
    """exponent of its keys, by Zipf; None: as they are"""

    @property
    def case(self) -> str:
        """What records call it."""
        return f"{self.query}, files" if self.skew is None else f"{self.query}, zipf"

    @property
    def parameters(self) -> dict[str, Any]:
        """Fields of its records."""
        return {"query": self.query} if self.skew is None else {"query": self.query, "skew": self.skew}


def inputs_of(a: argparse.Namespace) -> list[Asked]:
    """What a call asks for, in order."""
    return [Asked(query, skew) for query in a.queries for skew in a.skew or [None]]


class Report:
    """What is made of the records of one call."""

    def __init__(self, results: Results, arguments: argparse.Namespace, console: Console) -> None:
        self.r, self.a, self.console = results, arguments, console
        self.systems = [name for key, name in NAMES.items() if key in arguments.systems]
        """in the order in which they are shown"""

    def ratios(self) -> None:
        """Add ratios of medians: each other system at the same batch; Spark, in its better store, at its best."""
        r, a = self.r, self.a
        for one in inputs_of(a):
            best = dict[str, float]()
            for batch in self._batches():
                medians = {name: self._rate(one, name, batch) for name in self.systems}
                ours = medians.get("Ferry")
                for name, theirs in medians.items():
                    if ours and theirs and name != "Ferry":
                        who, metric = ("both", "ratio") if name == "Spark" else ("Ferry", f"ratio to {name}")
                        r.add(who, one.case, f"{metric}, same batch", ours / theirs, "x", **one.parameters, batch=batch)
                for name, value in medians.items():
                    best[name] = max(best.get(name, 0.0), value or 0.0)
            spark = max(best.get(name, 0.0) for name in SPARKS)
            if spark and "Ferry" in best:
                r.add("both", one.case, "ratio, best of each", best["Ferry"] / spark, "x", **one.parameters)
                base = self._rate(one, "Ferry", self._batches()[0]) or 0.0
                r.add("both", one.case, "ratio, Spark's best", base / spark, "x", **one.parameters)

    def cpu_ratios(self) -> None:
        """Add the ratio of processor time of each pair of runs of one repeat: Ferry's over that of each other system."""
        for one in inputs_of(self.a):
            for batch in self._batches():
                for name in self._others():
                    for repeat in range(self.a.repeats):
                        ours, theirs = (self._rate(one, n, batch, "cpu", repeat=repeat) for n in ("Ferry", name))
                        if ours and theirs:
                            metric = f"cpu ratio to {name}"
                            self.r.add(
                                "Ferry",
                                one.case,
                                metric,
                                ours / theirs,
                                "x",
                                **one.parameters,
                                batch=batch,
                                repeat=repeat,
                            )

    def _rate(self, one: Asked, system: str, batch: int, metric: str = "throughput", **more: Any) -> float | None:
        return self.r.median(system=system, case=one.case, metric=metric, batch=batch, **one.parameters, **more)

    def _others(self) -> list[str]:
        """Those that Ferry is beside."""
        return [name for name in self.systems if name != "Ferry"] if "Ferry" in self.systems else []

    def _batches(self) -> list[int]:
        size = max(self.a.batch // self.a.file_rows, 1) * self.a.file_rows
        return sorted({size, size * self.a.larger})

    def tables(self) -> None:
        """Print medians."""
        a, rates, cpus, pairs = self.a, [], [], []
        for one in inputs_of(a):
            for batch in self._batches():
                found = {name: self._rate(one, name, batch) for name in self.systems}
                ours = found.get("Ferry")
                ratios = [ours / theirs if ours and (theirs := found[name]) else None for name in self._others()]
                named = [one.query if one.skew is None else f"{one.query}, {one.skew:g}", f"{batch:,}"]
                rates.append([*named, *(f"{rate:,.0f}" if rate else None for rate in found.values()), *ratios])
                for name in self.systems:
                    values = [self._rate(one, name, batch, metric) for metric in ("cpu", *(f"{k} cpu" for k in KINDS))]
                    cpus.append([*named, name, *(None if v is None else f"{1000 * v:,.0f}" for v in values)])
                for name in self._others():
                    chosen = {"case": one.case, "metric": f"cpu ratio to {name}", "batch": batch, **one.parameters}
                    if each := sorted(self.r.values(**chosen)):
                        pairs.append([*named, name, statistics.median(each), each[0], each[-1], len(each)])
        heads, over = ["query", "batch", *self.systems], [f"over {name}" for name in self._others()]
        show(self.console, "Records/s from the same files, and Ferry's over those of others", [*heads, *over], rates)
        kinds = ["query", "batch", "system", "all", *KINDS]
        show(self.console, "Processor nanoseconds a record, of all processes and by process", kinds, cpus)
        spread = ["query", "batch", "beside", "median", "least", "greatest", "pairs"]
        show(self.console, "Ferry's processor time over that of a run in the same minutes", spread, pairs)
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
                for m in ("throughput", "cpu", "sidecars cpu", "batch")
            ]
            if found[0] is not None:
                rows.append([str(value), f"{found[0]:,.0f}", *found[1:]])
        if rows:
            heads = [parameter, "records/s", "CPU s/M", "sidecar CPU s/M", "epoch s"]
            show(self.console, f"Ferry: {case}", heads, rows)

    def _of_files(self) -> list[Panel]:
        """Of each batch a panel of the queries, and one of what Ferry does beside others."""
        asked, queries = inputs_of(self.a), self.a.queries
        panels, ratios = [], dict[str, list[float | None]]()
        for batch in self._batches():
            rates = {name: [self._rate(one, name, batch) for one in asked] for name in self.systems}
            panels.append(
                Panel(f"same files, {batch:,} arrivals per batch", "records/s", queries, rates, logarithmic=True)
            )
            for name in self._others():
                pairs = zip(rates["Ferry"], rates[name], strict=True)
                ratios[f"{name}, {batch:,} a batch"] = [ours / rate if ours and rate else None for ours, rate in pairs]
        if ratios:
            panels.append(Panel("records/s of Ferry over those of others, by arrivals per batch", "x", queries, ratios))
        return panels

    def _of_skew(self) -> list[Panel]:
        """Of each query and batch a panel by exponent."""
        labels = [f"{skew:g}" for skew in self.a.skew]
        return [
            Panel(
                f"{query}, keys by Zipf, by exponent; {batch:,} a batch",
                "records/s",
                labels,
                {x: [self._rate(Asked(query, skew), x, batch) for skew in self.a.skew] for x in self.systems},
                kind="lines",
            )
            for query in self.a.queries
            for batch in self._batches()
        ]

    def picture(self, file: Path) -> None:
        """One panel per question."""
        r, a = self.r, self.a
        panels = self._of_skew() if a.skew else self._of_files()
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
