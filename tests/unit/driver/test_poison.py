"""The search for records that kill tasks: what is left counts once, and no record is blamed for another's death."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.connectors.files.parquet_files import ParquetSplits
from ferry.connectors.splits import ranges
from ferry.contract.errors import Final
from ferry.contract.ingest_runs import Shares
from ferry.contract.notes import EpochNotes, Receipt
from ferry.contract.timeline import TIMELINE
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import poison as searching
from ferry.driver.poison import POISON, Poison
from ferry.spark import cuts
from ferry.spark.shares import Batch
from ferry.spark.tasks import reading


class Numbers:
    """A source of the numbers of a split, in batches; some kill whoever is given them, or whoever reads so far."""

    def __init__(self, kills: set[int], reading: int | None = None, batch: int = 100) -> None:
        self.kills, self.reading, self.batch = kills, reading, batch
        self.attempts: list[Shares] = []
        self.deaths = 0
        self.seen: list[int] = []
        self.aside: list[int] = []
        self.unread = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def read(self, split: Any, columns: Any) -> Any:
        for low in range(split.get("begin", 0), split["end"], self.batch):
            high = min(low + self.batch, split["end"])
            if self.reading is not None and low <= self.reading < high:
                raise InterruptedError
            yield pa.record_batch({"n": pa.array(range(low, high), pa.int64())})

    def attempt(self, share: Shares) -> list[Receipt] | None:
        self.attempts.append(share)
        seen: list[int] = []
        aside: list[int] = []
        unread = 0
        for name, split in share:
            if name == "":
                continue
            try:
                for one in reading.read(name, self, json.loads(split), None):  # type: ignore[arg-type]
                    if isinstance(one, reading.Aside):
                        aside += one.records["n"].to_pylist() if one.records is not None else []
                        unread += one.records is None
                    else:
                        seen += one["n"].to_pylist()
            except Exception:
                self.deaths += 1
                return None
        if self.kills & set(seen):
            self.deaths += 1
            return None
        self.seen += seen
        self.aside += aside
        self.unread += unread
        return [Receipt(task=len(self.attempts), rows=len(seen), malformed=len(aside))]


def poison(numbers: Numbers, folder: Path, set_aside: bool = True, losses: Any = lambda: 0) -> Poison:
    operator: Any = SimpleNamespace(name="counts")
    made = Poison({"s": numbers}, DriverMetrics("job", str(folder)), set_aside, losses, [operator])
    made.begin(3, ())
    return made


def split(end: int, begin: int = 0) -> str:
    return json.dumps({"begin": begin, "end": end})


class Ranges(Numbers):
    """A source of ranges of groups, such as row groups of a file; some records of a group cannot be read."""

    def __init__(self, kills: set[int], unreadable: set[int], group: int, batch: int) -> None:
        super().__init__(kills, batch=batch)
        self.unreadable, self.group = unreadable, group

    def divided(self, split: Any) -> list[Any] | None:
        ((of, low, high),) = split["pieces"]
        if high - low > 1:
            return [{"pieces": [[of, a, b]]} for a, b in ranges(low, high)]
        return [] if self.group == 1 else None

    def place(self, split: Any) -> str:
        return str(split["pieces"])

    def read(self, split: Any, columns: Any) -> Any:
        for _, low, high in split["pieces"]:
            for begin in (group * self.group for group in range(low, high)):
                for batch in super().read({"begin": begin, "end": begin + self.group}, columns):
                    if self.unreadable & set(batch["n"].to_pylist()):
                        raise InterruptedError
                    yield batch

    def plan(self, groups: int, tasks: int) -> list[Shares]:
        edges = [groups * i // tasks for i in range(tasks + 1)]
        return [[("s", json.dumps({"pieces": [["f", a, b]]}))] for a, b in pairwise(edges) if a < b]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 12), st.integers(1, 5)).flatmap(
        lambda of: st.tuples(
            st.just(of),
            st.sets(st.integers(0, of[0] * of[1] - 1), max_size=3),
            st.sets(st.integers(0, of[0] * of[1] - 1), max_size=2),
            st.integers(1, 7),
            st.integers(1, 7),
        )
    )
)
def test_another_plan_of_an_epoch_leaves_out_the_same(tmp_path_factory: Any, case: Any) -> None:
    """Also where the source itself cannot read a record: the rest of its smallest range is left out."""
    (groups, group, batch), kills, unreadable, tasks, later = case
    files = Ranges(kills, unreadable, group, batch)
    search = poison(files, tmp_path_factory.mktemp("run"))
    search.search(files.plan(groups, tasks), files.attempt, "a task")
    begins = {}
    for one in unreadable:
        at = one - one % group
        begins[at] = min(begins.get(at, group), (one - at) // batch * batch)
    unread = {n for at, begin in begins.items() for n in range(at + begin, at + group)}
    assert sorted(files.seen) == sorted(set(range(groups * group)) - kills - unread)
    assert sorted(files.aside) == sorted(kills - unread)
    again = Ranges(kills, unreadable, group, batch)
    batches = Batch(None, files.plan(groups, later)).without(search.aside, {"s": files})  # type: ignore[arg-type]
    assert all(again.attempt(share) is not None for share in batches.shares())
    assert sorted(again.seen) == sorted(files.seen) and sorted(again.aside) == sorted(files.aside)
    assert again.unread == files.unread == len(begins)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3000).flatmap(
        lambda end: st.tuples(st.just(end), st.sets(st.integers(0, end - 1), max_size=4), st.integers(1, 700))
    )
)
def test_every_record_counts_once_but_for_those_that_kill(
    tmp_path_factory: Any, case: tuple[int, set[int], int]
) -> None:
    end, kills, batch = case
    numbers = Numbers(kills, batch=batch)
    search = poison(numbers, tmp_path_factory.mktemp("run"))
    receipts = search.search([[("s", split(end)), ("", "tick")]], numbers.attempt, "a task")
    assert sorted(numbers.seen) == sorted(set(range(end)) - kills) and sorted(numbers.aside) == sorted(kills)
    assert sum(r.rows for r in receipts) == end - len(kills)
    assert sorted(number for _, _, number in search.aside) == sorted(kills)
    # Whoever reads the epoch again, as another driver does, leaves out the same, and nothing dies of it.
    notes = EpochNotes.load(EpochNotes(aside=search.aside).dump())
    again = Numbers(kills, batch=batch)
    for share in Batch(None, [[("s", split(end))]]).without(notes.aside, {"s": numbers}).shares():  # type: ignore[arg-type]
        assert again.attempt(share) is not None
    assert sorted(again.seen) == sorted(numbers.seen) and sorted(again.aside) == sorted(kills)


def test_many_records_cost_few_processes(tmp_path: Path) -> None:
    numbers = Numbers({177_777}, batch=131_072)
    poison(numbers, tmp_path).search([[("s", split(200_000))]], numbers.attempt, "a task")
    assert numbers.aside == [177_777] and numbers.deaths < 14 and len(numbers.attempts) < 80


def test_the_job_stops_with_the_place_unless_records_may_be_set_aside(tmp_path: Path) -> None:
    numbers = Numbers({500, 600})
    search = poison(numbers, tmp_path, set_aside=False)
    with pytest.raises(Final, match=r"a task of 'w' dies of record 500 .*source 's', split .*1000}, 3 times alone"):
        search.search([[("s", split(1000))]], numbers.attempt, "a task of 'w'")
    (problem,) = search._metrics.problems.current
    assert problem.reason == POISON and "record 500 (counted from 0) of source 's'" in problem.text
    search.over()
    assert not search._metrics.problems.current


def test_a_record_that_its_source_cannot_read_is_not_set_aside(tmp_path: Path) -> None:
    numbers = Numbers(set(), reading=450)
    with pytest.raises(Final, match="while it is read from its source"):
        poison(numbers, tmp_path).search([[("s", split(1000))]], numbers.attempt, "a task")


def test_a_share_that_is_too_much_at_once_is_read_in_parts(tmp_path: Path) -> None:
    """As one that takes more memory than there is."""
    numbers = Numbers(set())
    attempt, large = numbers.attempt, 0

    def tight(share: Shares) -> list[Receipt] | None:
        nonlocal large
        low, high = json.loads(share[0][1])[cuts.CUT][:2]
        if min(high or 1000, 1000) - low > 300:
            large += 1
            return None
        return attempt(share)

    receipts = poison(numbers, tmp_path, set_aside=False).search([[("s", split(1000))]], tight, "a task")
    assert sorted(numbers.seen) == list(range(1000)) and sum(r.rows for r in receipts) == 1000 and large


def test_no_record_is_blamed_while_workers_are_lost(tmp_path: Path) -> None:
    """A share that is assigned to a failing worker dies with the worker; here seven times in a row."""
    numbers, losses = Numbers(set()), [0]
    attempt = numbers.attempt

    def unlucky(share: Shares) -> list[Receipt] | None:
        if losses[0] < 7:
            losses[0] += 1
            return None
        return attempt(share)

    search = poison(numbers, tmp_path, set_aside=False, losses=lambda: losses[0])
    search.search([[("s", cuts.cut(split(100), 7, 8))]], unlucky, "a task")
    assert numbers.seen == [7] and not search.aside


def test_a_record_that_takes_its_worker_along_is_blamed_in_the_end(tmp_path: Path) -> None:
    numbers, losses = Numbers({7}), [0]

    def attempt(share: Shares) -> list[Receipt] | None:
        made = numbers.attempt(share)
        losses[0] += made is None
        return made

    search = poison(numbers, tmp_path, losses=lambda: losses[0])
    search.search([[("s", split(10))]], attempt, "a task")
    assert numbers.aside == [7]


@pytest.mark.parametrize("begin", range(12))
@pytest.mark.parametrize("long", [1, 3, 9, 40])
def test_no_record_is_blamed_while_faults_end_every_task(begin: int, long: int, tmp_path: Path) -> None:
    """As `kill -9` does, again and again, of which nobody hears."""
    numbers, tries = Numbers({6}), 0

    def attempt(share: Shares) -> list[Receipt] | None:
        nonlocal tries
        tries += 1
        if begin < tries <= begin + long:
            return [Receipt(error="no Spark task has requested its share")] if tries % 10 == 9 else None
        return numbers.attempt(share)

    search = poison(numbers, tmp_path)
    for _ in range(9):
        shares = Batch(None, [[("s", split(10))]]).without(search.aside, {"s": numbers}).shares()  # type: ignore[arg-type]
        numbers.seen, numbers.aside = [], []
        try:
            receipts = search.search(shares, attempt, "a task")
        except Final as final:
            assert "before it reads a record" in str(final)
            return
        if not any(receipt.error for receipt in receipts):
            break
    assert [number for *_, number in search.aside] == [6]
    assert numbers.seen == [n for n in range(10) if n != 6]


def test_runs_that_lose_a_worker_each_are_said(tmp_path: Path) -> None:
    """As where a record takes so much memory that the whole container ends."""
    losses = 0
    search = poison(Numbers(set()), tmp_path, losses=lambda: losses)
    for lost in (1, 1, 0, 1, 1):
        search.begin(3, ())
        losses += lost
        search.failed("a task of operator 'w'", "price (job.py:3)")
        assert not search._metrics.problems.current
    search.begin(3, ())
    losses += 1
    search.failed("a task of operator 'w'", "price (job.py:3)")
    (problem,) = search._metrics.problems.current
    assert "read 3 times through a task of operator 'w'" in problem.text and "price (job.py:3)" in problem.text
    search.over()
    assert not search._metrics.problems.current


def test_an_error_ends_the_search_and_what_was_found_is_kept_for_the_next_run(tmp_path: Path) -> None:
    numbers = Numbers({5, 900})
    attempt = numbers.attempt

    def breaks(share: Shares) -> list[Receipt] | None:
        return [Receipt(error="an instance was lost")] if 900 in range(*window(share)) else attempt(share)

    search = poison(numbers, tmp_path)
    (receipt,) = search.search([[("s", split(1000))]], breaks, "a task")
    assert receipt.error == "an instance was lost" and [number for *_, number in search.aside] == [5]
    search.begin(3, ())
    assert len(search.aside) == 1
    search.begin(4, ())
    assert search.aside == ()


def window(share: Shares) -> tuple[int, int]:
    low, high, _ = json.loads(share[0][1])[cuts.CUT]
    return low, 1000 if high is None else high


def test_a_task_that_dies_of_nothing_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(Final, match=r"a task dies before it reads a record; look at price \(job.py:3\)"):
        poison(Numbers(set()), tmp_path).search([[("", "tick")]], lambda share: None, "a task", "price (job.py:3)")


def test_a_row_of_an_operator_is_named_and_never_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.record_batch({"user": [f"u{n}" for n in range(300)], "n": range(300)})
    monkeypatch.setattr(reading.flight, "read_rows", lambda split: [rows.slice(0, 200), rows.slice(200)])

    def attempt(share: Shares) -> list[Receipt] | None:
        found = [one for name, split in share if name for one in reading.read(name, None, json.loads(split), None)]
        return None if any("u217" in one["user"].to_pylist() for one in found) else [Receipt()]

    search = poison(Numbers(set()), tmp_path)
    with pytest.raises(
        Final, match=r'dies of row {"user":"u217","n":217} of operator \'counts\', 3 .* mend f \(j.py:3\)'
    ):
        search.search([[("@0", json.dumps({"ticket": "secret"}))]], attempt, "a task", "f (j.py:3)")
    assert "secret" not in str(search._metrics.problems.current)


def test_records_that_kill_are_bounded(tmp_path: Path) -> None:
    numbers = Numbers(set(range(3000)))
    with pytest.raises(Final, match="100 records of this epoch were set aside already"):
        poison(numbers, tmp_path).search([[("s", split(3000))]], numbers.attempt, "a task")


class Files(ParquetSplits):
    """Two files of ten numbers each in one split, of which some kill."""

    def __init__(self, kills: set[int]) -> None:
        super().__init__("nowhere", pa.schema([("n", pa.int64())]))
        self.inner = Numbers(kills, batch=4)

    def _check_same(self, file: Any) -> None:
        """They are nowhere."""

    def read(self, split: Any, columns: Any = None) -> Any:
        for (_, name, _), low, high in split["pieces"]:
            yield from self.inner.read({"begin": 10 * int(name) + low, "end": 10 * int(name) + high}, columns)


def test_the_file_of_a_record_is_named_and_left_out_again_by_whoever_reads_it(tmp_path: Path) -> None:
    files = Files({3, 17})
    both = json.dumps({"pieces": [[[1, "0", 1], 0, 10], [[1, "1", 1], 0, 10], [[1, "2", 1], 0, 10]]})

    def attempt(share: Shares) -> list[Receipt] | None:
        found = [one for name, split in share for one in reading.read(name, files, json.loads(split), None)]
        numbers = [n for one in found if isinstance(one, pa.RecordBatch) for n in one["n"].to_pylist()]
        return None if files.inner.kills & set(numbers) else [Receipt(rows=len(numbers))]

    search = Poison({"s": files}, DriverMetrics("job", str(tmp_path)), False, lambda: 0, [])
    with pytest.raises(Final, match=r"record 0 \(counted from 0\) of source 's', 0, row group 3, 3 times alone"):
        search.search([[("s", both)]], attempt, "a task")
    search = Poison({"s": files}, DriverMetrics("job", str(tmp_path)), True, lambda: 0, [])
    assert sum(r.rows for r in search.search([[("s", both)]], attempt, "a task")) == 28
    assert [(split, number) for _, split, number in search.aside] == [
        ('{"pieces": [[[1, "0", 1], 3, 4]]}', 0),
        ('{"pieces": [[[1, "1", 1], 7, 8]]}', 0),
    ]
    (share,) = Batch(None, [[("s", both), ("t", both)]]).without(search.aside, {"s": files}).shares()  # type: ignore[arg-type]
    assert share[-1] == ("t", both)
    (receipt,) = attempt(share[:-1]) or ()
    assert receipt.rows == 28, "nothing dies of it"


def test_the_first_crash_is_reported_with_the_signal_before_any_search(tmp_path: Path) -> None:
    numbers = Numbers({500})
    words = iter([None, 'Segmentation fault (job.py:12 in touch: "lib.touch()")', ""])
    search = Poison({"s": numbers}, DriverMetrics("job", str(tmp_path)), False, lambda: 0, (), lambda: next(words, ""))
    search.begin(3, ())
    search.died()
    (problem,) = search._metrics.problems.current
    assert problem.reason == POISON and problem.text.startswith("a task died: Segmentation fault (job.py:12 in touch")
    with pytest.raises(Final, match=r"3 times alone: Segmentation fault \(job.py:12 .*\)\. Nothing is lost"):
        search.search([[("s", split(1000))]], numbers.attempt, "a task of 'w'")
    notes = [json.loads(line) for line in (tmp_path / TIMELINE).read_text().splitlines()]
    first, second = (one["text"] for one in notes if one["kind"] == "degraded")
    assert first.startswith("a task died: ") and "looking for the record that kills it in source 's'" in second
    search.begin(4, ())
    search.over()
    search.died()  # not of a signal
    assert not search._metrics.problems.current


def test_tasks_that_die_with_a_worker_are_not_searched_once() -> None:
    lost = [0]
    poison = Poison({}, DriverMetrics("j", ""), False, lambda: lost[0], [])
    poison.begin(1, ())
    timer = threading.Timer(0.3, lambda: lost.__setitem__(0, 1))
    timer.start()
    assert poison.excuses(), "the loss is known a moment after the deaths"
    poison.failed("operator 'a'", "")
    poison.begin(1, ())
    lost[0] += 1
    assert not poison.excuses(), "a record may kill workers"
    poison.over()
    poison.begin(2, ())
    lost[0] += 1
    assert poison.excuses()


def test_tasks_that_die_alone_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LOSS_SECONDS", 0.2)
    poison = Poison({}, DriverMetrics("j", ""), False, lambda: 7, [])
    poison.begin(1, ())
    assert not poison.excuses()
