"""The fate of operators under another program, and the catalogue of all operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferry.api.graph import offsets_only
from ferry.contract import journals
from ferry.contract.catalogue import RECORDS_MAX, Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, ProcessShape, Side, Window
from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.program_diff import OperatorFate, program_diff
from ferry.contract.programs import ProgramVersion

SALES = OperatorDescriptor("sales", 0, "aggregate", (("shop", "string"),), Window(10, 10), (Aggregate("n", "count"),))
MORE = replace(SALES, name="more", index=1)
SHAPE = ProcessShape(
    "ferry_pipeline_job_0123456789ab:Score", '{"limit": 3}', (("cents",),), ("in",), "out", (("seen", "s", None),)
)
SCORE = OperatorDescriptor("score", 0, "process", (("id", "int"),), Window(1, 1), process=SHAPE)


def fates(diff: tuple[OperatorFate, ...]) -> dict[str, str]:
    return {one.name: one.fate for one in diff}


def test_operators_are_told_apart_by_name_and_ids_are_never_given_again() -> None:
    catalogue = first_catalogue((SALES, MORE))
    other = replace(SALES, name="other")
    diff = program_diff(catalogue, (0, 1), [other, replace(MORE, index=5)])
    assert diff.ids == (2, 1) and diff.operators == (SALES, MORE, replace(other, index=2))
    assert fates(diff.fates) == {"other": "added", "more": "kept", "sales": "retired"}
    back = program_diff(replace(catalogue, operators=diff.operators), diff.ids, [SALES, MORE])
    assert back.ids == (0, 1) and len(back.operators) == 3
    assert fates(back.fates) == {"sales": "returns", "more": "kept", "other": "retired"}


def test_ids_that_are_needed_no_more() -> None:
    """Of operators before they were altered, and of copies that did not go on. A removed operator may return."""
    every = [SALES, MORE, *(replace(SALES, index=number) for number in (2, 3, 4)), replace(MORE, index=5)]
    loaded = ProgramRecord(7, (4, 5), (), altered=((4, 3), (5, 1)))
    catalogue = Catalogue(tuple(every), (loaded,), void=(2, 4, 5))
    now = (ProgramVersion(6, 90, (3,), ((3, 0),)),)
    assert catalogue.live(now) == {0, 1, 3, 4, 5}, "what the deploy under way is derived from is needed, too"
    refused = replace(catalogue, programs=(replace(loaded, refused="it fails"),))
    assert refused.live(now) == {0, 1, 3} and refused.live((now[0]._replace(altered=()),)) == {1, 3}


def test_the_operator_of_a_pipeline_without_operators_has_no_windows_to_fire() -> None:
    diff = program_diff(first_catalogue([offsets_only().descriptor]), (0,), [SALES])
    assert fates(diff.fates) == {"sales": "added", "offsets": "removed"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(SALES, window=Window(20, 10)), "operator 'sales': the window was 10 ms, and is 20 ms, every 10 ms"),
        (replace(SALES, key=(("shop", "int"),)), "operator 'sales': the key was (shop string), and is (shop int)"),
        (replace(SALES, aggregates=(Aggregate("n", "max", "x"),)), "aggregate n was count(), and is max(x int)"),
        (replace(SALES, kind="join"), "was an aggregate, and is a join"),
    ],
)
def test_a_state_that_cannot_be_taken_over_is_refused_with_what_to_do(changed: OperatorDescriptor, words: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        program_diff(first_catalogue([SALES]), (0,), [changed])
    assert words in str(refused.value) and "give it another name, so that it begins empty" in str(refused.value)


def test_an_altered_operator_gets_another_id_and_its_name_names_the_last_one() -> None:
    catalogue, wider = first_catalogue([SALES, MORE]), (*SALES.aggregates, Aggregate("m", "max", "x"))
    diff = program_diff(catalogue, (0, 1), [MORE, replace(SALES, aggregates=wider)])
    assert (diff.ids, diff.altered) == ((1, 2), ((2, 0),)) and fates(diff.fates) == {"more": "kept", "sales": "altered"}
    assert diff.fates[1].words == "keeps its state; gains m (max), which counts records from the switch on"
    record = ProgramRecord(2, diff.ids, (), altered=diff.altered)
    in_force = catalogue.with_program(replace(record, since=7), diff.operators)
    back = program_diff(in_force, diff.ids, [SALES])
    assert (back.ids, back.altered) == ((3,), ((3, 2),)) and back.fates[0].words == "keeps its state; loses m"
    refused = catalogue.with_program(replace(record, refused="no"), diff.operators)
    assert Catalogue.load(refused.dump()) == refused and refused.ids == {"sales": 0, "more": 1}
    again = program_diff(refused, (0, 1), [MORE, replace(SALES, aggregates=wider)])
    assert again.altered == ((3, 0),), "an id of a refused deploy is never used again"


def test_a_program_that_is_refused_takes_no_name() -> None:
    """Its corrected successor may have another operator of that name; an operator that ran once keeps its name."""
    first = first_catalogue([SALES])
    wanted = [SALES, replace(MORE, window=Window(99, 99))]
    diff = program_diff(first, (0,), wanted)
    record = ProgramRecord(2, diff.ids, tuple(wanted))
    journaled = first.with_program(record, diff.operators)
    tried = journaled.with_program(replace(journaled.program(2) or record, tries=2))
    refused = tried.with_program(replace(tried.program(2) or record, refused="a sink is away"))
    assert Catalogue.load(refused.dump()) == refused and refused.ids == {"sales": 0}
    again = program_diff(refused, (0,), [SALES, MORE])
    assert again.ids == (0, 2) and fates(again.fates) == {"sales": "kept", "more": "added"}
    in_force = tried.with_program(replace(tried.program(2) or record, since=7))
    follower = in_force.with_program(ProgramRecord(3, diff.ids, tuple(wanted), settles=2, refused="later"))
    assert follower.ids == {"sales": 0, "more": 1}
    with pytest.raises(SpecRefused, match="operator 'more': the window was 99 ms"):
        program_diff(follower, diff.ids, [SALES, MORE])


def test_after_a_restore_an_operator_in_force_is_the_origin_and_not_its_last_id() -> None:
    """The checkpoint is older than the last id: its state is lost, so it must be derived again."""
    wider = replace(SALES, aggregates=(*SALES.aggregates, Aggregate("m", "max", "x")))
    catalogue = replace(first_catalogue([SALES, replace(wider, index=1)]), void=())
    diff = program_diff(catalogue, (0,), [wider])
    assert (diff.ids, diff.altered) == ((2,), ((2, 0),)) and fates(diff.fates) == {"sales": "altered"}


def test_a_job_goes_back_to_programs_that_a_user_deployed() -> None:
    catalogue = first_catalogue([SALES])
    for number, settles in ((2, None), (3, 2), (4, None), (5, 4)):
        catalogue = catalogue.with_program(ProgramRecord(number, (0,), (SALES,), since=number, settles=settles))
    before = {now: [record.number for record in catalogue.before(now)] for now in (2, 3, 4, 5)}
    assert before == {2: [1], 3: [1], 4: [1, 2], 5: [1, 2]}


def test_a_join_is_altered_by_columns_and_refused_by_types() -> None:
    side = Side((("a", "a", "int64"),))
    join = OperatorDescriptor("j", 0, "join", (("k", "int"),), Window(10, 10), left=side, right=side)
    more = replace(join, left=Side((*side.columns, ("b", "b", "string"))), right=Side((("c", "c", "int64"),)))
    diff = program_diff(first_catalogue([join]), (0,), [more])
    words = "gains b, which is null in the records before the switch; gains c, which is null in the records before the switch; loses a"
    assert diff.altered == ((1, 0),) and diff.fates[0].words == f"keeps its state; {words}"
    with pytest.raises(SpecRefused, match="column of the left side a was a int64, and is a string"):
        program_diff(first_catalogue([join]), (0,), [replace(join, left=Side((("a", "a", "string"),)))])


def test_keys_may_be_kept_for_another_time_but_not_for_ever() -> None:
    """A key that is forgotten may still have its row on one member only, so it must not come back."""
    of = {ttl: replace(SALES, ttl_ms=ttl) for ttl in (None, 5, 9)}
    told = {
        (old, new): program_diff(first_catalogue([of[old]]), (0,), [of[new]]).fates[0].words
        for old, new in ((None, 5), (5, 9), (9, 5))
    }
    there = "a key without a record since the switch is"
    assert told[None, 5] == f"keeps its state; keeps keys for 5 ms, not ever; {there} kept until its next record"
    assert (
        told[9, 5] == f"keeps its state; keeps keys for 5 ms, not 9 ms; {there} forgotten at the earlier of both times"
    )
    with pytest.raises(SpecRefused, match="keys were kept for 5 ms, and are for ever"):
        program_diff(first_catalogue([of[5]]), (0,), [of[None]])


def test_all_refusals_are_named_at_once() -> None:
    with pytest.raises(SpecRefused, match=r"operator 'sales': .*; operator 'more': "):
        program_diff(first_catalogue([SALES, MORE]), (0, 1), [replace(one, emit="changes") for one in (SALES, MORE)])


def test_a_process_of_the_user_keeps_its_state_as_long_as_its_tables_are_the_same() -> None:
    other = replace(
        SHAPE, made_of="ferry_program_ba9876543210.helpers:Better", arguments='{"limit": 4}', output="wider",
        columns=(("cents", "shop"),),
    )  # fmt: skip
    assert program_diff(first_catalogue([SCORE]), (0,), [replace(SCORE, process=other)]).ids == (0,)
    with pytest.raises(SpecRefused, match="table seen has other columns"):
        program_diff(
            first_catalogue([SCORE]), (0,), [replace(SCORE, process=replace(other, tables=(("seen", "t", None),)))]
        )
    with pytest.raises(SpecRefused, match="the key was"):
        program_diff(first_catalogue([SCORE]), (0,), [replace(SCORE, key=(("other", "int"),))])


def test_a_process_with_upgrade_may_have_other_tables_and_nothing_else() -> None:
    other = replace(
        SHAPE, made_of="ferry_program_ba9876543210:Score", tables=(("scores", "t", "int64"),), upgrades=True, output="x"
    )
    diff = program_diff(first_catalogue([SCORE]), (0,), [replace(SCORE, process=other)])
    assert (diff.ids, diff.altered) == ((1,), ((1, 0),))
    assert diff.fates[0].words == "keeps its state; upgrade() of its class derives the rows of other tables"
    assert program_diff(
        first_catalogue([SCORE]), (0,), [replace(SCORE, process=replace(SHAPE, upgrades=True))]
    ).ids == (0,)
    with pytest.raises(SpecRefused, match="the key was"):
        program_diff(first_catalogue([SCORE]), (0,), [replace(SCORE, process=other, key=(("other", "int"),))])
    hosted = replace(SHAPE, made_of="ferry.process.stateful_processor:HostedProcessor", upgrades=True)
    before = replace(SCORE, process=replace(hosted, upgrades=False))
    new = replace(SCORE, process=replace(hosted, tables=(("scores", "t", None),)))
    assert program_diff(first_catalogue([before]), (0,), [new]).altered == ((1, 0),)
    with pytest.raises(SpecRefused, match="limit was 3, and is 4"):
        program_diff(first_catalogue([before]), (0,), [replace(new, process=replace(hosted, arguments='{"limit": 4}'))])


def test_a_process_of_ferry_keeps_its_state_only_with_its_arguments() -> None:
    """They say what its tables mean, such as the gap of a session."""
    session = replace(SCORE, process=replace(SHAPE, made_of="ferry.process.sessions:Sessions"))
    assert session.process is not None
    longer = replace(session, process=replace(session.process, arguments='{"limit": 4}'))
    assert program_diff(first_catalogue([session]), (0,), [session]).ids == (0,)
    with pytest.raises(SpecRefused, match="limit was 3, and is 4"):
        program_diff(first_catalogue([session]), (0,), [longer])


def test_the_catalogue_goes_through_its_text() -> None:
    catalogue = first_catalogue([replace(SALES, index=7), SCORE], file="job.py", folder="f", arguments={"a": [1]})
    assert [one.index for one in catalogue.operators] == [0, 1]
    assert Catalogue.load(catalogue.dump()) == catalogue
    second = ProgramRecord(2, (1,), (SCORE,), refused="no memory", deployed_at=1.5, started_with="x")
    more = catalogue.with_program(second, (*catalogue.operators, replace(MORE, index=2)))
    assert Catalogue.load(more.dump()) == more and len(more.operators) == 3
    assert more.wanted is not None and more.wanted.number == 1


def test_a_program_that_was_rolled_back_with_its_state_takes_no_name() -> None:
    first = first_catalogue([SALES])
    diff = program_diff(first, (0,), [SALES, MORE])
    second = first.with_program(ProgramRecord(2, diff.ids, (SALES, MORE), since=9), diff.operators)
    gone = second.with_program(replace(second.programs[1], rewound=True))
    assert gone.void == (1,) and Catalogue.load(gone.dump()) == gone
    other = replace(MORE, window=Window(20, 20))
    assert program_diff(gone, (0,), [SALES, other]).ids == (0, 2), "an operator of that name is new"
    assert gone.with_program(replace(gone.programs[1], rewound=False)).void == (), "nothing has gone back after all"


def test_a_long_catalogue_is_packed() -> None:
    catalogue = first_catalogue([SALES])
    assert journals.written(catalogue) == catalogue.dump()
    for number in range(2, 12):
        arguments = {"text": "x" * 50_000}
        catalogue = catalogue.with_program(ProgramRecord(number, (0,), (SALES,), since=number, arguments=arguments))
    text = journals.written(catalogue)
    assert len(text) < len(catalogue.dump()) / 10 and journals.read(text) == catalogue
    with pytest.raises(Refusal, match="no catalogue"):
        journals.read(text[:-20])


def test_old_programs_are_forgotten_and_operators_never() -> None:
    catalogue = first_catalogue([SALES])
    for number in range(2, RECORDS_MAX + 10):
        catalogue = catalogue.with_program(ProgramRecord(number, (0,), (SALES,)))
    assert len(catalogue.programs) == RECORDS_MAX and catalogue.program(1) is None
    assert catalogue.program(RECORDS_MAX + 9) is not None and catalogue.operators == (SALES,)


def test_refused_programs_never_push_out_the_program_in_force() -> None:
    catalogue = first_catalogue([SALES])
    for number in range(2, 3 * RECORDS_MAX):
        catalogue = catalogue.with_program(ProgramRecord(number, (0,), (SALES,), refused="no"))
    assert catalogue.program(1) is not None and len(catalogue.programs) == RECORDS_MAX + 1
