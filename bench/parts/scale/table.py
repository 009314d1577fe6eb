"""The size of a routing table, and the time that a change of it takes, by virtual nodes."""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from rich.console import Console

from bench.shared.results import Results, show
from ferry.contract import journals, limits, routing
from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.view import TableView
from ferry_operator.placement.planner import Load, Placement, Slot, plan

REPLICAS = 1
PLANNED_MAX = 1 << 17
"""With more virtual nodes the planner takes minutes."""


COLUMNS = {
    "JSON": 1e6, "in the API server": 1e6, "Amend": 1e3, "to JSON": 1e-3, "packed": 1e-3, "read": 1e-3, "view": 1e-3,
    "planned": 1.0,
}  # fmt: skip
"""Of each metric, what one of its units in the table is, in bytes or seconds."""


def measure(a: argparse.Namespace, console: Console, results: Results) -> bool:
    """All sizes of `--table`; nothing can be wrong. Sizes beyond the product's bound are measured, too."""
    vars(routing)["VIRTUAL_NODES_MAX"] = max(*a.table, limits.VIRTUAL_NODES_MAX)
    rows = []
    for vnodes in a.table:
        for workers in (w for w in a.workers if w <= vnodes):
            found = costs_of(workers, vnodes)
            for metric, value in found.items():
                unit = "bytes" if COLUMNS[metric] > 1 else "s"
                results.add("ferry", "table", metric, value, unit, workers=workers, vnodes=vnodes)
            cells = (f"{found[n] / scale:,.2f}" if n in found else "" for n, scale in COLUMNS.items())
            rows.append([f"{vnodes:,}", f"{workers:,}", *cells])
    units = {1e6: "MB", 1e3: "kB", 1e-3: "ms", 1.0: "s"}
    show(console, "one table", ["virtual nodes", "workers", *(f"{n}, {units[s]}" for n, s in COLUMNS.items())], rows)
    return True


def costs_of(workers: int, vnodes: int) -> dict[str, float]:
    """Bytes and seconds of processor time of one table; a worker has been lost, and its groups have other leaders."""
    chance = random.Random(1)
    names = [InstanceId(f"{w}.0") for w in range(workers)]
    before = tuple(Group(Term(1, v % 8), tuple(chance.sample(names, 1 + REPLICAS))) for v in range(vnodes))
    groups = tuple(_without(group, names[0]) for group in before)
    table, after = Table(Version(1, 1), before), Table(Version(1, 2), groups)
    loads = [Load(chance.uniform(0.5, 1.5), chance.uniform(0.5, 1.5)) for _ in range(vnodes)]
    placed = [Placement(group.leader, group.in_sync[1:]) for group in groups]
    slots = [Slot(f"{w}.0", w, str(w // 10)) for w in range(1, workers)]
    json_seconds, text = _timed(lambda: json.dumps(table.to_journal(), separators=(",", ":")))
    packed_seconds, packed = _timed(lambda: journals.packed(table))
    read_seconds, _ = _timed(lambda: journals.unpacked(packed))
    view_seconds, _ = _timed(lambda: TableView(after))
    planned = {"planned": _timed(lambda: plan(slots, loads, placed, REPLICAS))[0]} if vnodes <= PLANNED_MAX else {}
    amend = m.encode(m.Amend(table.version, after.version, False, after.since(table)))
    return {
        "JSON": len(text),
        "in the API server": len(packed),
        "Amend": len(amend),
        "to JSON": json_seconds,
        "packed": packed_seconds,
        "read": read_seconds,
        "view": view_seconds,
    } | planned


def _without(group: Group, lost: str) -> Group:
    left = tuple(i for i in group.in_sync if i != lost)
    return group if len(left) == len(group.in_sync) else Group(group.term, left)


def _timed(work: Any) -> tuple[float, Any]:
    began = time.process_time()
    done = work()
    return time.process_time() - began, done
