"""A program beside another one: its ids, its plan, and the programs that go on alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import PROCESSES_MAX, Beside, Catalogue, ProgramRecord, Retired
from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.contract.notes import EpochNotes
from ferry.contract.program_diff import program_diff
from ferry.contract.programs import ProgramVersion, from_wire, to_wire
from ferry.driver import settling
from ferry.driver.beside import both, comparison_in, new_alone, old_alone, shadow_or_void, with_both
from ferry.driver.comparison import Compared
from ferry.driver.retiring import BuiltProgram
from ferry.sidecar.altering import obsolete
from tests.unit.driver.test_retiring import LASTING, ROWS, WINDOWED, operators, text

OLD = operators((WINDOWED, "a"), (LASTING, "a"))
"""o0 with windows, o1"""


def old(folder: Path) -> BuiltProgram:
    return text(folder, 1, (0, 1), OLD, (0, "x", ROWS), (1, "y", ROWS))


def deployed(
    folder: Path, *fresh: tuple[Any, str | int], names: tuple[str, ...] = (), **how: Any
) -> tuple[ProgramRecord, BuiltProgram, Any]:
    """A program beside the old one, its text, and all operators."""
    of = operators(*fresh)
    if names:
        of = tuple(replace(o, descriptor=replace(o.descriptor, name=name)) for o, name in zip(of, names, strict=True))
    now = old(folder)
    known = tuple(replace(d, index=i) for i, d in enumerate(now.record.descriptors))
    diff = program_diff(Catalogue(known, ()), (0, 1), [o.descriptor for o in of])
    record = ProgramRecord(2, diff.ids, tuple(o.descriptor for o in of), beside=Beside(1, **how))
    program, every = both(record, now.record, OLD, diff, 2)
    outputs: Any = [(i, "xyz"[i], ROWS) for i in range(len(of))]
    return program, text(folder, 2, (), of, *outputs), every


def test_all_operators_of_the_new_program_get_ids_and_what_was_there_is_derived(tmp_path: Path) -> None:
    program, _, every = deployed(tmp_path, (WINDOWED, "a"), (LASTING, 0), (LASTING, "a"), shadow=5, keep=0.0)
    assert program.operators == (3, 4, 2, 0, 1) and program.altered == ((3, 0), (4, 1)) and program.silent == (3, 4, 2)
    assert [(d.name, d.index) for d in program.descriptors] == [("o0", 0), ("o1", 1), ("o2", 2), ("o0", 3), ("o1", 4)]
    assert [d.name for d in every] == ["o0", "o1", "o2", "o0", "o1"] and [d.index for d in every] == [*range(5)]
    row = ProgramVersion(2, 7, program.operators, program.altered, program.silent)
    assert row.beside and from_wire(to_wire((row,))) == (row,)
    kept, *_ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), shadow=0, keep=60.0)
    assert kept.silent == (0, 1)


def test_a_half_that_cannot_be_built_any_more_has_void_steps_and_the_other_half_runs(tmp_path: Path) -> None:
    """A driver that begins while a shadow or a kept program fails ended the job."""

    def fails(*_: Any) -> Any:
        raise SpecRefused("passing fails on an empty batch")

    shadow, _, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, 0), shadow=5, keep=0.0)
    shadow = replace(shadow, since=7)
    plan, signatures = with_both(shadow, shadow_or_void(shadow, fails), lambda _: old(tmp_path))
    assert [o.descriptor for o in plan.operators] == [*shadow.descriptors]
    assert plan.failed == "passing fails on an empty batch" and plan.silent == {0, 1}
    assert [output.input.origin for output in plan.outputs] == [2, 3] and comparison_in(plan) is None
    assert len(signatures.sinks) == len(plan.sinks) and [*plan.sources] == [*old(tmp_path).plan.sources]
    kept, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), shadow=0, keep=60.0)
    with pytest.raises(SpecRefused, match="empty batch"):
        with_both(kept, now, fails)  # It is not in force yet.
    plan, _ = with_both(replace(kept, since=7), now, fails)
    assert [o.descriptor for o in plan.operators] == [*kept.descriptors] and plan.failed and plan.silent == {2, 3}
    with pytest.raises(SpecRefused, match="empty batch"):
        shadow_or_void(kept, fails)


def test_a_program_that_still_runs_operators_of_another_one_cannot_have_a_second_one_beside_it(tmp_path: Path) -> None:
    now = replace(old(tmp_path).record, retires=(Retired(1, 1),))
    diff = program_diff(Catalogue(now.descriptors, ()), (0, 1), [o.descriptor for o in OLD])
    record = ProgramRecord(2, diff.ids, now.descriptors, beside=Beside(1, 5, 0.0))
    with pytest.raises(SpecRefused, match="program 1 still runs operators of the program before it"):
        both(record, now, OLD, diff, 2)
    with pytest.raises(SpecRefused, match="it removes 'o0', whose open windows would not be written"):
        deployed(tmp_path, (LASTING, "a"), names=("o1",), shadow=0, keep=60.0)


def test_only_one_program_writes_and_sinks_of_the_same_values_are_compared(tmp_path: Path) -> None:
    program, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), (LASTING, 0), shadow=5, keep=0.0)
    before = old(tmp_path)
    plan, signatures = with_both(program, now, lambda number: before)
    assert [o.descriptor.index for o in plan.operators] == [0, 1, 2, 3, 4]
    assert [side.origin for o in plan.operators for side in o.inputs] == ["a", "a", 0, "a", "a"]
    written = [o for o in plan.outputs if not isinstance(o.sink, Compared)]
    assert [(o.input.origin, o.sink) for o in written] == [(3, before.plan.sinks[0]), (4, before.plan.sinks[1])]
    compared = [(o.input.origin, o.sink.other) for o in plan.outputs if isinstance(o.sink, Compared)]
    assert compared == [(0, True), (3, False), (1, True), (4, False)] and len(signatures.sinks) == len(plan.sinks)
    comparison = comparison_in(plan)
    assert comparison is not None and len(comparison.uncompared) == 1 and "/z" in comparison.uncompared[0]
    kept = replace(program, beside=Beside(1, 0, 60.0))
    plan, _ = with_both(kept, now, lambda number: before)
    assert comparison_in(plan) is None and plan.sinks == now.plan.sinks and len(plan.operators) == 5


def test_what_goes_on_alone(tmp_path: Path) -> None:
    """A removed operator with windows is retired once the new program is alone."""
    program, now, every = deployed(tmp_path, (LASTING, "a"), names=("o1",), shadow=5, keep=0.0)
    assert (program.operators, program.altered) == ((2, 0, 1), ((2, 1),))
    program = replace(program, since=4, begins=(2,))
    plan, _ = with_both(program, now, lambda number: old(tmp_path))
    new = new_alone(program, 3, plan.operators)
    assert (new.operators, new.retires, new.drops, new.settles, new.base) == ((2, 0), (Retired(0, 1),), (1,), 2, 2)
    assert [d.index for d in new.descriptors] == [0, 1] and (new.beside, new.since, new.silent) == (None, None, ())
    back = old_alone(program, 3, replace(old(tmp_path).record, since=0))
    assert (back.operators, back.drops, back.settles, back.base, back.since) == ((0, 1), (2,), 1, 2, None)
    catalogue = Catalogue(every, (replace(old(tmp_path).record, since=0), program))
    assert catalogue.before(2) == [catalogue.programs[0]]
    alone = catalogue.with_program(replace(new, since=9))
    assert alone.void == (1,) and [one.number for one in alone.before(3)] == [1], "it is the shadow, alone"
    later = alone.with_program(replace(program, number=4, beside=None, altered=(), since=12))
    assert [one.number for one in later.before(4)] == [1, 2], "the shadow went on, as program 3"
    assert alone.with_program(replace(new, since=None, refused="taken back")).void == ()
    again = catalogue.with_program(replace(back, since=9))
    assert again.void == (2,) and Catalogue.load(again.dump()) == again
    later = again.with_program(replace(program, number=4, beside=None, altered=(), since=12))
    assert [one.number for one in later.before(4)] == [1], "a shadow that was dropped is no program to go back to"
    kept = replace(program, beside=Beside(1, 0, 60.0))
    left = Catalogue(every, (replace(old(tmp_path).record, since=0), kept)).with_program(replace(back, since=9))
    later = left.with_program(replace(program, number=4, beside=None, altered=(), since=12))
    assert [one.number for one in later.before(4)] == [1], "the user had gone back from it"


@pytest.mark.parametrize("how", [{"shadow": 5, "keep": 0.0}, {"shadow": 0, "keep": 60.0}], ids=["shadow", "kept"])
def test_an_operator_of_a_half_that_does_not_go_on_is_new_if_it_comes_again(tmp_path: Path, how: Any) -> None:
    """It would have the state of some epochs, and a change of its window would be refused."""
    program, *_, every = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), (WINDOWED, "a"), **how)
    first = replace(old(tmp_path).record, since=0)
    catalogue = Catalogue(every[:2], (first,)).with_program(replace(program, since=4), every)
    record = catalogue.program(2)
    assert record is not None and set(record.begins) == {2, 3, 4}
    catalogue = catalogue.with_program(replace(old_alone(record, 3, first), since=9))
    assert catalogue.void == (2, 3, 4) and catalogue.ids == {"o0": 0, "o1": 1}
    wider = [
        replace(d, name=f"o{i}") for i, d in enumerate((WINDOWED, LASTING, replace(WINDOWED, window=Window(20, 20))))
    ]
    again = program_diff(catalogue, (0, 1), wider)
    assert [fate.fate for fate in again.fates] == ["kept", "kept", "added"]
    row = ProgramVersion(2, 4, record.operators, record.altered, record.silent)
    assert set(row.new_half) == {2, 3, 4} and obsolete((row, ProgramVersion(3, 9, (0, 1)))) == {2, 3, 4}


def test_the_comparison_says_which_program_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), shadow=2, keep=0.0)
    before = old(tmp_path)
    catalogue, told = Catalogue((), (replace(before.record, since=0), replace(program, since=4))), list[str]()
    life: Any = SimpleNamespace(
        announcer=SimpleNamespace(catalogue=catalogue),
        metrics=SimpleNamespace(note=lambda kind, words: told.append(words)),
    )
    for differs in (False, True):
        plan, _ = with_both(program, now, lambda number: before)
        of: Any = SimpleNamespace(plan=plan)
        decided = settling.Settling(life)
        for epoch in range(2):
            rows = replace_rows()
            comparison = comparison_in(plan)
            assert comparison is not None
            comparison.add(0, "x", False, rows)
            comparison.add(0, "x", True, ROWS.empty_table() if differs else rows)
            following = decided.following(program, of, EpochNotes(), 3)
            assert (following is None) == (epoch == 0)
        assert following is not None and following.operators == ((0, 1) if differs else (2, 3))
    assert told == [
        "program 2: 0 of 2 rows of 2 epochs differ; program 3 goes on alone",
        "program 2: of 2 rows of 2 epochs, 2 are missing, and 0 are more; program 1 goes on alone",
    ]
    kept = replace(program, beside=Beside(1, 0, 60.0), deployed_at=1000.0)
    plan, _ = with_both(kept, now, lambda number: before)
    of = SimpleNamespace(plan=plan)
    monkeypatch.setattr(settling.time, "time", lambda: 1059.0)
    assert settling.Settling(life).following(kept, of, EpochNotes(), 3) is None
    monkeypatch.setattr(settling.time, "time", lambda: 1061.0)
    following = settling.Settling(life).following(kept, of, EpochNotes(), 3)
    assert following is not None and following.operators == (2, 3) and following.number == 3


def test_a_shadow_compares_something(tmp_path: Path) -> None:
    program, _, _ = deployed(tmp_path, (WINDOWED, "a"), shadow=5, keep=0.0)
    now = text(tmp_path, 2, (), operators((WINDOWED, "a")), (0, "another", ROWS))
    with pytest.raises(SpecRefused, match="no sink of it is a sink of program 1: a shadow would compare nothing"):
        with_both(program, now, lambda number: old(tmp_path))


def test_an_equal_shadow_that_cannot_go_on_alone_is_dropped(tmp_path: Path) -> None:
    """Its new sink refuses, for example."""
    program, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), shadow=1, keep=0.0)
    before = old(tmp_path)
    plan, _ = with_both(program, now, lambda number: before)
    of: Any = SimpleNamespace(plan=plan)
    refused = replace(new_alone(program, 3, plan.operators), refused="its sink refuses")
    catalogue = Catalogue((), (replace(before.record, since=0), replace(program, since=4), refused))
    metrics = SimpleNamespace(note=lambda kind, words: None)
    life: Any = SimpleNamespace(announcer=SimpleNamespace(catalogue=catalogue), metrics=metrics)
    comparison = comparison_in(plan)
    assert comparison is not None
    for other in (False, True):
        comparison.add(0, "x", other, replace_rows())
    following = settling.Settling(life).following(program, of, EpochNotes(), 4)
    assert following is not None and following.operators == (0, 1)


def replace_rows() -> Any:
    return ROWS.empty_table().from_pydict({"k": [1]}, ROWS)


def test_a_half_whose_code_has_failed_is_never_gone_on_with(tmp_path: Path) -> None:
    """By the notes of an epoch, or before a sink; a program that would take its state on does not follow."""
    before, notes, told = old(tmp_path), EpochNotes(failed=(2, "user code: it fails")), list[str]()
    for how, goes_on in (({"shadow": 2, "keep": 0.0}, (0, 1)), ({"shadow": 0, "keep": 60.0}, (2, 3))):
        program, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), **how)
        program = replace(program, deployed_at=1e12)
        plan, _ = with_both(program, now, lambda number: before)
        machine = SimpleNamespace(
            table=SimpleNamespace(programs=(ProgramVersion(2, 4, program.operators, (), program.silent),)),
            commits=SimpleNamespace(meta=notes.dump()),
        )
        life: Any = SimpleNamespace(
            announcer=SimpleNamespace(catalogue=Catalogue((), (replace(before.record, since=0), program))),
            metrics=SimpleNamespace(note=lambda kind, words: told.append(words)),
            loop=SimpleNamespace(machine=machine),
        )
        decided, of = settling.Settling(life), SimpleNamespace(plan=plan)
        assert decided.following(program, of, EpochNotes(failed=(1, "another one")), 3) is None  # type: ignore[arg-type]
        following = decided.following(program, of, notes, 3)  # type: ignore[arg-type]
        assert following is not None and following.operators == goes_on and not decided.lacks(following)
        assert "lacks epochs" in decided.lacks(replace(following, operators=program.silent))
        machine.commits.meta = b""
        assert not decided.lacks(replace(following, operators=program.silent))
    assert told == [
        "program 2: the shadow ends: user code: it fails",
        "program 2: program 1 is not kept any more: user code: it fails",
    ]
    program, now, _ = deployed(tmp_path, (WINDOWED, "a"), (LASTING, "a"), shadow=2, keep=0.0)
    plan, _ = with_both(program, now, lambda number: before)
    comparison = comparison_in(plan)
    assert comparison is not None
    comparison.failed = "user code: before a sink"
    following = settling.Settling(life).following(program, SimpleNamespace(plan=plan), EpochNotes(), 3)  # type: ignore[arg-type]
    assert following is not None and following.operators == (0, 1)


def test_a_job_has_as_many_states_of_processes_as_an_instance_can_open() -> None:
    """Also of refused deploys, and of both halves: ids are never used again."""
    process = replace(WINDOWED, kind="process")
    catalogue = Catalogue((process,) * PROCESSES_MAX, ())
    record = ProgramRecord(2, (0,), (process,))
    assert catalogue.with_program(record, (*catalogue.operators, WINDOWED)).program(2) == record
    with pytest.raises(SpecRefused, match=r"has had 400 operators .* start it again from its newest checkpoint"):
        catalogue.with_program(record, (*catalogue.operators, process))
