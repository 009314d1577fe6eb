"""The programs of a job as the status of the driver has them: two that run side by side, and a shadow that was dropped."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ferry.contract.catalogue import Beside, Catalogue, ProgramRecord
from ferry.contract.programs import ROLLED_BACK, ProgramVersion
from ferry.contract.status import ProgramStatus
from ferry.driver.beside import old_alone
from ferry.driver.program_list import ProgramList

OLD = ProgramRecord(1, (0,), (), file="v1.py", since=0)
NEW = ProgramRecord(2, (1, 0), (), file="v2.py", since=20, beside=Beside(1, 5, 0.0), base=1, attempt="shadow=5")
COMPARED = {"epochs": 5, "rows": 30, "missing": 2, "more": 1, "examples": ["+ a", "- b"], "uncompared": []}


def brief(now: int, *programs: ProgramRecord, first: bool = False) -> tuple[ProgramStatus, ...]:
    machine = SimpleNamespace(
        table=SimpleNamespace(programs=(ProgramVersion(now, now * 10, (0,)),)),
        deploying=SimpleNamespace(may_take_back=lambda number: first),
    )
    life: Any = SimpleNamespace(
        loop=SimpleNamespace(machine=machine), announcer=SimpleNamespace(catalogue=Catalogue((), programs))
    )
    return ProgramList(life, {}, lambda: (None, "")).brief()


def states(*statuses: ProgramStatus) -> list[tuple[int, str]]:
    return [(one.number, one.state) for one in statuses]


def test_the_program_whose_rows_are_written_is_the_first() -> None:
    kept = replace(NEW, beside=Beside(1, 0, 60.0))
    assert states(*brief(2, OLD, NEW)) == [(1, "in force"), (2, "shadow")]
    assert states(*brief(2, OLD, NEW, first=True)) == [(1, "in force"), (2, "first epoch")]
    assert states(*brief(2, OLD, kept)) == [(2, "in force"), (1, "kept")]


def test_a_shadow_that_was_dropped_is_refused_with_what_it_found() -> None:
    shadow = replace(NEW, compared=COMPARED)
    back = replace(OLD, number=3, since=30, base=2, settles=1)
    now, refused = brief(3, OLD, shadow, back)
    assert states(now, refused) == [(3, "in force"), (2, "refused")]
    assert refused.refused == "as a shadow, of 30 rows of 5 epochs, 2 are missing, and 1 are more; + a; - b"
    assert (refused.attempt, refused.identity, now.again) == ("shadow=5", NEW.identity, 1)
    alone = replace(NEW, number=3, refused="a sink refuses", since=None, settles=2, beside=None)
    equal = replace(NEW, compared={**COMPARED, "missing": 0, "more": 0, "examples": []})
    _, refused = brief(4, OLD, equal, alone, replace(back, number=4))
    assert refused.refused == "as a shadow, 0 of 30 rows of 5 epochs differ; a sink refuses"
    later = ProgramRecord(4, (0,), (), file="v4.py", refused="no pipeline")
    assert states(*brief(3, OLD, shadow, back, later)) == [(3, "in force"), (4, "refused")], (
        "until there is a newer one"
    )
    assert states(*brief(3, OLD, NEW, back)) == [(3, "in force")], "a user ended it"


def test_a_shadow_that_goes_on_alone_says_what_it_found() -> None:
    equal = replace(NEW, compared={**COMPARED, "missing": 0, "more": 0})
    (now,) = brief(3, OLD, equal, replace(NEW, number=3, since=30, base=2, settles=2, beside=None))
    assert (now.compared, now.refused, now.again) == ("0 of 30 rows of 5 epochs differ", "", None)


def test_a_deploy_that_a_user_has_given_up_is_over_and_not_refused() -> None:
    withdrawn = replace(NEW, beside=None, refused=ROLLED_BACK, since=None)
    assert states(*brief(1, OLD, withdrawn)) == [(1, "in force"), (2, "over")]


def test_the_last_status_is_the_answer_to_the_last_deploy_of_a_user() -> None:
    """Else the operator deploys a shadow or a program again and again: it takes the last one for the answer."""
    left = ProgramRecord(2, (0,), (), file="v2.py", since=20)
    back = replace(OLD, number=3, since=30, base=2, back_from=2, because="a row violates it")
    shadow = replace(NEW, number=4, since=40, base=3, beside=Beside(3, 5, 0.0), file="v4.py", compared=COMPARED)
    known = OLD, left, back, shadow
    dropped = replace(old_alone(shadow, 5, back), since=50)
    assert states(*brief(5, *known, dropped)) == [(5, "in force"), (4, "refused")]
    refused = replace(back, number=4, base=3, settles=3, since=None, refused="i3 has not loaded it")
    assert states(*brief(3, OLD, left, back, refused)) == [(3, "in force"), (2, "refused")]
    assert states(*brief(2, OLD, left, replace(back, since=None, refused="another key"))) == [(2, "in force")]
