"""Deploys of a job on a cluster from the command line: one write of the spec, and an answer from the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry.contract.journals import packed as packed_table
from ferry.contract.names import InstanceId, Term
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.routing import Group, Table, Version
from ferry_operator.cli.remote.deploys import RemoteDeploys, helpers
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import CONFIG_MAPS, JOBS
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
    def pipeline(self) -> Any:
        return self.api.api.objects[JOBS, "nbq5"]["spec"]["pipeline"]


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
            rig.deploys.deploy(wanted, 1200)
    assert rig.pipeline == {"configMap": {"name": f"nbq5-{text.hash}", "key": "sales.py"}, "args": {"least": 3}}
    assert rig.api.api.objects[JOBS, "nbq5"]["metadata"]["annotations"][names.DEPLOY_AT] == "1200"
    made = rig.api.api.objects[CONFIG_MAPS, f"nbq5-{text.hash}"]
    assert made["data"] == {"sales.py": "VALUE = 1\n"} and made["immutable"]
    assert made["metadata"]["ownerReferences"][0]["name"] == "nbq5"
    assert len(rig.api.written) == 1, "a repeated request writes nothing"
    rig.has(2, folder=f"/run/{text.hash}", file="configmap/x/sales.py", arguments={"least": 3}, text=text.packed)
    assert rig.deploys.deploy(wanted, 1200) == 2
    assert [(one["number"], one["state"]) for one in rig.deploys.programs()] == [(2, "deploying"), (1, "in force")]


def test_arguments_change_alone(rig: Rig) -> None:
    with pytest.raises(Unreachable):
        rig.deploys.deploy(rig.deploys.request(None, least))
    assert rig.pipeline == {"module": "jobs.nbq5", "args": {"least": 3}}
    rig.has(2, module="jobs.nbq5", arguments={"least": 3}, refused="no such argument")
    assert rig.deploys.deploy(rig.deploys.request(None, kept)) == 2
    assert rig.deploys.programs()[0]["refused"] == "no such argument"


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


def test_modules_beside_the_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("STEP = 1\n")
    (tmp_path / "job.py").write_text("import json\nimport helper\n")
    assert helpers(tmp_path / "job.py") == ["helper"]
