"""The program of the spec and the programs that the driver reports: what is deployed, withdrawn, or left as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import JOURNAL, SETTINGS
from ferry.contract.status import ProgramStatus
from ferry_operator.job import spec
from ferry_operator.job.models_parts import ConfigMapKey
from ferry_operator.kube import steps as s
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFIG_MAPS, ApiError
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.manifests.release import settings_of
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.facts import Ended
from ferry_operator.kube.observe.program import Text, WantedProgram, text_in, wanted
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.view import JobView, look
from ferry_operator.kube.plan import plan
from ferry_operator.kube.program_text import TEXT_SECONDS, ProgramText
from ferry_operator.kube.report.conditions import conditions
from ferry_operator.kube.report.events import changes
from ferry_operator.kube.report.program import program_problems, program_report
from ferry_operator.kube.report.status import report
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.test_decisions import NODES, NOW, RELEASE, document, driver, revise, status, worker

SOURCE = ConfigMapKey(name="rules", key="rules.py")
OLD = document()
NEW = document(OLD, pipeline={"module": "jobs.nbq5", "args": {"least": 3}})


def program(of: Doc = NEW, text: Text | None = None) -> WantedProgram:
    found = wanted(spec.check(of).spec, text)
    assert found is not None
    return found


def reported(number: int, of: Doc, state: str = "in force", **more: Any) -> ProgramStatus:
    since = number * 10 if state == "in force" else None
    return ProgramStatus(number, state, since, program(of).identity, **more)


ONE = reported(1, OLD)

BEFORE = "554b14d2afc7"
"""Revision of the driver of `NEW` that 0.1.0 gives it."""


def view(*programs: ProgramStatus, of: Doc = NEW, noted: str = "", ended: Ended | None = None, **pod: Any) -> JobView:
    effective = effective_spec.in_force(of, RELEASE)
    assert effective.job is not None
    mine = revise(effective.job)
    notes = {names.REVISION: mine.driver, names.PROGRAM: noted, **pod}
    workers = [worker(k, annotations={names.REVISION: mine.worker}) for k in (0, 1)]
    answer = None if ended is not None else replace(status(0, 1), programs=programs)
    seen = Seen(of, (driver(ended, annotations=notes), *workers), NODES, 2, answer, None, NOW, program=program(of))
    return look(seen, effective, mine, AbsenceTimers())


def steps(of: JobView) -> list[s.Step]:
    kinds = s.DeployProgram | s.ReturnToProgram | s.WithdrawProgram | s.NoteProgram | s.ReplaceDriver
    return [step for step in plan(of, 0) if isinstance(step, kinds)]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        pytest.param((ONE,), [s.DeployProgram(program())], id="another one is in force"),
        pytest.param((ONE, reported(2, NEW, "loading")), [], id="on its way"),
        pytest.param((ONE, reported(2, NEW, "wanted")), [], id="wanted by the driver before"),
        pytest.param((ONE, reported(2, document(OLD, cores=1, pipeline={"module": "x"}), "loading")), [s.WithdrawProgram(2)], id="obsolete"),
        pytest.param((replace(ONE, state="first epoch"),), [], id="the one before may still be taken back"),
        pytest.param((ONE, reported(2, document(OLD, pipeline={"module": "x"}), "refused")), [s.DeployProgram(program())], id="another one was refused"),
        pytest.param((ONE, reported(2, NEW, "refused", attempt="7")), [s.DeployProgram(program())], id="refused before the nonce"),
    ],
)  # fmt: skip
def test_what_the_driver_is_asked(programs: tuple[ProgramStatus, ...], expected: list[s.Step]) -> None:
    assert steps(view(*programs)) == expected


@pytest.mark.parametrize(
    "programs",
    [(reported(2, NEW),), (ONE, reported(2, NEW, "refused")), (reported(3, OLD), reported(2, NEW, "refused"))],
    ids=["in force", "refused", "the job went back from it"],
)
def test_an_answer_is_noted_on_the_pod_and_nothing_is_asked_again(programs: tuple[ProgramStatus, ...]) -> None:
    (noted,) = steps(view(*programs))
    assert isinstance(noted, s.NoteProgram) and noted.identity == program().identity
    assert steps(view(*programs, noted=program().identity)) == []


SHADOWED = document(NEW, pipeline=NEW["spec"]["pipeline"], deploy={"shadow": 5})
OTHER = document(OLD, pipeline={"module": "jobs.other"})
BACK = document(OLD, deploy={"rewind": True})


def answered(number: int, of: Doc, state: str, **more: Any) -> ProgramStatus:
    return reported(number, of, state, attempt=program(of).attempt, **more)


@pytest.mark.parametrize(
    ("of", "programs", "expected"),
    [
        pytest.param(SHADOWED, (ONE,), [s.DeployProgram(program(SHADOWED))], id="with its options"),
        pytest.param(SHADOWED, (ONE, answered(2, SHADOWED, "first epoch")), [], id="a shadow's first epoch"),
        pytest.param(SHADOWED, (ONE, answered(2, SHADOWED, "shadow")), [], id="a shadow"),
        pytest.param(NEW, (ONE, answered(2, SHADOWED, "shadow")), [s.WithdrawProgram(2)], id="no shadow any more"),
        pytest.param(OLD, (ONE, answered(2, SHADOWED, "shadow")), [s.WithdrawProgram(2)], id="rolled back"),
        pytest.param(OTHER, (ONE, answered(2, SHADOWED, "shadow")), [s.WithdrawProgram(2)], id="another program meanwhile"),
        pytest.param(OTHER, (ONE, answered(2, SHADOWED, "shadow"), reported(3, OLD, "loading")), [], id="it ends"),
        pytest.param(NEW, (ONE, answered(3, SHADOWED, "refused")), [s.DeployProgram(program())], id="in spite of a difference"),
        pytest.param(SHADOWED, (ONE, answered(2, SHADOWED, "over")), [s.DeployProgram(program(SHADOWED))], id="after a withdrawal"),
        pytest.param(OLD, (reported(2, NEW), reported(1, OLD, "kept")), [s.ReturnToProgram(1)], id="back to a kept program"),
        pytest.param(OLD, (reported(2, NEW, "first epoch"), reported(1, OLD, "kept")), [], id="not before its first epoch"),
        pytest.param(OLD, (reported(2, NEW), reported(1, OLD, "kept"), reported(3, OLD, "loading")), [], id="on its way back"),
        pytest.param(OTHER, (reported(2, NEW), reported(1, OLD, "kept")), [], id="once its time is over"),
        pytest.param(BACK, (reported(2, NEW),), [s.DeployProgram(program(BACK))], id="back to a checkpoint"),
        pytest.param(BACK, (reported(2, NEW), reported(1, OLD, "kept")), [], id="to a checkpoint once nothing is kept"),
        pytest.param(BACK, (reported(2, NEW), answered(3, BACK, "rewinding")), [], id="on its way to a checkpoint"),
    ],
)  # fmt: skip
def test_options_of_a_deploy(of: Doc, programs: tuple[ProgramStatus, ...], expected: list[s.Step]) -> None:
    assert steps(view(*programs, of=of, noted=program(of).identity)) == expected


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param((reported(3, OLD), answered(2, SHADOWED, "refused")), id="its rows differed"),
        pytest.param((reported(3, SHADOWED),), id="no row differed"),
        pytest.param(
            (ONE, answered(2, SHADOWED, "shadow"), answered(3, SHADOWED, "refused")), id="it cannot go on alone"
        ),
    ],
)
def test_the_end_of_a_shadow_is_an_answer(programs: tuple[ProgramStatus, ...]) -> None:
    (noted,) = steps(view(*programs, of=SHADOWED))
    assert isinstance(noted, s.NoteProgram)
    assert steps(view(*programs, of=SHADOWED, noted=program().identity)) == []


def test_a_kept_program_does_not_disturb_the_one_in_force() -> None:
    of = document(NEW, pipeline=NEW["spec"]["pipeline"], deploy={"keep": "10m"})
    assert steps(view(reported(2, of), reported(1, OLD, "kept"), of=of, noted=program().identity)) == []


def test_options_are_words_of_the_attempt() -> None:
    of = document(NEW, restartNonce=7, deploy={"keep": "10m", "atEpoch": 1200})
    assert program(of).attempt == "7 keep=10m atEpoch=1200"
    assert (program(NEW).attempt, program(document(NEW, restartNonce=7)).attempt) == ("", "7")
    with pytest.raises(spec.JobRefused, match="choose one of 'shadow' and 'keep'"):
        spec.check(document(NEW, deploy={"keep": "10m", "shadow": 3}))


def test_a_driver_of_an_older_release_is_replaced_for_another_program() -> None:
    assert [type(step) for step in steps(view())] == [s.NoteProgram], "it has begun with the program of the spec"
    (replaced,) = steps(view(noted=program(OLD).identity))
    assert isinstance(replaced, s.ReplaceDriver) and "deploys no programs" in replaced.why
    assert steps(view(noted=program().identity)) == []


# --- pods


def test_no_pod_is_made_anew_for_another_program() -> None:
    texts = document(OLD, pipeline={"module": None, "configMap": {"name": "rules", "key": "rules.py"}})
    for other in (NEW, texts, document(OLD, pipeline={"module": "jobs.other"})):
        old, new = revise(spec.check(OLD)), revise(spec.check(other))
        assert (old.driver, old.worker, old.settings) == (new.driver, new.worker, new.settings)
        assert old.all != new.all, "a refused spec is tried again with another program"


def test_an_upgrade_of_the_operator_restarts_no_driver_of_0_1_0() -> None:
    mine = revise(spec.check(NEW))
    assert mine.driver_before == BEFORE, "as 0.1.0 has written it on pods"
    found = view(reported(2, NEW), noted=program().identity, **{names.REVISION: mine.driver_before})
    assert steps(found) == [] and found.revisions is not None and found.revisions.driver == BEFORE
    (replaced,) = steps(view(ONE, noted=program().identity, **{names.REVISION: revise(spec.check(OLD)).driver_before}))[
        :1
    ]
    assert isinstance(replaced, s.ReplaceDriver)


FAILED = Ended(2, "", "refused: no pipeline", NOW - 9)


def test_a_failed_job_begins_again_once_its_program_is_edited() -> None:
    same = view(ended=FAILED, noted=program().identity)
    assert same.lifecycle.end == "Failed" and same.begins_with == JOURNAL
    edited = view(ended=FAILED, noted=program(OLD).identity)
    assert edited.lifecycle.may_start and edited.begins_with == SETTINGS
    crashed = view(ended=Ended(1, "", "killed", NOW - 99), noted=program(OLD).identity)
    assert crashed.lifecycle.may_start and crashed.begins_with == JOURNAL, "it was not the program"


def test_another_module_with_another_image_is_begun_and_other_arguments_are_deployed() -> None:
    def begins(**more: Any) -> str:
        changed = document(OLD, kubernetes={"image": "jobs:2"}, **more)
        effective, seen = effective_spec.in_force(changed, RELEASE), Seen(changed, (), NODES, 2, None, None, NOW)
        assert effective.job is not None
        seen = replace(seen, program=program(changed))
        return look(seen, effective, revise(effective.job), AbsenceTimers()).begins_with

    assert begins(pipeline={"module": "jobs.other"}) == SETTINGS
    assert begins(pipeline={"module": "jobs.nbq5", "args": {"least": 3}}) == JOURNAL


def test_the_settings_of_a_run_have_the_text() -> None:
    texts = document(OLD, pipeline={"module": None, "configMap": {"name": "rules", "key": "rules.py"}})
    view_ = view(ONE)
    settings = settings_of(spec.check(texts), view_.seen.memory, RELEASE, "packed", SETTINGS)
    assert (settings.pipeline_module, settings.pipeline_file) == (None, "configmap/rules/rules.py")
    assert (settings.pipeline_text, settings.begins_with, settings.program) == ("packed", SETTINGS, None)


# --- the text


def test_a_text_is_read_now_and_then_and_what_is_missing_is_said() -> None:
    api, read = FakeApi(lambda: NOW), ProgramText()
    read.read(api, SOURCE, NOW, 1)
    assert read.text is None and read.problem is not None
    assert (
        read.problem.reason == "ProgramMissing" and "ConfigMap rules does not exist: create it" in read.problem.message
    )
    made = {"metadata": {"name": "rules"}, "data": {"rules.py": "one"}}
    api.create(CONFIG_MAPS, made)
    read.read(api, SOURCE, NOW + TEXT_SECONDS / 2, 1)
    assert read.text is None
    read.read(api, SOURCE, NOW + TEXT_SECONDS, 1)
    assert read.text == Text.of("one") and read.problem is None
    api.before = lambda verb, kind, name: (_ for _ in ()).throw(ApiError(503, "Busy", "busy"))
    read.read(api, SOURCE, NOW + 2 * TEXT_SECONDS, 1)
    assert read.text == Text.of("one"), "the last text counts"
    api.before = lambda verb, kind, name: (_ for _ in ()).throw(ApiError(403, "Forbidden", "no right"))
    read.read(api, SOURCE, NOW + 3 * TEXT_SECONDS, 1)
    assert (
        read.problem is not None and "the operator's Role needs `get` of configmaps: no right" in read.problem.message
    )
    read.read(api, None, NOW + 4 * TEXT_SECONDS, 1)
    assert read.text is None and read.problem is None
    reads = len(api.calls)
    read.read(api, SOURCE, NOW + 4 * TEXT_SECONDS, 1000)
    read.read(api, SOURCE, NOW + 20 * TEXT_SECONDS, 1000)
    assert len(api.calls) == reads, "many jobs are read more rarely"


@pytest.mark.parametrize(
    ("config_map", "words"),
    [
        ({"data": {"a.py": ""}}, "has no key 'rules.py' in its data; its keys: a.py"),
        ({"binaryData": {"rules.py": "AA=="}}, "in its data under binaryData, which is no text; its keys: none"),
        ({"data": {"rules.py": "#" * (1 << 20 | 1)}}, "key rules.py: the text of the program has 1,048,577 bytes"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused(config_map: Doc, words: str) -> None:
    with pytest.raises(SpecRefused, match=r"spec\.pipeline\.configMap: ConfigMap rules") as refused:
        text_in(config_map, SOURCE)
    assert words in str(refused.value)


def test_the_chart_says_which_configmaps_jobs_may_name() -> None:
    texts = document(OLD, pipeline={"module": None, "configMap": {"name": "rules", "key": "rules.py"}})
    effective_spec.revisions(spec.check(texts), "u", RELEASE)
    with pytest.raises(SpecRefused, match=r"no job may read 'rules'; allowed: for-jobs-\*"):
        effective_spec.revisions(spec.check(texts), "u", replace(RELEASE, allow=Allowed(config_maps=("for-jobs-*",))))


# --- what users see


@pytest.mark.parametrize(
    ("programs", "phase", "message", "truth"),
    [
        pytest.param((reported(2, NEW),), "InForce", "", "False", id="in force"),
        pytest.param((ONE, reported(2, NEW, "loading")), "Deploying", "program 2: loading", "True", id="loading"),
        pytest.param(
            (ONE, reported(2, NEW, "refused", refused="no")), "Refused", "program 2: no", "False", id="refused"
        ),
        pytest.param((ONE,), "Waiting", "the operator asks the driver", "True", id="not asked yet"),
        pytest.param(
            (ONE, reported(2, NEW, "shadow", compared="40 % of its epochs are compared, and no row differs")),
            "Deploying",
            "program 2: shadow; 40 % of its epochs",
            "True",
            id="shadow",
        ),
        pytest.param(
            (reported(3, OLD), reported(2, NEW, "refused", refused="as a shadow, of 3 rows")),
            "Refused",
            "program 2: as a shadow, of 3 rows",
            "False",
            id="dropped",
        ),
        pytest.param(
            (reported(3, NEW, compared="0 of 3 rows of 2 epochs differ"),),
            "InForce",
            "as a shadow, 0 of 3 rows",
            "False",
            id="equal",
        ),
        pytest.param(
            (reported(2, NEW), reported(1, OLD, "kept")),
            "InForce",
            "program 1 is kept",
            "False",
            id="keeps another one",
        ),
        pytest.param(
            (reported(2, OTHER), reported(1, OLD, "kept")),
            "Waiting",
            "program 1 is kept beside program 2: the program of the spec is deployed once",
            "True",
            id="waits for the end of a kept one",
        ),
    ],
)
def test_the_status_has_the_program(programs: tuple[ProgramStatus, ...], phase: str, message: str, truth: str) -> None:
    one = view(*programs)
    shown = program_report(one)
    assert shown is not None and (shown.phase, shown.number) == (phase, programs[0].number)
    assert shown.message.startswith(message) and shown.since == programs[0].since
    (condition,) = (c for c in conditions(one, [], []) if c.type == "Deploying")
    assert (condition.status, condition.reason) == (truth, phase)
    assert [p.reason for p in program_problems(one)] == (["ProgramRefused"] if phase == "Refused" else [])


def test_another_program_in_force_is_an_event() -> None:
    before = report(view(ONE), [], 1, "ferry:1")
    known = {**NEW, "status": before.status.to_wire()}

    def notices(*programs: ProgramStatus) -> list[tuple[str, str]]:
        after = report(view(*programs, of=known), [], 1, "ferry:1")
        return [(n.reason, n.message) for n in changes(after) if n.reason.startswith(("Program", "Shadow"))]

    assert notices(ONE) == [] == notices(ONE, reported(2, NEW, "refused"))
    assert notices(reported(2, NEW)) == [("ProgramDeployed", "program 2 is in force from epoch 20 on")]
    shadow = reported(2, NEW, "shadow", compared="0 % of its epochs are compared, and no row differs")
    begun = "program 2 runs beside program 1: its rows are compared, and not written"
    assert notices(ONE, shadow) == [("ShadowBegun", begun)]
    compared = "0 of 3 rows of 2 epochs differ"
    equal = f"program 3 is in force from epoch 30 on; as a shadow, {compared}"
    assert notices(reported(3, NEW, compared=compared)) == [("ProgramDeployed", equal)]
    again = "program 3 is in force from epoch 30 on; it is program 1 again"
    assert notices(reported(3, NEW, again=1)) == [("ProgramRolledBack", again)]
