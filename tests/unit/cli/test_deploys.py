"""Deploys of a job on a cluster from the command line: one write of the spec, and an answer from the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import Beside, Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import Fault, Refusal, SpecRefused, Unreachable
from ferry.contract.journals import packed as packed_table
from ferry.contract.names import InstanceId, Term
from ferry.contract.program_diff import OperatorFate
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.routing import Group, Table, Version
from ferry_operator.cli import deploys
from ferry_operator.cli.main import app
from ferry_operator.cli.program_tables import cost, versions_table
from ferry_operator.cli.remote.deploys import RemoteDeploys, helpers
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.cli.targets import Target
from ferry_operator.kube.api.port import CONFIG_MAPS, JOBS, ApiError
from ferry_operator.kube.observe.program import Text
from tests.unit.cli.fakes.fake_user import FakeUser, user

COUNTS = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
FIRST = first_catalogue([COUNTS], module="jobs.nbq5")
GROUPS = (Group(Term(1, 1), (InstanceId("0.0"),)),)


def kept(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def least(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "least": 3}


class Rig:
    """A user, and a journal that a driver would have written."""

    def __init__(self) -> None:
        self.api: FakeUser = user()
        self.catalogue, self.in_force = FIRST, 1
        self.api.journal = self.journal  # type: ignore[method-assign]
        self.deploys = RemoteDeploys(RemoteJob(self.api, "nbq5"))

    def journal(self) -> Any:
        programs = (ProgramVersion(self.in_force, 0, (0,)),) if self.in_force > 1 else first_program(1)
        table = packed_table(Table(Version(1, 1), GROUPS, programs=programs))
        return {"spec": {"operators": self.catalogue.dump(), "table": table}}

    def has(self, number: int, since: int | None = None, **record: Any) -> None:
        self.catalogue = self.catalogue.with_program(ProgramRecord(number, (0,), (COUNTS,), since=since, **record))
        self.in_force = number if since is not None else self.in_force

    @property
    def spec(self) -> Any:
        return self.api.api.objects[JOBS, "nbq5"]["spec"]

    @property
    def pipeline(self) -> Any:
        return self.spec["pipeline"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_file_gets_a_configmap_of_its_own_and_the_spec_names_it(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    file.write_text("VALUE = 1\n")
    text = Text.of("VALUE = 1\n")
    wanted = rig.deploys.request(file, least)
    for _ in range(2):
        with pytest.raises(Unreachable, match="the operator asks the driver"):
            rig.deploys.deploy(wanted, {"atEpoch": 1200})
    assert rig.pipeline == {"configMap": {"name": f"nbq5-{text.hash}", "key": "sales.py"}, "args": {"least": 3}}
    assert rig.spec["deploy"] == {"atEpoch": 1200}
    made = rig.api.api.objects[CONFIG_MAPS, f"nbq5-{text.hash}"]
    assert made["data"] == {"sales.py": "VALUE = 1\n"} and made["immutable"]
    assert made["metadata"]["ownerReferences"][0]["name"] == "nbq5"
    assert len(rig.api.written) == 1, "a repeated request writes nothing"
    record = {"folder": f"/run/{text.hash}", "file": "configmap/x/sales.py", "arguments": {"least": 3}}
    rig.has(2, text=text.packed, attempt="atEpoch=1200", **record)
    assert rig.deploys.deploy(wanted, {"atEpoch": 1200}) == 2
    assert [(one["number"], one["state"]) for one in rig.deploys.programs()] == [(2, "deploying"), (1, "in force")]


def test_arguments_change_alone(rig: Rig) -> None:
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.request(None, least))
    assert rig.pipeline == {"module": "jobs.nbq5", "args": {"least": 3}}
    rig.has(2, module="jobs.nbq5", arguments={"least": 3}, refused="no such argument")
    assert rig.deploys.deploy(rig.deploys.request(None, kept)) == 2
    assert rig.deploys.programs()[0]["refused"] == "no such argument"


def test_options_are_in_the_spec_and_the_next_deploy_removes_them(rig: Rig) -> None:
    def deployed(**how: Any) -> int:
        return rig.deploys.deploy(rig.deploys.request(None, least), how)

    with pytest.raises(Unreachable):
        deployed(shadow=5)
    assert rig.spec["deploy"] == {"shadow": 5}
    with pytest.raises(SpecRefused, match=r"spec\.deploy: keep"):
        deployed(keep="soon")
    record: dict[str, Any] = {"module": "jobs.nbq5", "arguments": {"least": 3}, "attempt": "shadow=5"}
    compared = {"rows": 3, "epochs": 5, "missing": 1, "more": 0}
    rig.has(2, 5, beside=Beside(1, 5, 0.0), **record)
    assert deployed(shadow=5) == 2
    assert [one["state"] for one in rig.deploys.programs()] == ["shadow", "in force"]
    assert rig.deploys.rolled_back(None).identity == FIRST.programs[0].identity
    rig.has(2, 5, beside=Beside(1, 5, 0.0), compared=compared, **record)
    rig.has(3, 9, module="jobs.nbq5", base=2, settles=1)
    assert deployed(shadow=5) == 2, "its rows differed: that is the answer"
    with pytest.raises(Unreachable):
        deployed()
    assert rig.spec["deploy"] == {}, "without the shadow it is another deploy"
    rig.has(4, 12, beside=Beside(3, 0, 60.0), module="jobs.nbq5", arguments={"least": 3})
    assert deployed() == 4
    assert [one["state"] for one in rig.deploys.programs()][:2] == ["in force", "kept"]
    assert rig.deploys.rolled_back(None).identity == FIRST.programs[0].identity
    with pytest.raises(Refusal, match="program 4 runs beside another one"):
        rig.deploys.rolled_back(None, rewind=True)


def test_a_cluster_that_does_not_know_the_options_gets_no_program(rig: Rig) -> None:
    """It would prune them, and the program would be in force at once."""
    rig.api.dry_run = lambda kind, name, document: rig.api.get(kind, name)  # type: ignore[method-assign]
    for refuses in (None, ApiError(400, "BadRequest", 'strict decoding error: unknown field "spec.deploy"')):
        rig.api.refuses = refuses
        with pytest.raises(Refusal, match="apply crds"):
            rig.deploys.deploy(rig.deploys.request(None, least), {"shadow": 5})
        rig.api.dry_run = FakeUser.dry_run.__get__(rig.api)  # type: ignore[method-assign]
    assert not rig.api.written


def test_a_rollback_names_the_earlier_program_in_the_spec(rig: Rig) -> None:
    text = Text.of("VALUE = 1\n")
    rig.has(2, 5, folder=f"/run/{text.hash}", file="configmap/x/sales.py", arguments={"least": 3}, text=text.packed)
    rig.has(3, 9, module="jobs.other", arguments={"most": 4})
    rig.api.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"module": "jobs.other", "args": {"most": 4}}}})
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.rolled_back(None))
    source = {"name": f"nbq5-{text.hash}", "key": "sales.py"}
    assert rig.pipeline == {"configMap": source, "args": {"least": 3}}, "without the argument of the other program"
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.rolled_back(1))
    assert rig.pipeline == {"module": "jobs.nbq5", "args": {}}
    rig.has(4, module="jobs.slow", arguments={})
    assert rig.deploys.deploy(rig.deploys.rolled_back(None)) == 3, "a deploy under way is given up"
    assert rig.pipeline == {"module": "jobs.other", "args": {"most": 4}}


def test_a_program_that_the_job_left_is_not_awaited_again(rig: Rig) -> None:
    rig.has(2, 5, module="jobs.nbq5", arguments={"least": 3})
    rig.has(3, 9, module="jobs.nbq5", back_from=2, because="cents are negative")
    wanted = rig.deploys.request(None, least)
    assert rig.deploys.deploy(wanted) == 2
    assert [one["wentBack"] for one in rig.deploys.programs()] == ["", "cents are negative", ""]
    rig.has(4, 12, module="jobs.nbq5", arguments={}, back_from=2, because="cents are negative")
    with pytest.raises(Refusal, match="program 4 has the text of program 1: the spec would not change"):
        rig.deploys.rolled_back(1, rewind=True)
    rig.has(4, 12, module="jobs.nbq5", back_from=2, because="cents are negative")
    with pytest.raises(Unreachable, match="the operator asks the driver"):
        rig.deploys.deploy(wanted, {"probation": "0s"})


def test_a_rewind_is_an_option_of_the_deploy_of_the_program_before(rig: Rig) -> None:
    rig.has(2, 5, module="jobs.nbq5", arguments={"least": 3})
    wanted, how = rig.deploys.rolled_back(None, rewind=True), {"rewind": True}
    with pytest.raises(Unreachable):
        rig.deploys.deploy(wanted, how)
    assert rig.spec["deploy"] == how and rig.pipeline["module"] == "jobs.nbq5"
    before = rig.catalogue
    rig.has(3, module="jobs.nbq5", attempt="rewind=True", refused="no checkpoint is older")
    assert rig.deploys.deploy(wanted, how) == 3
    rig.catalogue, rig.in_force = before.with_program(replace(before.programs[1], rewound=True)), 1
    assert rig.deploys.deploy(wanted, how) == 1, "the next driver has restored the checkpoint"
    assert [one["state"] for one in rig.deploys.programs()] == ["over", "in force"]
    with pytest.raises(Unreachable):  # The program that was left comes again under another number.
        rig.deploys.deploy(rig.deploys.request(None, least))
    assert rig.deploys.rolled_back(None).identity == rig.catalogue.programs[0].identity, "it is given up"


def test_a_rollback_gives_up_a_deploy_that_is_checked(rig: Rig, tmp_path: Path) -> None:
    """The journal does not know it yet."""
    rig.has(2, 5, module="jobs.nbq5", arguments={"least": 3})
    for wrong in ({"args": {"least": 9}}, {"configMap": {"name": "gone", "key": "x.py"}, "module": None}):
        rig.api.api.edit(JOBS, "nbq5", {"spec": {"pipeline": wrong}})
        assert rig.deploys.rolled_back(None).identity == rig.catalogue.programs[1].identity
    rig.api.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"module": "jobs.nbq5", "configMap": None}}})
    rig.has(3, module="jobs.nbq5", arguments={"least": 9}, refused="no")
    assert rig.deploys.rolled_back(None).identity == rig.catalogue.programs[0].identity, "the deploy is answered"


@pytest.mark.parametrize("other", [{"pipeline": {"args": {"least": 9}}}, {"deploy": {"keep": "10m"}}])
def test_a_change_by_a_colleague_is_not_overwritten(rig: Rig, other: dict[str, Any]) -> None:
    """A deploy that waits for its answer wrote the spec again every second, and so undid an apply or a rollback."""
    wanted = rig.deploys.request(None, least)
    with pytest.raises(Unreachable):
        rig.deploys.deploy(wanted)
    rig.api.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    with pytest.raises(Unreachable):
        rig.deploys.deploy(wanted)
    rig.api.api.edit(JOBS, "nbq5", {"spec": other})
    with pytest.raises(Fault, match="the spec was changed meanwhile"):
        rig.deploys.deploy(wanted)
    assert len(rig.api.written) == 1
    rig.has(2, 5, module="jobs.nbq5", arguments={"least": 3})
    assert rig.deploys.deploy(wanted) == 2, "it was in force before"


def test_a_look_at_an_older_spec_undoes_no_newer_one(rig: Rig) -> None:
    rig.has(2, 5, module="jobs.nbq5", arguments={"least": 3})
    deploy, rollback = rig.deploys.request(None, lambda arguments: {"most": 4}), rig.deploys.rolled_back(1)
    rig.api.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"args": {"least": 9}}}})
    for wanted in (deploy, rollback):
        with pytest.raises(Refusal, match="the spec was changed meanwhile"):
            rig.deploys.deploy(wanted)
    assert not rig.api.written


def test_a_number_is_compared_as_the_api_server_has_it(rig: Rig) -> None:
    """It has 1 for 1.0, and the identities of the two differ."""
    wanted = rig.deploys.request(None, lambda arguments: {"rate": 1.0, "many": 1e30, "long": 10**20})
    with pytest.raises(Unreachable):
        rig.deploys.deploy(wanted)
    rig.has(2, 5, module="jobs.nbq5", arguments=dict(rig.pipeline["args"]))
    assert repr(rig.pipeline["args"]["rate"]) == "1" and rig.deploys.deploy(wanted) == 2
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.request(None, lambda arguments: {"rate": True}))
    assert rig.pipeline["args"] == {"rate": True} and rig.pipeline["args"]["rate"] is True


def test_no_argument_becomes_null_by_a_patch(rig: Rig) -> None:
    """A merge patch removes it, and no program of the driver would be the program of the spec."""
    with pytest.raises(SpecRefused, match=r"spec\.pipeline\.args\.most: null cannot be written to a cluster"):
        rig.deploys.request(None, lambda arguments: {"most": None})
    rig.has(2, 5, module="jobs.nbq5", arguments={"most": None})
    rig.has(3, 9, module="jobs.nbq5", arguments={"most": 4})
    with pytest.raises(SpecRefused, match=r"spec\.pipeline\.args\.most: null"):
        rig.deploys.rolled_back(None)
    rig.pipeline["args"] = {"most": None}  # As the job was created.
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.request(None, least))
    assert rig.pipeline["args"] == {"most": None, "least": 3}


def test_one_text_under_two_names_is_one_configmap(rig: Rig, tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("VALUE = 1\n")
        with pytest.raises(Unreachable):
            rig.deploys.deploy(rig.deploys.request(tmp_path / name, kept))
        assert rig.pipeline["configMap"]["key"] == "a.py"


def test_what_cannot_be_rolled_back_is_refused(rig: Rig) -> None:
    with pytest.raises(Refusal, match="no program was in force before; earlier programs: none"):
        rig.deploys.rolled_back(None)
    rig.has(2, 5, folder="/run/0123456789ab", file="configmap/x/sales.py")
    rig.has(3, 9, module="jobs.other")
    with pytest.raises(Refusal, match="the text of program 2 is not kept any more"):
        rig.deploys.rolled_back(2)
    with pytest.raises(Refusal, match=r"program 7 was never in force before; earlier programs: 1, 2"):
        rig.deploys.rolled_back(7)
    rig.catalogue = Catalogue((), ())
    rig.journal = lambda: {"spec": {}}  # type: ignore[method-assign]
    rig.api.journal = rig.journal  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="its driver is starting"):
        rig.deploys.programs()


def test_a_configmap_with_another_text_is_not_taken(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    file.write_text("VALUE = 1\n")
    wanted = rig.deploys.request(file, kept)
    name = wanted.pipeline["configMap"]["name"]
    rig.api.api.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"sales.py": "VALUE = 2"}})
    with pytest.raises(Refusal, match=f"ConfigMap {name} exists and has another text: delete it"):
        rig.deploys.deploy(wanted)
    assert rig.pipeline == {"module": "jobs.nbq5"}
    file.write_bytes(b"\xff")
    with pytest.raises(SpecRefused, match=r"sales\.py: .*codec"):
        rig.deploys.request(file, kept)


def test_a_check_builds_the_program_here_and_changes_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    more = replace(COUNTS, name="more")

    def built(*arguments: Any) -> Any:
        asked.append(arguments)
        return SimpleNamespace(refused="", operators=[COUNTS.to_wire(), more.to_wire()])

    monkeypatch.setattr("ferry_operator.cli.remote.deploys.check.deployable", built)
    file = tmp_path / "sales.py"
    file.write_text("VALUE = 1\n")
    fates = rig.deploys.fates(rig.deploys.request(file, least))
    assert [(one.name, one.fate) for one in fates] == [("counts", "kept"), ("more", "added")]
    ((module, path, folder), arguments, _, _) = asked[0]
    assert (module, path, arguments) == (None, "sales.py", {"least": 3}) and Path(folder).name == Text.of(
        "VALUE = 1\n"
    ).hash
    assert not rig.api.written and (CONFIG_MAPS, f"nbq5-{Path(folder).name}") not in rig.api.api.objects
    monkeypatch.setattr(
        "ferry_operator.cli.remote.deploys.check.deployable", lambda *_: SimpleNamespace(refused="no", operators=None)
    )
    with pytest.raises(SpecRefused, match=r"no \(--check builds the program on this machine"):
        rig.deploys.fates(rig.deploys.request(file, least))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (".nan", "spec.pipeline.args.x: nan: an argument must be a finite number"),
        ("[-.inf]", "spec.pipeline.args.x: an argument must be a finite number"),
        ("!!binary aGk=", "spec.pipeline.args.x: b'hi': an argument is text, a number"),
        ("!!timestamp 2024-01-01", "spec.pipeline.args.x: datetime.date(2024, 1, 1): an argument is text, a number"),
        ("[{a: 1}]", "spec.pipeline.args.x: an argument is text, a number"),
        ("&a [*a]", "spec.pipeline.args.x: an argument is text, a number"),
        ("[" * 2000 + "]" * 2000, "...' is not a YAML scalar; quote it"),
        ("!!int x", "'!!int x' is not a YAML scalar; quote it"),
        ("!!timestamp x", "'!!timestamp x' is not a YAML scalar; quote it"),
        ("!!bool x", "'!!bool x' is not a YAML scalar; quote it"),
        ("1" * 5000, "...' is not a YAML scalar; quote it"),
    ],
    ids=lambda text: text[:20],
)
def test_a_value_that_is_no_argument_is_refused_with_its_path(value: str, words: str) -> None:
    """By the rule of the job file. An argument that the program has already is not checked again."""
    with pytest.raises(SpecRefused) as refused:
        deploys._with({"old": [{"a": 1}]}, [f"pipeline.args.x={value}"])
    assert words in str(refused.value) and len(str(refused.value)) < 600
    assert deploys._with({"old": [{"a": 1}]}, ["pipeline.args.x=[1, y, null]"])["x"] == [1, "y", None]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--shadow", "2000000", "--shadow: 2000000: must be less than or equal to 1000000"),
        ("--keep", "60d", "--keep: '60d': must be between '1s' and '720h'"),
        ("--probation", "40d", "--probation: '40d': must be 0 or between '1s' and '720h'"),
        ("--slower", "inf", "--slower: inf: must be a finite number"),
        ("--at-epoch", "10000000000000000", "--at-epoch: 10000000000000000: must be less than"),
        ("--at-event-time", "1000000000000000000", "--at-event-time: 1000000000000000000: must be less than"),
    ],
)
def test_an_option_out_of_bounds_is_named_before_the_job_is_asked(option: str, value: str, words: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        app(args=["deploy", "no-such-job", "a.py", option, value], standalone_mode=False, obj=Target())
    assert str(refused.value).startswith(words)
    deploys._require(keep="1d", probation="0s")
    deploys._require(keep="", probation="", slower=0.0, shadow=None, at_event_time=None, at_epoch=0)


def test_modules_beside_the_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("STEP = 1\n")
    (tmp_path / "job.py").write_text("import json\nimport helper\n")
    assert helpers(tmp_path / "job.py") == ["helper"]


def test_a_check_tells_the_cost() -> None:
    kept, altered = OperatorFate("more", "kept", "keeps its state"), OperatorFate("sales", "altered", "gains m")
    assert cost([kept], 5, False) == "cost: no state is rewritten"
    assert cost([kept, altered], 2_500_000, False).startswith("cost: the state (at most 2.5 MB) of sales is derived")
    assert cost([kept], None, True).startswith("cost: the state is copied while epochs go on, and then each epoch")


def test_versions_show_the_arguments_in_which_programs_differ() -> None:
    def program(number: int, **arguments: Any) -> dict[str, Any]:
        empty = dict.fromkeys(("file", "module", "folder", "refused", "compared"))
        return {"number": number, "state": "over", "since": 0, "operators": [], "arguments": arguments, **empty}

    def arguments(*programs: dict[str, Any]) -> dict[str, list[str]]:
        return {str(c.header): [str(cell) for cell in c.cells] for c in versions_table(programs).columns}

    shown = arguments(program(2, rate=5, least=100, shop="x"), program(1, rate=5, least=10))
    assert shown["arguments"] == ['least=100, shop="x"', "least=10"]
    assert "arguments" not in arguments(program(2, rate=5), program(1, rate=5))
