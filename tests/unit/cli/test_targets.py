"""Which job a command means, and what it says of where it looked."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.cli import main, targets
from ferry_operator.cli.client import Local
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.cli.targets import Target, hoist
from ferry_operator.kube.api.port import ApiError
from ferry_operator.local.registry import NoSuchJob, RegisteredRun, Registry, born
from tests.unit.cli.fakes.fake_user import FakeUser, user

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without runs and without a kubeconfig."""
    monkeypatch.setenv("FERRY_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeUser:
    """What is connected to, with a job nbq5; asked for with `used`."""
    found = user()
    monkeypatch.setattr(targets, "connect", lambda where: found)
    return found


def runs_here(home: Path, name: str = "nbq5") -> None:
    Registry(home).add(
        RegisteredRun(name, f"{name}-1", "http://127.0.0.1:1", "s", os.getpid(), born(os.getpid()), "/d", 1.0)
    )


def has_kubeconfig(home: Path) -> None:
    (home / ".kube").mkdir()
    (home / ".kube" / "config").write_text("{}")


@pytest.mark.parametrize(
    ("line", "hoisted"),
    [
        ("status a -n x", "-n x status a"),
        ("status -nx a", "-n x status a"),
        ("--context=c scale a --workers 3 --namespace y", "--context=c --namespace y scale a --workers 3"),
        ("status a --kubeconfig f --json", "--kubeconfig f status a --json"),
        ("run job.yaml --set a=1 -- -n x", "run job.yaml --set a=1 -- -n x"),
        ("status a -n", "-n status a"),
        ("run --no-keep job.yaml", "run --no-keep job.yaml"),
    ],
)
def test_options_of_the_cluster_may_stand_anywhere(line: str, hoisted: str) -> None:
    assert hoist(line.split()) == hoisted.split()


def test_a_run_of_this_machine_comes_first(home: Path, cluster: FakeUser) -> None:
    has_kubeconfig(home)
    assert isinstance(targets.find(Target(), "nbq5"), RemoteJob)
    runs_here(home)
    assert isinstance(targets.find(Target(), "nbq5"), Local)
    for where in (Target(plugin=True), Target(namespace="jobs"), Target(context="kind"), Target(kubeconfig="f")):
        assert isinstance(targets.find(where, "nbq5"), RemoteJob)


def test_what_only_a_cluster_knows_is_refused_for_a_run_of_this_machine(home: Path, cluster: FakeUser) -> None:
    has_kubeconfig(home)
    runs_here(home)
    with pytest.raises(Refusal, match="nbq5 runs on this machine"):
        targets.on_cluster(Target(), "nbq5")
    assert targets.on_cluster(Target(namespace="jobs"), "nbq5").name == "nbq5"


def test_without_a_cluster_it_says_what_was_looked_at(home: Path) -> None:
    runs_here(home, "other")
    with pytest.raises(NoSuchJob, match=r"running: other; and there is no cluster to look at: no file ~/.kube/config"):
        targets.find(Target(), "nbq5")
    with pytest.raises(Refusal, match=r"no file /nowhere \(--kubeconfig\)"):
        targets.find(Target(kubeconfig="/nowhere"), "nbq5")
    with pytest.raises(Refusal, match=r"no file ~/.kube/config \(the default\)"):
        targets.find(Target(plugin=True), "nbq5")


def test_a_pod_without_a_kubeconfig_has_its_service_account_unless_another_was_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(Refusal, match="service account of this pod"):
        targets.connect(Target(plugin=True))
    with pytest.raises(Refusal, match="no file /nowhere"):
        targets.connect(Target(kubeconfig="/nowhere"))
    monkeypatch.setenv("KUBECONFIG", "/elsewhere")
    with pytest.raises(Refusal, match=r"no file /elsewhere \(KUBECONFIG\)"):
        targets.connect(Target(plugin=True))


def test_a_job_that_is_nowhere_names_both_places(home: Path, cluster: FakeUser) -> None:
    has_kubeconfig(home)
    with pytest.raises(NoSuchJob, match=r"runs here.*; no StreamJob called 'x' in namespace jobs \(context kind\)"):
        targets.find(Target(), "x")


def test_a_cluster_that_does_not_answer_is_a_failure(home: Path, cluster: FakeUser) -> None:
    has_kubeconfig(home)

    def silent(*_: object) -> None:
        raise ApiError(0, "Unreachable", "the API server does not answer")

    cluster.get = silent  # type: ignore[assignment, method-assign]
    with pytest.raises(Exception, match=r"no job called 'nbq5' runs here.*does not answer"):
        targets.find(Target(), "nbq5")


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        ("{}", None, "cannot be used"),
        ("- a", None, "cannot be used"),
        ("a: [", None, "cannot be used"),
        ("apiVersion: v1", "other", "context other cannot be used"),
    ],
)
def test_a_broken_kubeconfig_is_named(home: Path, text: str, context: str | None, said: str) -> None:
    (home / "broken").write_text(text)
    with pytest.raises(Refusal, match=rf"kubeconfig {home}/broken.*{said}|{said}"):
        targets.connect(Target(kubeconfig=str(home / "broken"), context=context))


CONFIG = """
current-context: one
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: one, context: {cluster: c, user: u}}
- {name: two, context: {cluster: c, user: u, namespace: streams}}
"""


def test_context_and_namespace_are_chosen_as_kubectl_does(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config").write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", f"{home}/missing{os.pathsep}{home}/config")
    found = [
        (api.context, api.namespace)
        for api in map(targets.connect, (Target(), Target(context="two"), Target(context="two", namespace="x")))
    ]
    assert found == [("one", "default"), ("two", "streams"), ("two", "x")]
    (home / "config").write_text(CONFIG.replace("current-context: one", ""))
    assert targets.connect(Target(context="two")).namespace == "streams"
    with pytest.raises(Refusal, match="cannot be used"):
        targets.connect(Target())


def test_the_client_of_kubernetes_is_not_imported_before_a_cluster_is_meant() -> None:
    code = "import sys, ferry_operator.cli.main; print([m for m in ('kubernetes', 'kopf') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_plugin_is_a_program_that_kubectl_finds() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl-streamjob"].partition(":")
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize(("share", "many"), [("1/2", 3), ("0.25", 1), ("1", 7), ("0.001", 1), ("3/3", 7)])
def test_a_share_of_what_an_instance_leads(share: str, many: int) -> None:
    assert main.first_share(list(range(7)), share, "0.0") == list(range(many))


@pytest.mark.parametrize("share", ["0", "2", "1/0", "-1/2", "half", "1e9", "3/2", "9" * 99])
def test_a_share_is_above_nothing_and_at_most_all(share: str) -> None:
    with pytest.raises(Refusal, match="at most 1"):
        main.first_share([1, 2], share, "0.0")
    with pytest.raises(Refusal, match=r"0\.0 leads no virtual node"):
        main.first_share([], "1/2", "0.0")
