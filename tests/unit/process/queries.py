"""Inputs of the papers' queries, given to processes in random epochs, and what the oracle expects of them."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferry.contract.limits import WATERMARK_NONE
from ferry.process.harness import ProcessHarness

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))


class Case(NamedTuple):
    """One generated input: its tables, where they are for the oracle, and how late its records come."""

    directory: Path
    tables: dict[str, pa.Table]
    delay: int

    def expected(self, query: str, **options: Any) -> Counter[tuple[Any, ...]]:
        """Rows of a query."""
        con, text, _ = importlib.import_module("oracle.expect").expect(query, str(self.directory), **options)
        return Counter(con.execute(text).fetchall())


def generated(directory: Path, workload: str, events: int, tick: int = 0, **options: Any) -> Case:
    """An input; `tick`: times and prices are made coarse, so that ties and exact boundaries are frequent."""
    gen = importlib.import_module("oracle.gen")
    gen.generate(gen.Config(workload=workload, events=events, **options), str(directory))
    if tick:
        importlib.import_module("oracle.naive").coarsen(str(directory), tick)
    meta = json.loads((directory / "meta.json").read_text())
    tables = {name: pq.read_table(directory / f"{name}.parquet") for name in meta["rows"]}
    return Case(directory, tables, meta["max_disorder_ms"] + tick)


def fed(rig: ProcessHarness, case: Case, names: tuple[str, ...], seed: int, delay: int | None = None) -> list[pa.Table]:
    """What the process emits, epoch by epoch; epochs are cut anywhere, and the watermark follows its inputs."""
    chance = np.random.default_rng(seed)
    total = 1 + max(pc.max(case.tables[name].column("seq")).as_py() or 0 for name in names)
    cuts = np.unique(np.append(chance.integers(0, total, chance.integers(1, 25)), total))
    greatest, out, begin = [WATERMARK_NONE] * len(names), [], 0
    for end in cuts.tolist():
        given = []
        for side, name in enumerate(names):
            table = case.tables[name]
            seq = table.column("seq")
            rows = table.filter(pc.and_(pc.greater_equal(seq, begin), pc.less(seq, end))).sort_by("seq")
            given.append(rows)
            greatest[side] = max(greatest[side], pc.max(rows.column("ts")).as_py() or WATERMARK_NONE)
        begin = end
        low = min(greatest) - (case.delay if delay is None else delay)
        out.append(rig.epoch(*given, watermark=max(low, rig.watermark)))
    return [*out, rig.end()]


def rows_of(tables: list[pa.Table], columns: list[str] | None = None) -> Counter[tuple[Any, ...]]:
    """All rows as a multiset."""
    table = pa.concat_tables(tables)
    chosen = table if columns is None else table.select(columns)
    return Counter(zip(*(column.to_pylist() for column in chosen.columns), strict=True))


def schema_of(case: Case, name: str) -> pa.Schema:
    return case.tables[name].schema
