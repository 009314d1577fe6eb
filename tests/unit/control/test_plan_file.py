"""Plans as files: what is made, what is refused, and that `decide` follows one while the job is as the plan has it."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.errors import Refusal
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry_operator.control import decide as d
from ferry_operator.control import plan_file
from ferry_operator.control.observed import Basis, Observed, Submitted, Wanted
from ferry_operator.control.plan_file import PlanFile, Present
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.size import Size
from ferry_operator.placement.strategies import steps
from tests.unit.control.test_decide import REST, worker
from tests.unit.statuses import status_of, with_fields

TWO, FOUR = (Size(n, 1) for n in (2, 4))
GROUPS = [("0.0", "1.0"), ("1.0", "0.0")] * 8


def present(**changes: Any) -> Present:
    return replace(Present("counts", TWO, 1, GROUPS, [(1.0, 100.0)] * 16), **changes)


def plan(strategy: Any = "fluid") -> PlanFile:
    return plan_file.make(present(), FOUR, Handover(strategy=strategy))


def test_a_plan_has_what_would_move_and_in_which_steps() -> None:
    one = plan()
    assert one.usable == ["0.0", "1.0", "2.0", "3.0"] and one.before == TWO
    moved = [v for v, (old, new) in enumerate(zip(GROUPS, one.placements)) if old[0] != new[0]]
    assert len(moved) == one.forecast.switchovers == 8, "half of it, for twice as many workers"
    assert one.forecast.copies >= 8 and one.forecast.bytes == 100 * one.forecast.copies
    assert all(len(switched) <= 1 for _, switched in one.steps)
    assert len(plan("all-at-once").steps) == 1
    assert "4 workers with 1 instances each, 8 new leaders" in one.words()
    assert (one.forecast.seconds, one.forecast.pause) == (None, None), "nobody has measured it"


def test_what_a_plan_takes_follows_from_what_moves_took() -> None:
    for strategy, pause in (("fluid", 0.01), ("all-at-once", 0.08)):
        made = plan_file.make(present(costs=(1e-6, 0.01)), FOUR, Handover(strategy=strategy)).forecast  # type: ignore[arg-type]
        assert made.pause == pytest.approx(pause)
        assert made.seconds == pytest.approx(made.bytes * 1e-6 + 0.08)


@settings(deadline=None)  # the first one that is optimized loads networkx
@given(st.sampled_from(["all-at-once", "batched", "fluid", "optimized"]), st.integers(0, 3))
def test_it_is_the_same_from_a_file_and_an_annotation(strategy: Any, gap: int) -> None:
    one = plan_file.make(present(), FOUR, Handover(strategy=strategy, gap=gap))
    for again in (plan_file.read(plan_file.dump(one)), plan_file.unpacked(plan_file.packed(one))):
        assert again is not None and again == one and again.name == one.name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"placements": [["7.0"]] * 16}, "placements.0: must name usable instances only"),
        ({"placements": [[]] * 16}, "placements.0"),
        ({"placements": [["0.0", "0.0"]] * 16}, "on different workers"),
        ({"placements": [["0.0"]] * 16}, "must name 2 instances"),
        ({"usable": ["0.0", "9.0"]}, "no instance 9.0"),
        ({"usable": ["0.0", "0.0"]}, "twice"),
        ({"size": {"workers": 0, "instancesPerWorker": 1}}, "size.workers"),
        ({"handover": {"strategy": "clever"}}, "handover.strategy"),
        ({"more": 1}, "more"),
        ({"steps": [[[0], [-1]]]}, "steps"),
    ],
)
def test_what_is_no_plan_is_refused(change: dict[str, Any], why: str) -> None:
    document = json.loads(plan().dump()) | change
    with pytest.raises(Refusal, match="this is no plan") as refused:
        plan_file.read(json.dumps(document))
    assert why in str(refused.value)


def test_a_plan_of_another_job_or_shape_is_refused() -> None:
    for about in (("other", 16, 1, ()), ("counts", 8, 1, ()), ("counts", 16, 2, ()), ("counts", 16, 1, (3,))):
        assert plan_file.unfit(plan(), *about)
    assert not plan_file.unfit(plan(), "counts", 16, 1, ()) and not plan_file.unfit(plan(), "counts", 16, 1, (7,))
    with pytest.raises(Refusal, match="begins with 2 workers"):
        plan_file.check_begin(plan(), FOUR)
    with pytest.raises(Refusal, match="all are drained"):
        plan_file.make(present(drains=(0, 1)), TWO, Handover())


def test_what_is_no_plan_in_an_annotation_is_none() -> None:
    assert plan_file.unpacked("x") is None and plan_file.unpacked("") is None
    bomb = b64encode(zlib.compress(b" " * 64_000_000 + plan().dump().encode())).decode()
    assert len(bomb) < plan_file.TEXT_MAX and plan_file.unpacked(bomb) is None
    text = plan_file.packed(plan())
    assert plan_file.of_job(text, "counts") == plan() and plan_file.of_job(text, "other") is None


HEAD = (
    '"job":"a","size":{"workers":1,"instancesPerWorker":1},"before":{"workers":1,"instancesPerWorker":1},"replicas":0'
)
HOSTILE = {
    "lists": f'{{{HEAD},"usable":["0.0"],"placements":[{",".join(["[]"] * 1_000_000)}]}}',
    "names": f'{{"x":[{",".join(["0"] * 1_400_000)}]}}',
    "steps": f'{{{HEAD},"usable":["0.0"],"placements":[["0.0"]],"steps":[{",".join(["[[],[]]"] * 370_000)}]}}',
    "texts": f'{{{HEAD},"usable":[{",".join(["0" * 2] * 1_000_000)}],"placements":[["0.0"]]}}',
    "depth": "[" * 3_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_few_bytes_of_an_annotation_do_not_become_much_memory(text: str) -> None:
    """Whoever may annotate a job has the operator of all jobs unpack it."""
    packed = b64encode(zlib.compress(text.encode(), 9)).decode()
    assert len(packed) < 8000 and len(text) <= plan_file.JSON_MAX
    tracemalloc.start()
    try:
        assert plan_file.unpacked(packed) is None
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


def test_the_largest_plan_can_be_read() -> None:
    names = [[f"{255 - i}.63" for i in range(5)]] * VIRTUAL_NODES_MAX
    full = Size(256, 64)
    usable = [f"{k}.{i}" for k in range(256) for i in range(64)]
    cut = [([v], [v]) for v in range(VIRTUAL_NODES_MAX)]
    one = PlanFile(job="a", size=full, before=full, replicas=4, usable=usable, placements=names, steps=cut)
    assert plan_file.read(one.dump()) == one and len(one.dump()) < plan_file.JSON_MAX


def test_a_plan_that_is_too_large_for_an_annotation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "TEXT_MAX", 100)
    with pytest.raises(Refusal, match="an annotation holds 100"):
        plan_file.packed(plan())


# ---- followed

WORKERS = tuple(worker(k) for k in range(4))
ALIVE = [f"{k}.0" for k in range(4)]
SCALED = replace(
    REST,
    wanted=Wanted(Size(4, 1), replicas=1),
    workers=WORKERS,
    status=status_of([(list(group), []) for group in GROUPS], ALIVE),
    submitted=Submitted(Plan(1, ()), 1, Basis((InstanceId("0.0"), InstanceId("1.0")), 1, ())),
)


def submitted(observed: Observed) -> d.SubmitDesired:
    (found,) = [action for action in d.decide(observed) if isinstance(action, d.SubmitDesired)]
    return found


def handed_in(**changes: Any) -> PlanFile:
    """Not what the planner would do: all on the last two."""
    placements = [["2.0", "3.0"], ["3.0", "2.0"]] * 8
    return plan().model_copy(update={"placements": placements, **changes})


def test_what_was_handed_in_is_submitted_as_it_is_and_cut_from_where_all_is() -> None:
    file = handed_in(handover=Handover.model_validate({"strategy": "fluid", "atEpoch": 40}))
    one = submitted(replace(SCALED, plan_file=file))
    assert one.plan.placements == file.targets and one.plan.at_epoch == 40
    assert one.basis.plan_file == file.name
    assert one.plan.steps == steps([tuple(map(InstanceId, group)) for group in GROUPS], file.targets, file.policy)
    assert d.decide(replace(SCALED, plan_file=file, submitted=one.accepted())) == [], "once"


def test_it_waits_for_its_workers_and_counts_for_no_others() -> None:
    file = handed_in()
    short = replace(SCALED, plan_file=file, status=status_of([(list(group), []) for group in GROUPS], ALIVE[:3]))
    assert not [a for a in d.decide(short) if isinstance(a, d.SubmitDesired)], "the last one may come"
    gone = replace(short, missing={InstanceId("3.0"): 100.0})
    assert not [a for a in d.decide(gone) if isinstance(a, d.SubmitDesired)], "it has not begun, and waits for all"
    repairs = status_of([(list(group), []) for group in GROUPS], ALIVE[:3], members_gone=1)
    assert submitted(replace(gone, status=repairs)).basis.plan_file == "", "what repairs waits for nobody"
    begun = submitted(replace(SCALED, plan_file=file)).accepted()
    assert submitted(replace(gone, submitted=begun)).basis.plan_file == "", "what can be done without it"
    other = replace(SCALED, plan_file=handed_in(replicas=0))
    assert submitted(other).basis.plan_file == ""


def test_its_date_holds_in_a_job_that_was_restored_since() -> None:
    """Whose driver knows no plan; and the first one is due at once."""
    file = handed_in(handover=Handover.model_validate({"atEpoch": 40}))
    assert SCALED.status is not None
    restored = replace(SCALED, plan_file=file, submitted=None, status=replace(SCALED.status, desired=0))
    unheard = replace(restored, status=replace(SCALED.status, desired=4))
    assert submitted(unheard).basis.plan_file, "its driver has plans, and did not say which"
    first = submitted(restored)
    assert (first.basis.plan_file, first.plan.at_epoch) == ("", 0) and first.plan.placements != file.targets
    then = submitted(replace(restored, submitted=first.accepted()))
    assert (then.basis.plan_file, then.plan.at_epoch) == (file.name, 40)
    at_once = submitted(replace(restored, plan_file=handed_in()))
    assert at_once.basis.plan_file, "one without a date needs no other"


def test_while_it_waits_copies_that_are_missing_are_made() -> None:
    """Worker 1 was lost and is back, worker 3 never comes: one copy beside an empty worker would be all there is."""
    basis = Basis((InstanceId("0.0"),), 1, ())
    alone = [(["0.0"], list[str]()) for _ in GROUPS]
    missing = {InstanceId("3.0"): 100.0, InstanceId("2.0"): 100.0}
    back = replace(
        SCALED, plan_file=handed_in(), status=status_of(alone, ALIVE[:2]), missing=missing,
        submitted=Submitted(Plan(1, ()), 1, basis),
    )  # fmt: skip
    found = submitted(back)
    assert found.basis.plan_file == "" and all(one == ("0.0", "1.0") for one in found.plan.placements), (
        "and nothing else"
    )
    whole = status_of([(["0.0", "1.0"], []) for _ in GROUPS], ALIVE[:2], desired=found.plan.number)
    again = replace(back, status=whole, submitted=found.accepted())
    assert not [a for a in d.decide(again) if isinstance(a, d.SubmitDesired)], "then it waits on"


def test_taken_back_it_is_replaced() -> None:
    file = handed_in()
    followed = submitted(replace(SCALED, plan_file=file)).accepted()
    back = submitted(replace(SCALED, submitted=followed))
    assert back.basis.plan_file == "" and back.plan.number == followed.plan.number + 1


def test_a_plan_that_was_rolled_back_is_not_made_again_for_a_group_that_lacks_a_copy() -> None:
    last = submitted(SCALED).accepted()
    short = status_of([(["0.0"], []), *((list(group), []) for group in GROUPS[1:])], ALIVE, desired=last.plan.number)
    assert submitted(replace(SCALED, status=short, submitted=last)), "it would be"
    undone = with_fields(short, rolled_back="no progress for 1800 s")
    assert not [a for a in d.decide(replace(SCALED, status=undone, submitted=last)) if isinstance(a, d.SubmitDesired)]
    rested = with_fields(undone, quiet_seconds=601.0)
    assert submitted(replace(SCALED, status=rested, submitted=last)).plan.number > last.plan.number, "in the end it is"
    followed = submitted(replace(SCALED, plan_file=handed_in())).accepted()
    theirs = replace(
        SCALED, plan_file=handed_in(), status=replace(rested, desired=followed.plan.number), submitted=followed
    )
    assert not [a for a in d.decide(theirs) if isinstance(a, d.SubmitDesired)], "who has made it looks after it"


def test_pins_come_on_top() -> None:
    one = submitted(replace(SCALED, plan_file=handed_in(), pins=((0, InstanceId("0.0")),)))
    assert one.plan.placements[0] == ("0.0", "2.0") and one.plan.placements[1] == ("3.0", "2.0")
