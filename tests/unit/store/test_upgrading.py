"""The state that `upgrade` derives equals the rows of the state before, each upgraded, whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused, UserCodeFailed
from ferry.contract.limits import WATERMARK_NONE
from ferry.kernels import columns
from ferry.kernels.changes import CHANGES, EMIT
from ferry.kernels.places import parsed
from ferry.kernels.schemas import from_text
from ferry.process.tables import StateTable
from ferry.store.process import ProcessState
from ferry.store.upgrading import Upgrade, _shown_rows
from tests.unit.store.processes import COLUMNS, Everything
from tests.unit.store.test_process import (
    EVERY,
    INT_KEY,
    TEXT_KEY,
    close,
    descriptor_of,
    epochs,
    fragments,
    opened,
    table_of,
)

COUNT = ferry.StateTable(pa.schema([("text", pa.string()), ("n", pa.float64())]))
WORDS = ferry.StateTable(pa.schema([("n", pa.int64()), ("words", pa.string())]), pa.string())


@dataclass
class Better(Everything):
    """Other columns of `count`, two tables in place of `texts`, `times` as before, and a table that begins empty."""

    how: str = ""
    tables = {
        "a_new": COUNT, "copies": WORDS, "count": COUNT, "times": ferry.StateTable(COLUMNS, pa.int64()), "words": WORDS,
    }  # fmt: skip

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        n = rows["n"].cast(pa.float64())
        match self.how, table:
            case "raises", _ if rows.num_rows:
                raise KeyError("no such n")
            case "other key", "count":
                return {"count": {"k": pa.array(np.arange(rows.num_rows)), "text": rows["text"], "n": n}}
            case "fewer", "count":
                return {"count": {"text": rows["text"][1:], "n": n[1:]}}
            case "not always", "count":
                return {"count": {"text": rows["text"], "n": n}} if rows.num_rows else {}
            case "columns", "count":
                return {"count": {"text": rows["text"]}}
            case "no dict", _:
                return rows
            case "unchanged", "count":
                return {"times": rows}
            case "entries", "count":
                return {"words": rows}
            case _, "count":
                return {"count": pa.record_batch({"k": rows["k"], "text": rows["text"], "n": n})}
        made = {"entry": rows["entry"], "words": rows["text"], "n": rows["n"]}
        return {"words": made, "copies": pa.table(made)}


def shown(state: ProcessState) -> Counter[Any]:
    """All rows: table, key, entry and values; timers as they are stored."""
    out: Counter[Any] = Counter()
    for piece in state.snapshot(EVERY):
        piece = piece.filter(pa.array(piece.column("change").to_numpy() != EMIT))
        _, numbers, _ = parsed(*columns.binary(piece.column("place")))
        for number, row in zip(numbers.tolist(), range(piece.num_rows), strict=True):
            if number >= 254:
                out[number, piece.column("place")[row].as_py()] += 1
                continue
            name, text, entry = state.descriptor.shape.tables[number]
            kinds = {None: None, "string": pa.string(), "int64": pa.int64()}
            rows = _shown_rows(state.descriptor, StateTable(from_text(text), kinds[entry]), piece.slice(row, 1)).rows
            out[name, tuple(sorted(rows.to_pylist()[0].items(), key=str))] += 1
    return out


def upgraded(before: Counter[Any]) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for (name, row), times in before.items():
        values = dict(row) if name not in (254, 255) else {}
        key = {column: value for column, value in values.items() if column in ("k", "s", "entry")}
        if name == "count":
            out["count", pairs({**key, "text": values["text"], "n": float(values["n"])})] += times
        elif name == "texts":
            for target in ("words", "copies"):
                out[target, pairs({**key, "words": values["text"], "n": values["n"]})] += times
        else:
            out[name, row] += times
    return out


def pairs(values: dict[str, Any]) -> Any:
    return tuple(sorted(values.items(), key=str))


@given(epochs, st.sampled_from([INT_KEY, TEXT_KEY]), st.integers(0, 4), st.lists(st.integers(0, 4), max_size=12))
@example([([(3, 50, 1, "x" * 250), (1, 50, 2, "a")], 0)], TEXT_KEY, 0, [])
@settings(max_examples=30, deadline=None)
def test_all_rows_are_upgraded_and_removed_rows_removed(
    tmp_path_factory: pytest.TempPathFactory, given_: Any, key: Any, begins: int, scanned: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("upgrading")
    before, after = descriptor_of(key), descriptor_of(key, Better())
    state, derived, derive = opened(before, folder / "0"), opened(after, folder / "1"), Upgrade(before, after)
    state.whole(EVERY)
    derived.drop(EVERY)
    scan, low, seq = None, WATERMARK_NONE, 0
    for epoch, (rows, step) in enumerate([*given_, ([], 0)]):
        if epoch == begins:
            scan = state.snapshot(EVERY, 200)
        for _ in range(scanned.count(epoch)):
            if scan is not None and (piece := next(scan, None)) is not None:
                derived.apply_absent(derive(piece))
        high = max(low, 0) + step
        merged = state.combine(fragments(before, table_of(rows, seq)))
        seq += len(rows)
        delta, _ = state.delta([merged], EpochTimes(low, high, epoch, epoch * 12))
        state.apply(delta, epoch, "x")
        if scan is not None:
            derived.apply(derive(delta), epoch, "x")
        state.release(epoch, low := high)
    for piece in scan if scan is not None else state.snapshot(EVERY, 200):
        derived.apply_absent(derive(piece))
    assert shown(derived) == upgraded(shown(state))
    close([state, derived])


def delta_of(before: OperatorDescriptor, folder: Path) -> pa.RecordBatch:
    state = opened(before, folder)
    merged = state.combine(fragments(before, table_of([(1, 5, 2, "a"), (2, 5, 2, "b")])))
    delta, _ = state.delta([merged], EpochTimes(0, 0, 0, 0))
    close([state])
    return delta


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "user code: KeyError: 'no such n' (test_upgrading.py:"),
        ("other key", "rows of 'count': 'k' of row 0 was "),
        ("fewer", "rows of 'count': 1 for 2 rows; return one for each"),
        ("not always", "upgrade('count') returns rows of count, but of no table when there are no rows"),
        ("columns", "rows of 'count': columns are text; they have to be text, n"),
        ("no dict", "return a dict of rows by name of a table"),
        ("unchanged", "rows of 'times': no such table has changed; there are a_new, copies, count, words"),
        ("entries", "rows of 'words' have string, and had no entry: a row keeps its entry"),
    ],
)
def test_what_upgrade_must_not_return_is_a_failure_of_the_users_code(tmp_path: Path, how: str, words: str) -> None:
    before, after = descriptor_of(), descriptor_of(process=Better(how=how))
    delta = delta_of(before, tmp_path)
    with pytest.raises(UserCodeFailed) as failed:
        Upgrade(before, after)(delta)
    assert words in str(failed.value), str(failed.value)
    assert "test_upgrading.py:" in str(failed.value) and "upgrade() of Better, operator 'p'" in str(failed.value)


def test_a_table_gets_rows_of_a_single_table() -> None:
    before, after = descriptor_of(process=Pair()), descriptor_of(process=United())
    with pytest.raises(SpecRefused, match="gives table 'all' rows of left and right; let it get"):
        Upgrade(before, after).check()


@dataclass
class Pair(Everything):
    tables = {"left": COUNT, "right": COUNT}


@dataclass
class United(Everything):
    tables = {"all": COUNT}

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        return {"all": rows}


def test_no_rows_and_no_tables(tmp_path: Path) -> None:
    before = descriptor_of()
    assert Upgrade(before, descriptor_of(process=Better()))(columns.empty(CHANGES)).num_rows == 0
    dropped = Upgrade(before, descriptor_of(process=Nothing()))(delta_of(before, tmp_path))
    _, numbers, _ = parsed(*columns.binary(dropped.column("place")))
    assert {*numbers.tolist()} <= {254, 255} and dropped.num_rows


@dataclass
class Nothing(Everything):
    tables: Any = field(default_factory=dict, init=False)

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        return {}


def test_a_state_that_was_given_up_is_never_used_until_it_is_derived_again(tmp_path: Path) -> None:
    descriptor = replace(descriptor_of(), name="p")
    for why in ("user code: KeyError", ""):
        state = opened(descriptor, tmp_path)
        state.give_up(why)
        close([state])
        again = opened(descriptor, tmp_path)
        if why:
            with pytest.raises(UserCodeFailed, match=why):
                again.delta([], EpochTimes(0, 0))
        else:
            assert again.delta([], EpochTimes(0, 0))[1] == 0
        close([again])
