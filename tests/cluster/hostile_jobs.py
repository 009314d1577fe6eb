"""Shapes of hostile jobs: each operator as a line of a pipeline, and what it gives in a few lines of plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from tests.cluster.hostile_columns import Kind

Row = dict[str, Any]
Aggregates = dict[str, tuple[str, str | None]]
"""output column -> (function, column)"""

GAP, SIZE, SLIDE, LAST, WITHIN = 700, 4_000, 2_000, 3, 900
"""Milliseconds; of windows of rows their number."""

DIGITS = Context(prec=60)


OWN: Aggregates = {"n": ("count", None), "mark": ("max", "mark")}
"""What the program's own aggregator gives."""


def aggregates_of(draw: random.Random, values: dict[str, Kind], sets: bool) -> Aggregates:
    """Some functions of these columns; `sets`: also those that keep a set of values."""
    made = dict(OWN)
    for name, kind in values.items():
        known = ["count", *["count_distinct"] * sets]
        if kind.code != "pa.uint64()":
            known += ["min", "max", "first", "last", "arg_max"] + ["sum", "mean"] * (kind.tame is not None)
        for function in draw.sample(known, draw.randint(1, min(3, len(known)))):
            made[f"{function}_{name}"] = (function, name)
    return made


def code_of(aggregates: Aggregates) -> str:
    """As arguments of `aggregate`."""
    return ", ".join(f"{out}={_call(*one)}" for out, one in aggregates.items())


def _call(function: str, column: str | None) -> str:
    by = ', by="id"' if function == "arg_max" else ""
    return f'ferry.{function}("{column}"{by})' if column else f"ferry.{function}()"


def aggregated(aggregates: Aggregates, rows: Sequence[Row]) -> Row:
    """What the functions give of these rows."""
    return {out: _value(function, column, rows) for out, (function, column) in aggregates.items()}


def _value(function: str, column: str | None, rows: Sequence[Row]) -> Any:
    if column is None:
        return len(rows)
    known = [row for row in rows if row[column] is not None]
    values = [row[column] for row in known]
    if function == "count":
        return len(values)
    if function == "count_distinct":
        return len({*values})
    if not values:
        return None
    match function:
        case "sum":
            return _sum(values)
        case "mean":
            return _mean(values)
        case "first":
            return max(row[column] for row in known if row["ts"] == min(row["ts"] for row in known))
        case "last":
            return max(row[column] for row in known if row["ts"] == max(row["ts"] for row in known))
        case "arg_max":
            return max(known, key=lambda row: row["id"])[column]
    return {"min": min, "max": max}[function](values)


def _sum(values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = DIGITS.add(total, value) if isinstance(value, Decimal) else total + value
    return total


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], Decimal):
        scale = min(38, 4 - min(int(value.as_tuple().exponent) for value in values))
        quotient = DIGITS.divide(_sum(values), Decimal(len(values)))
        return quotient.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, DIGITS)
    return _sum(values) / len(values)


@dataclass(frozen=True)
class Plan:
    """What the shapes need to know of a job."""

    keys: tuple[str, ...]
    aggregates: Aggregates
    kept: tuple[str, ...]
    """more columns, which an operator can keep"""

    def grouped(self, rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
        """By key."""
        groups = defaultdict(list)
        for row in rows:
            groups[tuple(row[key] for key in self.keys)].append(row)
        return groups

    def each(
        self, rows: Sequence[Row], groups: Callable[[list[Row]], list[tuple[Row, list[Row]]]], own: bool
    ) -> list[Row]:
        """A row for each group of the rows of a key: the key, what the group has of itself, and the aggregates."""
        found = []
        for key, some in self.grouped(rows).items():
            for more, group in groups(some):
                made = aggregated(OWN if own else self.aggregates, group)
                found.append({**dict(zip(self.keys, key, strict=True)), **more, **made})
        return found


@dataclass(frozen=True)
class Shape:
    """An operator."""

    name: str
    code: str
    """behind `s`; of `{keys}`, `{aggregates}`, `{kept}` and `{joined}`"""
    rows: Callable[[Plan, list[Row], list[Row]], list[Row]]
    """of the plan, the records, and those of the other stream"""
    timed: bool = True
    other: bool = False
    """it joins a second source"""
    ordered: bool = False
    """which rows it gives is said by the order of files, so it has a single source"""
    windowed: bool = False
    """another operator can be behind it"""
    sites: tuple[str, ...] = ()
    """where in the operator the user's code is called"""


def _windows(size: int, slide: int, own: bool = False) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def groups(rows: list[Row]) -> list[tuple[Row, list[Row]]]:
        found = defaultdict(list)
        for row in rows:
            last = row["ts"] // slide * slide
            for start in range(last, last - size, -slide):
                found[start].append(row)
        return [({"window_start": start, "window_end": start + size}, some) for start, some in found.items()]

    return lambda plan, rows, _: plan.each(rows, groups, own)


def _split(rows: list[Row]) -> list[list[Row]]:
    """Sessions."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda one: one["ts"]):
        if found and row["ts"] - found[-1][-1]["ts"] <= GAP:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _top(n: int) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def rows_of(plan: Plan, rows: list[Row], _: list[Row]) -> list[Row]:
        found = []
        for key, some in plan.grouped(rows).items():
            for start in {row["ts"] // SIZE * SIZE for row in some}:
                mine = [row for row in some if row["ts"] // SIZE * SIZE == start]
                for rank, row in enumerate(sorted(mine, key=lambda row: -row["id"])[:n], 1):
                    kept = {name: row[name] for name in ("id", "mark", *plan.kept)}
                    bounds = {"window_start": start, "window_end": start + SIZE, "rank": rank}
                    found.append({**dict(zip(plan.keys, key, strict=True)), **bounds, **kept})
        return found

    return rows_of


def _sessions(own: bool = False) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def groups(rows: list[Row]) -> list[tuple[Row, list[Row]]]:
        return [({"window_start": s[0]["ts"], "window_end": s[-1]["ts"] + GAP}, s) for s in _split(rows)]

    return lambda plan, rows, _: plan.each(rows, groups, own)


def _all(own: bool = False) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    return lambda plan, rows, _: plan.each(rows, lambda some: [({}, some)], own)


def _last(size: int) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def rows_of(plan: Plan, rows: list[Row], _: list[Row]) -> list[Row]:
        found = []
        for some in plan.grouped(rows).values():
            for i, row in enumerate(some):
                kept = {name: row[name] for name in ("id", *plan.kept)}
                found.append(kept | aggregated(plan.aggregates, some[max(0, i + 1 - size) : i + 1]))
        return found

    return rows_of


def _pairs(plan: Plan, left: list[Row], right: list[Row], fit: Callable[[Row, Row], bool]) -> list[tuple[Row, Row]]:
    """A null equals nothing."""
    others = plan.grouped(right)
    return [
        (one, other)
        for one in left
        if None not in (key := tuple(one[k] for k in plan.keys))
        for other in others.get(key, ())
        if fit(one, other)
    ]


Pairs = list[tuple[Row | None, Row | None]]


def _outer(how: str, left: list[Row], right: list[Row], matched: list[tuple[Row, Row]]) -> Pairs:
    """The pairs, and the records of a side that are in none, where the join gives these."""
    mine, others = ({row["id"] for row in side} for side in zip(*matched, strict=True)) if matched else (set(), set())
    pairs: Pairs = [*matched]
    pairs += [(one, None) for one in left if how in ("left", "full") and one["id"] not in mine]
    return pairs + [(None, other) for other in right if how in ("right", "full") and other["id"] not in others]


def _window_join(how: str) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def rows_of(plan: Plan, left: list[Row], right: list[Row]) -> list[Row]:
        matched = _pairs(plan, left, right, lambda one, other: one["ts"] // SIZE == other["ts"] // SIZE)
        found = []
        for one, other in _outer(how, left, right, matched):
            start = ((one or other or {})["ts"]) // SIZE * SIZE
            found.append({"window_start": start, "window_end": start + SIZE, **_joined(plan, one, other)})
        return found

    return rows_of


def _joined(plan: Plan, one: Row | None, other: Row | None) -> Row:
    mine = {name: one[name] if one else None for name in ("id", "mark", *plan.kept)}
    return mine | {"other": other["id"] if other else None}


def _near(how: str) -> Callable[[Plan, list[Row], list[Row]], list[Row]]:
    def rows_of(plan: Plan, left: list[Row], right: list[Row]) -> list[Row]:
        matched = _pairs(plan, left, right, lambda one, other: -WITHIN <= other["ts"] - one["ts"] < WITHIN)
        return [_joined(plan, one, other) for one, other in _outer(how, left, right, matched)]

    return rows_of


def _counted(plan: Plan, rows: list[Row], _: list[Row]) -> list[Row]:
    """A row for each record, and at the end one for each key."""
    found = [{"id": row["id"], "mark": row["mark"], "n": 0} for row in rows]
    for some in plan.grouped(rows).values():
        found.append({"id": max(r["id"] for r in some), "mark": max(r["mark"] for r in some), "n": len(some)})
    return found


JOINED = '.join("op", o.key_by({keys}){window}, {joined}, {{"other": "id"}}'
SHAPES = [
    Shape("straight", "", lambda plan, rows, _: rows, timed=False),
    Shape("tumbling", f'.key_by({{keys}}).window(ferry.tumbling("{SIZE}ms")).aggregate("op", {{aggregates}})', _windows(SIZE, SIZE),
          windowed=True),
    Shape("sliding", f'.key_by({{keys}}).window(ferry.sliding("{SIZE}ms", "{SLIDE}ms")).aggregate("op", {{aggregates}})',
          _windows(SIZE, SLIDE), windowed=True),
    Shape("sessions", f'.key_by({{keys}}).window(ferry.session("{GAP}ms")).aggregate("op", {{aggregates}})', _sessions(),
          windowed=True),
    Shape("top", f'.key_by({{keys}}).window(ferry.tumbling("{SIZE}ms")).top_n("op", {LAST}, by="id", columns={{joined}})', _top(LAST)),
    Shape("all", '.key_by({keys}).aggregate("op", emit=ferry.at_end(), {aggregates})', _all()),
    Shape("changes", '.key_by({keys}).aggregate("op", emit=ferry.changes(), {aggregates})', _all()),
    Shape("rows", f'.key_by({{keys}}).window(ferry.rows({LAST})).aggregate("op", ["id", {{kept}}], order="id", {{aggregates}})',
          _last(LAST), ordered=True),
    Shape("records", '.key_by({keys}).aggregate("op", emit=ferry.records("id", {kept} order="id"), {aggregates})',
          _last(10**9), ordered=True),
    *(Shape(f"{how} join", f'.key_by({{keys}}).window(ferry.tumbling("{SIZE}ms"))' + JOINED.replace("{window}", "") + f', how="{how}")',
            _window_join(how), other=True) for how in ("inner", "left", "right", "full")),
    *(Shape(f"{how} near", ".key_by({keys})" + JOINED.replace("{window}", "") + f', within=("-{WITHIN}ms", "{WITHIN}ms"), how="{how}")',
            _near(how), other=True) for how in ("inner", "left", "right", "full")),
    Shape("own windows", f'.key_by({{keys}}).window(ferry.tumbling("{SIZE}ms")).aggregate("op", Own())', _windows(SIZE, SIZE, True),
          windowed=True, sites=("update", "result")),
    Shape("own sessions", f'.key_by({{keys}}).window(ferry.session("{GAP}ms")).aggregate("op", Own())', _sessions(True),
          windowed=True, sites=("update", "result")),
    Shape("own", '.key_by({keys}).aggregate("op", aggregator=Own(), emit=ferry.at_end())', _all(True), sites=("update", "result")),
    Shape("process", '.key_by({keys}).process("op", Counting(10_000_000))', _counted, sites=("process", "timer")),
    Shape("processor", '.key_by({keys}).transform_with_state("op", Counted(), "id LONG, mark LONG, n LONG")', _counted,
          sites=("rows", "expired")),
]  # fmt: skip


def second(plan: Plan, rows: list[Row]) -> list[Row]:
    """What the operator behind the first one gives: by the first key, of all its rows."""
    groups = defaultdict(list)
    for row in rows:
        groups[row[plan.keys[0]]].append(row)
    return [
        {plan.keys[0]: key, "n": sum(r["n"] for r in some), "mark": max(r["mark"] for r in some)}
        for key, some in groups.items()
    ]


SECOND = '.key_by("{key}").aggregate("second", emit=ferry.at_end(), n=ferry.sum("n"), mark=ferry.max("mark"))'
