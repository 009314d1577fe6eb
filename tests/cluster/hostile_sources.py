"""Files of hostile jobs: records with the extremes of their types, one that is marked, and between them what is none.

`Drawn` draws the records of a job; each source of it has some.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cluster.hostile_columns import SCALARS, Kind, Value, array
from tests.cluster.hostile_jobs import Row

BAD_LINES = [
    "null", " null ", "null null", "[]", "5", "true", '"text"', "{", "}", "{'id': 1}", "\x00", "nul", "\ufeffnull", "NaN", "-",
    "[null]", "\x1b[2J", "{} {}", '{"id": 1', "{" * 500, "[" * 5000,
]  # fmt: skip
"""None of them is an object."""

ODD_FIELDS = [
    "", ', "more": null', ', "more": [null]', ', "more": {"a": [1, {"b": null}]}', ', "more": ' + "9" * 400,
    ', "more": ' + "[" * 60 + "]" * 60, ', "id2": "x"',
]  # fmt: skip
"""Behind the fields of a record that is one all the same."""

FAR_AHEAD = 7_258_118_400_000
"""Milliseconds since 1970: no event time of a record that is good."""

TIMES = [
    "pa.int64()",
    *(f"pa.timestamp({unit!r}, {zone!r})" for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")),
]
FACTORS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass
class Source:
    """A directory of files."""

    name: str
    form: str
    """json, parquet, or own: Parquet that a class of the program reads"""
    files: list[list[Any]] = field(default_factory=list)
    """of each its lines of JSON, or its records"""
    good: list[Row] = field(default_factory=list)
    """values as Arrow is told them, in their order"""
    malformed: int = 0

    @property
    def code(self) -> str:
        """As the program opens it."""
        place = f'HERE + "/{self.name}"'
        return f"Files({place})" if self.form == "own" else f"ferry.{self.form}_files({place}, SCHEMA, finite=True)"

    def write(self, base: Path, columns: dict[str, Kind]) -> None:
        """Write the files to the folder of its name."""
        (base / self.name).mkdir(parents=True)
        for number, lines in enumerate(self.files):
            if self.form == "json":
                text = "".join(f"{line}\n" for line in lines)
                (base / self.name / f"{number}.json").write_bytes(text.encode())
                continue
            table = pa.table({name: array(kind.type, [row[name] for row in lines]) for name, kind in columns.items()})
            pq.write_table(table, base / self.name / f"{number}.parquet", row_group_size=100)


class Drawn:
    """Draws records, one after the other."""

    def __init__(
        self,
        draw: random.Random,
        columns: dict[str, Kind],
        keys: tuple[str, ...],
        timed: bool,
        passes: Callable[[Row], bool],
    ) -> None:
        """`timed`: event times are looked at, of those records that pass."""
        self.draw, self.columns, self.timed, self.passes = draw, columns, timed, passes
        self.number = 0
        self.keys = {
            name: [_even(columns[name], columns[name].draw(draw)) for _ in range(draw.choice([1, 3, 8]))]
            for name in keys
        }
        unit = columns["ts"].type
        self.factor = FACTORS[unit.unit] if pa.types.is_timestamp(unit) else 1

    def fill(self, source: Source, chance: float, has_marked: bool) -> None:
        """Draw its files: a record is malformed with this chance; the marked one has good ones on both sides."""
        draw = self.draw
        sizes = [draw.choice([0, 1, 7, 60, 300]) for _ in range(draw.randint(1, 3))]
        marked = draw.randrange(sum(sizes) + 1) if has_marked else -1
        sizes[-1] += marked == sum(sizes)
        for size in sizes:
            lines: list[Any] = []
            for _ in range(size):
                is_marked = marked == 0
                marked -= 1
                row = self._row(is_marked)
                if not (draw.random() < chance and not is_marked and self._spoil(source, row, lines)):
                    source.good.append(row)
                    lines.append(self._line(row) if source.form == "json" else row)
            source.files.append(lines)

    def _row(self, marked: bool) -> Row:
        draw, self.number = self.draw, self.number + 1
        row: Row = {"id": self.number, "mark": int(marked)}
        row["ts"] = draw.randrange(10_000) * self.factor + draw.randrange(self.factor)
        for name, kind in list(self.columns.items())[3:]:
            tame = kind.tame if name.startswith("v") and kind.tame is not None else kind.draw
            row[name] = (
                draw.choice(self.keys[name]) if name in self.keys else None if draw.random() < 0.1 else tame(draw)
            )
        if draw.random() < 0.05 and not marked:
            row[draw.choice([*self.keys])] = None
        return row

    def _line(self, row: Row, spoilt: dict[str, str] | None = None, more: str = "") -> str:
        """A record as a line of JSON, fields in any order, some nulls left out."""
        draw, spoilt = self.draw, spoilt or {}
        names = [name for name in row if name in spoilt or row[name] is not None or draw.random() < 0.5]
        draw.shuffle(names)
        parts = [
            f"{json.dumps(name)}:{draw.choice(['', ' '])}{spoilt.get(name) or self._text(name, row[name])}"
            for name in names
        ]
        return draw.choice(["", "", " ", "\t"]) + "{" + ", ".join(parts) + more + draw.choice(ODD_FIELDS) + "}"

    def _text(self, name: str, value: Value) -> str:
        if value is None:
            return "null"
        kind = self.columns[name]
        if name == "ts" and kind.type != pa.int64():
            kind = next(one for one in SCALARS if one.code == kind.code)
        return kind.text(self.draw, value)

    def _spoil(self, source: Source, row: Row, lines: list[Any]) -> bool:
        """Add what becomes of the record when it is malformed; False: it cannot be, in such a source."""
        draw = self.draw
        if self.timed and draw.random() < 0.3:
            row = {**row, "ts": draw.choice([None, FAR_AHEAD * self.factor])}
            lines.append(self._line(row) if source.form == "json" else row)
            # What a filter drops has no event time that anybody looks at.
            source.malformed += self.passes(row)
            return True
        if source.form != "json":
            return False
        name = draw.choice([*self.columns, None])
        if name is None:
            line = draw.choice(BAD_LINES)
        elif draw.random() < 0.1:
            line = self._line(row, more=f", {json.dumps(name)}: null, {json.dumps(name)}: null")
        else:
            line = self._line(row, {name: draw.choice(self.columns[name].bad)})
        lines.append(line)
        source.malformed += 1
        return True


def _even(kind: Kind, value: Value) -> Value:
    """A key that Spark tells apart, too, and that fits into the 64 bits of a key."""
    if "'ns'" in kind.code:
        return value // 1000 * 1000
    return value % 2**63 if kind.code == "pa.uint64()" else value
