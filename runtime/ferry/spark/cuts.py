"""Parts of splits: the driver cuts a split while it looks for a record that kills tasks.

    {"ferry.cut": [low, high, [numbers]], "split": ...}    records low to high of the split, without those of these numbers

Records of a split are numbered from 0 in the order in which its source reads them, which is always the same. A number below
0 leaves out the end of a split, from record -1 - number on: nobody can read it. A cut goes wherever a split does: to tasks,
through Spark's SQL, to whoever reads late records. Splits of Ferry's own sources are ranges of files or partitions, so
records of them are kept as ranges, too: another plan of the same epoch leaves out the same.
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
"""Records of the first part of a split of which nobody knows the length; each further one is `PARTS` times as large."""


def by_file(source: Splits | None, split: dict[str, Any]) -> list[dict[str, Any]]:
    """The same records in splits of a file each, where it is files that they are read from."""
    if not isinstance(source, DirectorySplits) or CUT in split:
        return [split]
    return [{"pieces": [piece]} for piece in split["pieces"]]


def place(source: Splits | None, split: dict[str, Any]) -> str:
    """File or offsets of a split, as the begin of a message; empty: the source does not say them."""
    if not is_ferrys(source) or not isinstance(source, RangeSplits):
        return ""
    return f"{source.place(split['split'] if CUT in split else split)}: "


def cut(split: str, low: int, high: int | None, aside: Sequence[int] = ()) -> str:
    """A part of a split, both as JSON."""
    return json.dumps({CUT: [low, high, list(aside)], "split": json.loads(split)})


def opened(split: str) -> tuple[str, int, int | None]:
    """The split that this is a part of, and the numbers of its records."""
    doc = json.loads(split)
    if CUT not in doc:
        return split, 0, None
    low, high, _ = doc[CUT]
    return json.dumps(doc["split"]), low, high


def pieces(split: str) -> list[str]:
    """The pieces of files or partitions of a split of Ferry's own sources, each as a split."""
    doc = json.loads(split)
    return [] if CUT in doc else [json.dumps({"pieces": [one]}) for one in doc["pieces"]]


def left_out(split: str, numbers: Sequence[int]) -> str:
    """A split without records of these numbers."""
    return cut(split, 0, min((-1 - one for one in numbers if one < 0), default=None), numbers)


def aside_alone(split: str, number: int) -> str:
    """What sets one record of a split aside, and reads no other."""
    return cut(split, 0, 0, [number]) if number < 0 else cut(split, number, number + 1, [number])


def without(split: str, numbers: Mapping[str, Sequence[int]], own: bool) -> list[str]:
    """A split, but for records of these numbers of it, or of its ranges, if it is of one of Ferry's `own` sources."""
    if split in numbers:
        return [left_out(split, numbers[split])]
    doc = json.loads(split)
    if not own or CUT in doc:
        return [split]
    units = {one: json.loads(one)["pieces"][0] for one in numbers}
    rest: list[list[Any]] = []
    made: list[str] = []
    for of, low, high in doc["pieces"]:
        for unit, (mine, begin, end) in sorted(units.items(), key=lambda one: one[1][1]):
            if mine == of and low <= begin and end <= high:
                rest += [[of, low, begin]] if low < begin else []
                made += [json.dumps({"pieces": rest})] if rest else []
                made.append(left_out(unit, numbers[unit]))
                low, rest = end, []
        rest += [[of, low, high]] if low < high else []
    if not made:
        return [split]
    return [*made, json.dumps({"pieces": rest})] if rest else made


def parts(split: str) -> list[str]:
    """The same records in at most `PARTS` parts; none when it is a single record."""
    whole, low, high = opened(split)
    if high is not None:
        return [cut(whole, a, b) for a, b in ranges(low, high)] if high - low > 1 else []
    edges = [low, *(low + FIRST_PART * PARTS**i for i in range(PARTS - 1))]
    return [*(cut(whole, a, b) for a, b in pairwise(edges)), cut(whole, edges[-1], None)]
