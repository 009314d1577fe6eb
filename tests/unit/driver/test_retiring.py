"""Which operators a deploy retires, the plan that still has them, and when their last window has fired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Input, Operator, Output
from ferry.contract.catalogue import Catalogue, ProgramRecord, Retired
from ferry.contract.descriptors import GLOBAL, NEVER, Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.notes import EpochNotes, Receipt
from ferry.contract.programs import ProgramVersion
from ferry.contract.watermarks import FlowClock
from ferry.driver.event_time import noted
from ferry.driver.program_parts import signatures_of
from ferry.driver.retiring import BuiltProgram, Texts, ends, to_retire, with_retired
from ferry.driver.united import United
from ferry.spark.compile import CompiledPipeline
from tests.unit.sidecar.test_data import settings_of

ROWS, OTHER = pa.schema([("k", pa.int64())]), pa.schema([("k", pa.string())])
WINDOWED = OperatorDescriptor("", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
LASTING = replace(WINDOWED, window=GLOBAL)


def operators(*parts: tuple[OperatorDescriptor, str | int]) -> tuple[Operator, ...]:
    return tuple(
        Operator(replace(d, name=f"o{i}", index=i), (Input(origin, (), ROWS, "t", 0),))
        for i, (d, origin) in enumerate(parts)
    )


def text(
    folder: Path,
    number: int,
    ids: tuple[int, ...],
    of: tuple[Operator, ...],
    *outputs: tuple[int | str, str, pa.Schema],
) -> BuiltProgram:
    given = tuple(
        Output(Input(origin, (), schema, None, 0), ferry.parquet(str(folder / name)))
        for origin, name, schema in outputs
    )
    plan = CompiledPipeline({"a": ferry.json_files(str(folder), ROWS)}, of, given)
    signatures = signatures_of(plan)
    for output in given:
        output.sink.place(None)
    return BuiltProgram(ProgramRecord(number, ids, tuple(o.descriptor for o in of)), plan, signatures)


def test_operators_with_windows_are_retired_and_what_they_read() -> None:
    """A lasting aggregate fires nothing more, unless an operator with windows reads what it fires."""
    of = operators((WINDOWED, "a"), (LASTING, "a"), (LASTING, "a"), (WINDOWED, 2))
    now = ProgramRecord(3, (4, 5, 6, 7), (), retires=(Retired(7, 2),))
    assert to_retire(now, of, (5,)) == (Retired(4, 3), Retired(6, 3), Retired(7, 2))
    assert to_retire(now, of, (4, 5, 6, 7)) == () and to_retire(now, of, (4, 5, 7)) == ()


def test_a_retired_operator_reads_event_times_and_rows_of_retired_operators(tmp_path: Path) -> None:
    """And its rows reach the sink that an operator in its place has, too."""
    before = text(
        tmp_path, 1, (0, 1, 2), operators((WINDOWED, "a"), (WINDOWED, 0), (WINDOWED, 1)), (2, "x", ROWS), (0, "y", ROWS)
    )
    now = text(tmp_path, 2, (0, 3), operators((WINDOWED, "a"), (WINDOWED, "a")), (1, "x", ROWS))
    record = ProgramRecord(2, (0, 3, 1, 2), (), retires=(Retired(1, 1), Retired(2, 1)))
    plan, signatures = with_retired(settings_of(tmp_path), record, now, lambda number: before)
    first, second = plan.operators[2:]
    assert [(o.descriptor.name, o.descriptor.index) for o in (first, second)] == [("o1", 2), ("o2", 3)]
    assert [(s.origin, s.span) for s in (*first.inputs, *second.inputs)] == [(0, NEVER), (2, None)]
    assert [output.input.origin for output in plan.outputs] == [1, 3], "only retired operators keep their outputs"
    assert plan.sinks[0] is plan.sinks[1] and len(signatures.sinks) == 2
    united = United(plan.outputs)
    assert all(output in united for output in plan.outputs)
    united.add(plan.outputs[0], pa.table({"k": [1]}))
    united.add(plan.outputs[0], pa.table({"k": [2]}))
    united.add(plan.outputs[1], pa.table({"k": [3]}))
    ((sink, rows),) = united
    assert sink is plan.sinks[0] and [one.to_pydict()["k"] for one in rows] == [[2], [3]], (
        "a second try replaces the first"
    )
    assert with_retired(settings_of(tmp_path), now.record, now, lambda number: before)[0] is now.plan


def table(name: str) -> Any:
    """A sink of the user, whose function knows its place."""

    def write(epoch: int, generation: int, rows: pa.Table) -> None:
        print(name)

    return ferry.foreach_epoch(write)


@pytest.mark.parametrize(("other", "is_shared"), [("x", True), ("y", False)])
def test_a_sink_of_the_user_gets_the_rows_of_both_operators_at_once(
    tmp_path: Path, other: str, is_shared: bool
) -> None:
    """Another call with the same epoch would replace the rows of the first call. Another place is another sink."""

    def writing(number: int, ids: tuple[int, ...], sink: Any) -> BuiltProgram:
        made = text(tmp_path, number, ids, operators((WINDOWED, "a")))
        plan = replace(made.plan, outputs=(Output(Input(0, (), ROWS, None, 0), sink),))
        return replace(made, plan=plan, signatures=signatures_of(plan))

    before, now = writing(1, (0,), table("x")), writing(2, (1,), table(other))
    record = ProgramRecord(2, (1, 0), (), retires=(Retired(0, 1),))
    plan, _ = with_retired(settings_of(tmp_path), record, now, lambda number: before)
    assert plan.sinks[0] is now.plan.sinks[0]
    assert [output in United(plan.outputs) for output in plan.outputs] == [is_shared, is_shared]
    assert plan.sinks[1] is (now if is_shared else before).plan.sinks[0]


@pytest.mark.parametrize("output", [(0, "x", OTHER), ("a", "x", ROWS)])
def test_rows_of_another_kind_in_its_sink_are_refused(tmp_path: Path, output: Any) -> None:
    before = text(tmp_path, 1, (0,), operators((WINDOWED, "a")), (0, "x", ROWS))
    now = text(tmp_path, 2, (1,), operators((WINDOWED, "a")), output)
    record = ProgramRecord(2, (1, 0), (), retires=(Retired(0, 1),))
    with pytest.raises(
        SpecRefused, match=r"operator 'o0' is removed, and its open windows .* Remove the operators with a first"
    ):
        with_retired(settings_of(tmp_path), record, now, lambda number: before)


def test_the_last_window_ends_after_the_newest_record() -> None:
    """Of an operator that reads fired rows: after the last window of the operator before it."""
    of = operators((WINDOWED, "a"), (replace(WINDOWED, window=Window(20, 10)), 0), (WINDOWED, "a"))
    record = ProgramRecord(2, (5, 6, 7), (), retires=(Retired(5, 1), Retired(6, 1), Retired(7, 1)))
    notes = EpochNotes(maxima={5: {0: {"x": FlowClock(31), "y": FlowClock(None)}}})
    assert ends(record, SimpleNamespace(operators=of), notes) == {5: 40, 6: 60, 7: WATERMARK_NONE}  # type: ignore[arg-type]


def test_an_operator_whose_input_is_altered_keeps_its_event_times(tmp_path: Path) -> None:
    """In the epoch of the switch the operator before may fire nothing: the open windows of the retired one are known all the
    same."""
    of = operators((WINDOWED, "a"), (replace(WINDOWED, window=Window(100, 100)), 0))
    first, second = ProgramVersion(1, 0, (0, 1)), ProgramVersion(2, 5, (2, 1), ((2, 0),))
    notes = noted(EpochNotes(), of[0], (0, 1), (first,), [Receipt(1, maxima={0: {"": 131}})], [], 0)
    notes = noted(notes, of[1], (0, 1), (first,), [Receipt(2, maxima={0: {"": 129}})], [], 0)
    notes = noted(notes.next_epoch(0, ""), of[0], (2, 1), (first, second), [Receipt(3)], [], 0)
    notes = noted(notes, of[1], (2, 1), (first, second), [Receipt(4)], [], 0)
    record = ProgramRecord(2, (2, 1), (), retires=(Retired(1, 1),))
    assert ends(record, SimpleNamespace(operators=of), notes) == {1: 200}  # type: ignore[arg-type]
    later = noted(notes.next_epoch(0, ""), of[1], (2, 1), (second,), [Receipt(5)], [], 0)
    assert later.maxima[1] == notes.maxima[1] and later.origins[1] == ("@2",)
    other = noted(notes, replace(of[1], inputs=(replace(of[1].inputs[0], origin="b"),)), (2, 1), (second,), [], [], 0)
    assert other.maxima[1] == {}, "an input with another origin begins anew"


def test_a_text_has_the_ids_that_the_catalogue_knows(tmp_path: Path) -> None:
    """The first program of a job is built before the job has ids for it, and a restore numbers it anew."""
    texts, built = Texts(None, settings_of(tmp_path)), []  # type: ignore[arg-type]
    texts.build = lambda record: built.append(record.number) or text(tmp_path, record.number, (), ())  # type: ignore
    texts.keep(text(tmp_path, 1, (), operators((WINDOWED, "a"))))
    known = ProgramRecord(1, (4,), ())
    assert texts.of(1, Catalogue((), (known,))).record == known and not built
    with pytest.raises(SpecRefused, match="no text of program 2"):
        texts.of(2, Catalogue((), (known,)))
    texts.of(1, Catalogue((), (replace(known, file="other.py"),)))
    assert built == [1], "another text has the number"
