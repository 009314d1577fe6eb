"""Whether each record was counted once, by the program of its epoch. Raises RunFailed, which names the first mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import ferry
from bench.parts.reprogram import programs
from bench.parts.reprogram.case import NBQ5, NBQ8, Act, share
from bench.shared import bigstate
from bench.shared.ferry_job import Record, RunFailed

PIECE = 1 << 20
HEAD = 16
"""Characters that tell one key from all others."""

BACKLOG_SECONDS = 1.0
"""Records that were created so long before an act may be behind it."""


@dataclass(frozen=True, slots=True)
class Change:
    """From this epoch on there is another program."""

    since: int
    program: str


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive arrivals that one program had."""

    program: str
    start: int
    stop: int


def spans(records: Sequence[Record], first: str, changes: Sequence[Change]) -> list[Span]:
    """Arrivals by program; epochs follow each other, and each has read so many."""
    made, at = list[Span](), 0
    for epoch, rows in sorted({r["epoch"]: r["rows"] for r in records if r["kind"] == "epoch"}.items()):
        program = next((one.program for one in reversed(changes) if one.since <= epoch), first)
        if made and made[-1].program == program:
            made[-1] = Span(program, made[-1].start, at + rows)
        else:
            made.append(Span(program, at, at + rows))
        at += rows
    return made


def numbers(folders: Sequence[Path], wanted: Sequence[Span]) -> str:
    """SMQ: the rows are those of the numbers that passed, and each instance has counted from 1 on without a gap."""
    files = [str(file) for folder in folders for file in folder.glob("epoch=*/*.parquet")]
    table = ds.dataset(files).to_table(["seq", "instance", "num"])
    seq, instance, num = (np.asarray(table.column(name)) for name in ("seq", "instance", "num"))
    passed = np.concatenate([_passed(span) for span in wanted])
    _same("numbers in the output", np.sort(seq), passed)
    order = np.lexsort((num, instance))
    each = np.unique(instance, return_counts=True)[1]
    _same("counters of the instances", num[order], np.concatenate([np.arange(1, count + 1) for count in each]))
    return f"{len(seq):,} rows, each once"


def _passed(span: Span) -> Any:
    every = share(span.program)
    return np.arange(-(-span.start // every) * every, span.stop, every)


def counts(store: Path, job: str, keys: int, wanted: Sequence[Span], *, killed: bool = False) -> str:
    """NBQ5: the state has each record once; a new column has those since it is there.

    A killed driver may have told nothing of its last epoch. Then the state itself says how many records there are: they
    must be the first ones of the stream, and the records of the new column the last of them.
    """
    state = ferry.read_state(str(store), programs.OPERATOR[NBQ5], job=job)
    key = np.asarray(pc.index_in(_heads(state.column("key")), _names(keys)).fill_null(keys))
    num = _by_key(key, state.column("num"), keys)
    if killed:
        wanted = told_by(state, wanted)
    _same("counts", num, _counted(keys, wanted))
    told = f"{state.num_rows:,} keys, {int(num.sum()):,} records"
    if "total" not in state.column_names:
        return f"{told}, each once"
    recent = _counted(keys, wanted[-1:])
    _same("sums of the new column", _by_key(key, state.column("total"), keys), recent * bigstate.BASE_MS)
    return f"{told}, {int(recent.sum()):,} in the new column, each once"


def pairs(store: Path, job: str, keys: int, wanted: Sequence[Span], *, killed: bool = False) -> str:
    """NBQ8: the state has each person and each auction once; a new column has the auctions since it is there.

    `killed`: as of `counts`.
    """
    state = ferry.read_state(str(store), programs.OPERATOR[NBQ8], job=job)
    people, auctions = (
        state.filter(pc.equal(state.column("side").cast(pa.string()), side)) for side in ("left", "right")
    )
    numbers = np.asarray(people.column("key"))
    _same("people", np.sort(numbers), np.arange(keys))
    _same("names", np.asarray(_heads(people.column("left_name"))), np.asarray(_heads(bigstate.texts(numbers))))
    stop = keys + auctions.num_rows if killed else wanted[-1].stop
    _same("auctions", np.sort(np.asarray(auctions.column("right_auction"))), np.arange(keys, stop))
    told = f"{people.num_rows:,} people, {auctions.num_rows:,} auctions"
    if "right_created" not in state.column_names:
        return f"{told}, each once"
    recent = auctions.filter(pc.is_valid(auctions.column("right_created"))).column("right_auction")
    first = stop - len(recent) if killed else wanted[-1].start
    _same("auctions with the new column", np.sort(np.asarray(recent)), np.arange(first, stop))
    return f"{told}, {len(recent):,} with the new column, each once"


def told_by(state: pa.Table, wanted: Sequence[Span]) -> list[Span]:
    """The arrivals that a state says it has."""
    count = int(pc.sum(state.column("num")).as_py())
    recent = int(pc.sum(state.column("total")).as_py()) // bigstate.BASE_MS if "total" in state.column_names else 0
    return [Span(wanted[0].program, 0, count - recent), Span(wanted[-1].program, count - recent, count)]


def _names(keys: int) -> pa.Array:
    """The first characters of each key, by its number."""
    pieces = [np.arange(n, min(n + PIECE, keys)) for n in range(0, keys, PIECE)]
    return pa.concat_arrays([_heads(bigstate.texts(piece)) for piece in pieces])


def _heads(texts: Any) -> Any:
    return pc.utf8_slice_codeunits(texts, 0, HEAD)


def _by_key(key: Any, values: Any, keys: int) -> Any:
    """Sums of the values by number of the key; the last sum is for unknown keys."""
    made = np.zeros(keys + 1, np.int64)
    np.add.at(made, key, np.asarray(values.fill_null(0)))
    return made


def _counted(keys: int, of: Sequence[Span]) -> Any:
    """How often each key has come."""
    made, source = np.zeros(keys + 1, np.int64), bigstate.Keys(keys)
    for span in of:
        for start in range(span.start, span.stop, PIECE):
            np.add.at(made, source.numbers(start, min(start + PIECE, span.stop)).astype(np.int64), 1)
    return made


def created(seen: Mapping[int, int], pair: tuple[str, str], plan: Plan, acts: Sequence[Act]) -> str:
    """Of a system that tells when a record was created, not which one it was: each millisecond has all records that pass the
    filter of its program; while an act is under way, as many as one of both programs passes, or between.
    """
    each = [plan.passed(share(program)) for program in pair]
    found = np.array([seen.get(plan.clock + ms, 0) for ms in range(len(each[0]))])
    low, high = each[0].copy(), each[0].copy()
    for number, act in enumerate(acts):
        begin, end = (max(0, int(t * 1000) - plan.clock) for t in (act.asked - BACKLOG_SECONDS, act.ended))
        new = each[1 - number % 2]
        low[begin:end], high[begin:end] = np.minimum(*each)[begin:end], np.maximum(*each)[begin:end]
        low[end:], high[end:] = new[end:], new[end:]
    wrong = np.flatnonzero((found < low) | (found > high))
    if len(wrong):
        at = wrong[0]
        raise RunFailed(
            f"{len(wrong):,} of {len(found):,} milliseconds have other records than they should: after "
            f"{(plan.clock + at) / 1000 - acts[0].asked:.3f} s since the first act there are {found[at]}, "
            f"not {low[at]} to {high[at]}"
        )
    return f"{int(found.sum()):,} records, of each millisecond as many as it should have"


@dataclass(frozen=True, slots=True)
class Plan:
    """Arrivals by the clock, without those that are loaded first."""

    rate: float
    clock: int
    """milliseconds since 1970"""
    end: float
    """seconds since 1970"""

    def passed(self, every: int) -> Any:
        """How many arrivals of each millisecond have a number that can be divided by this."""
        length = int(self.end * 1000) - self.clock
        n = np.arange(int(length * self.rate / 1000) + 1)
        due = (n / self.rate * 1e6).astype(np.int64) // 1000
        return np.bincount(due[(n % every == 0) & (due < length)], minlength=length)


def _same(what: str, seen: Any, expected: Any) -> None:
    if len(seen) != len(expected) or not np.array_equal(seen, expected):
        shorter = min(len(seen), len(expected))
        wrong = np.flatnonzero(seen[:shorter] != expected[:shorter])
        where = f"the first wrong one is at {wrong[0]:,}" if len(wrong) else "the others are missing, or too many"
        sums = f"{int(seen.sum()):,} in sum in place of {int(expected.sum()):,}"
        raise RunFailed(f"{what}: {len(seen):,} in place of {len(expected):,}, {sums}; {where}")
