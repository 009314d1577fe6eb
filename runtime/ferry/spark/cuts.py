"""Parts of splits: the driver cuts a split while it searches for a record that kills tasks.

    {"ferry.cut": [low, high, [numbers]], "split": ...}    records low to high of the split, without the listed numbers

Records of a split are numbered from 0 in the order in which its source reads them, which never changes. A number below 0
skips the end of a split, from record -1 - number on, because it cannot be read. A cut travels like a split: to tasks,
through Spark SQL, and to readers of late records. Splits of Ferry's own sources are ranges of files or partitions, so
skipped records are kept as ranges, too: another plan of the same epoch skips the same records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ferry.connectors.files.directory import DirectorySplits
from ferry.connectors.splits import PARTS, RangeSplits, Splits, ranges
from ferry.connectors.users import is_ferrys

CUT = "ferry.cut"

FIRST_PART = 64
"""Records in the first part of a split of unknown length; each further part is `PARTS` times as large."""


def by_file(source: Splits | None, split: dict[str, Any]) -> list[dict[str, Any]]:
    """The same records in one split per file, if the source reads files."""
    if not isinstance(source, DirectorySplits) or CUT in split:
        return [split]
    return [{"pieces": [piece]} for piece in split["pieces"]]


def place(source: Splits | None, split: dict[str, Any]) -> str:
    """File or offsets of a split, as the begin of a message; empty: the source does not know them."""
    if not is_ferrys(source) or not isinstance(source, RangeSplits):
        return ""
    return f"{source.place(split['split'] if CUT in split else split)}: "


def cut(split: str, low: int, high: int | None, aside: Sequence[int] = ()) -> str:
    """A part of a split, both as JSON."""
    return json.dumps({CUT: [low, high, list(aside)], "split": json.loads(split)})


def opened(split: str) -> tuple[str, int, int | None]:
    """The whole split of a part, and the range of the part's record numbers."""
    doc = json.loads(split)
    if CUT not in doc:
        return split, 0, None
    low, high, _ = doc[CUT]
    return json.dumps(doc["split"]), low, high


def pieces(split: str) -> list[str]:
    """The pieces of files or partitions of a split of Ferry's own sources, each as a split."""
    doc = json.loads(split)
    return [] if CUT in doc else [json.dumps({"pieces": [piece]}) for piece in doc["pieces"]]


def left_out(split: str, numbers: Sequence[int]) -> str:
    """A split without the records of these numbers."""
    return cut(split, 0, min((-1 - number for number in numbers if number < 0), default=None), numbers)


def aside_alone(split: str, number: int) -> str:
    """A cut that sets one record of a split aside, and reads no other record."""
    return cut(split, 0, 0, [number]) if number < 0 else cut(split, number, number + 1, [number])


def without(split: str, numbers: Mapping[str, Sequence[int]], own: bool) -> list[str]:
    """A split without the records of these numbers, by split or by range; ranges only for Ferry's `own` sources."""
    if split in numbers:
        return [left_out(split, numbers[split])]
    doc = json.loads(split)
    if not own or CUT in doc:
        return [split]
    units = {unit: json.loads(unit)["pieces"][0] for unit in numbers}
    rest: list[list[Any]] = []
    splits: list[str] = []
    for of, low, high in doc["pieces"]:
        for unit, (mine, begin, end) in sorted(units.items(), key=lambda item: item[1][1]):
            if mine == of and low <= begin and end <= high:
                rest += [[of, low, begin]] if low < begin else []
                splits += [json.dumps({"pieces": rest})] if rest else []
                splits.append(left_out(unit, numbers[unit]))
                low, rest = end, []
        rest += [[of, low, high]] if low < high else []
    if not splits:
        return [split]
    return [*splits, json.dumps({"pieces": rest})] if rest else splits


def parts(split: str) -> list[str]:
    """The same records in at most `PARTS` parts; empty for a single record."""
    whole, low, high = opened(split)
    if high is not None:
        return [cut(whole, a, b) for a, b in ranges(low, high)] if high - low > 1 else []
    edges = [low, *(low + FIRST_PART * PARTS**i for i in range(PARTS - 1))]
    return [*(cut(whole, a, b) for a, b in pairwise(edges)), cut(whole, edges[-1], None)]
