"""Fixtures of the tests on Kubernetes: a control plane, a cluster, a namespace for each test. Everything is removed.

What is missing is installed and compiled before the first test, with the progress on the terminal: no test's time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster, Lab, NoCluster, existing
from tests.kube.kubectl import Kubectl, KubectlError, wait_until
from tests.kube.operators import Operators, Running, restricted

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"

NODES = 3

UP_SECONDS = 400.0
"""Unpacking big images takes the most of it, the first time."""

NODE_FIXTURES = {"cluster", "lab"}
"""Fixtures that need nodes; without them an API server is enough."""

DELETE_SECONDS = 90.0

TEST_LABEL = "ferry.dev/test=true"
"""On every namespace of a test."""

MEASURED = pytest.StashKey[list[tuple[str, float]]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m "kube and not nodes"` are the tests for which an API server is enough."""
    for item in items:
        if needs_nodes(item):
            item.add_marker(pytest.mark.nodes)


def needs_nodes(item: pytest.Item) -> bool:
    """Does this test run pods?"""
    uses = NODE_FIXTURES & set(getattr(item, "fixturenames", ()))
    return bool(uses and item.get_closest_marker("kube"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get ready when a test of this folder is about to run."""
    items = [item for item in session.items if item.get_closest_marker("kube")]
    if not items or session.config.option.collectonly:
        return
    try:
        if existing() is not None:
            return
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            Lab.setup("nodes" if any(map(needs_nodes, items)) else "api")
    except NoCluster as missing:
        raise pytest.UsageError(str(missing)) from None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the tests have measured."""
    measured = config.stash.get(MEASURED, [])
    if measured:
        terminalreporter.section("times")
    for what, seconds in measured:
        terminalreporter.write_line(f"{seconds:7.1f} s  {what}")


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Called with what was measured and its seconds: printed at the end of the run, and to the log of the test."""
    measured = request.config.stash.setdefault(MEASURED, [])

    def note(what: str, seconds: float) -> None:
        print(f"{what}: {seconds:.1f} s")
        measured.append((what, seconds))

    return note


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl for an API server; no pod need ever run there."""
    given = existing()
    if given is not None:
        yield given
        settle(given)
        return
    lab = Lab(f"test-{os.getpid()}-api")
    try:
        lab.run("api-up")
        yield lab.kubectl()
    finally:
        keep_logs(lab, tmp_path_factory.getbasetemp() / "api-logs")
        lab.run("down")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with Ferry's images, or the cluster the caller named."""
    given = existing()
    if given is not None:
        yield Cluster(given, None, node_names(given))
        settle(given)
        return
    mine = Lab(os.environ.get("FERRY_LAB", "default"))
    if "FERRY_LAB" in os.environ and mine.is_up():
        yield Cluster(mine.kubectl(), mine, node_names(mine.kubectl()))
        settle(mine.kubectl())
        return
    yield from new_nodes(f"test-{os.getpid()}", NODES, tmp_path_factory.getbasetemp() / "cluster-logs")


def new_nodes(name: str, count: int, logs: Path) -> Iterator[Cluster]:
    """A lab with Ferry's images; it is taken down at the end, and its logs are kept."""
    lab = Lab(name)
    try:
        lab.run("up", str(count), *image_archives(), timeout=UP_SECONDS)
        yield Cluster(lab.kubectl(), lab, node_names(lab.kubectl()))
        settle(lab.kubectl())
    finally:
        keep_logs(lab, logs)
        lab.run("down")


@pytest.fixture
def lab(cluster: Cluster) -> Iterator[Lab]:
    """Nodes that may be killed and cut; after the test all of them are up and healed."""
    if cluster.lab is None:
        pytest.skip("the nodes of an existing cluster are left alone")
    yield cluster.lab
    restore(cluster, cluster.lab)


@pytest.fixture(scope="session")
def crd(control_plane: Kubectl) -> Iterator[Kubectl]:
    """The control plane with Ferry's resource; one that was there before the tests stays."""
    yield from installed_crd(control_plane)


@pytest.fixture
def kubectl(crd: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, on the control plane."""
    yield from own_namespace(crd)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, on the cluster."""
    for own in own_namespace(cluster.kubectl):
        yield own
        own.run("delete", "pods", "--all", "--now", "--timeout=60s", timeout=90)  # they need not be waited for politely


def installed_crd(kubectl: Kubectl) -> Iterator[Kubectl]:
    """With Ferry's resource, for as long as it is used."""
    files = sorted(CRDS.glob("*.yaml"))
    assert files, f"no custom resource definition in {CRDS}"
    names = [name for file in files for name in re.findall(r"^  name: (\S+\.ferry\.dev)$", file.read_text(), re.M)]
    before = {name for name in names if kubectl.find("crd", name)}
    for file in files:
        kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(file))
    try:
        for name in names:
            # kubectl itself gives up where there are no conditions yet.
            wait = "wait", "--for=condition=Established", f"crd/{name}", "--timeout=20s"
            wait_until(lambda wait=wait: kubectl.run(*wait), f"definition of {name}", 20)
        yield kubectl
    finally:
        for name in names:
            if name not in before:
                kubectl.run("delete", "crd", name, "--wait=false")


def own_namespace(kubectl: Kubectl) -> Iterator[Kubectl]:
    """A new namespace. Its deletion begins when the test ends; that all of them end is checked by `settle`."""
    name = f"ferry-test-{uuid.uuid4().hex[:8]}"
    key, _, value = TEST_LABEL.partition("=")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {key: value}}}
    kubectl.create(namespace)
    try:
        yield kubectl.within(name)
    finally:
        kubectl.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def settle(kubectl: Kubectl) -> None:
    """Return when every namespace of a test is gone; says what is left of one otherwise."""
    for namespace in kubectl.items("namespaces", "-l", TEST_LABEL):
        name = namespace["metadata"]["name"]
        try:
            kubectl.run("wait", "--for=delete", f"namespace/{name}", f"--timeout={DELETE_SECONDS:g}s", timeout=120)
        except KubectlError as late:
            found = kubectl.find("namespace", name) or {}
            told = [c["message"] for c in found.get("status", {}).get("conditions", ()) if c["status"] == "True"]
            raise AssertionError(f"namespace {name} is not gone after {DELETE_SECONDS:g} s: {told}") from late


def image_archives() -> list[str]:
    """Those of FERRY_KUBE_IMAGES, divided by ':', or what `images/build` has left."""
    named = os.environ.get("FERRY_KUBE_IMAGES")
    if named is not None:
        return [one for one in named.split(":") if one]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return [str(found) for found in sorted((cache / "ferry" / "images").glob("*.tar"))]


def node_names(kubectl: Kubectl) -> tuple[str, ...]:
    """Names of the nodes."""
    return tuple(node["metadata"]["name"] for node in kubectl.items("nodes"))


def restore(cluster: Cluster, lab: Lab) -> None:
    """Every node up, connected, ready, and taken by the scheduler, which is told a while after the node is ready."""
    for name in cluster.nodes:
        number = int(name.removeprefix("n"))
        if not lab.is_alive(number):
            lab.boot(number)
        lab.heal(number)
        lab.thaw(number)
        cluster.kubectl.run("uncordon", name)
    for name in cluster.nodes:
        cluster.kubectl.run("wait", "--for=condition=Ready", f"node/{name}", "--timeout=60s", timeout=90)
        wait_until(
            lambda name=name: not cluster.kubectl.get("node", name)["spec"].get("taints"), f"{name} for pods", 60.0
        )


def keep_logs(lab: Lab, to: Path) -> None:
    """Copy the logs of a lab that is about to be removed; pytest keeps them for a while."""
    for pattern in ("*.log", "n*/*.log", "n*/log/**/*.log"):
        for log in lab.directory.glob(pattern):
            target = to / log.relative_to(lab.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, target)


# --- the operator on a control plane without nodes


@pytest.fixture(scope="session")
def controllers(control_plane: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The garbage collector and the controller of namespaces, which a control plane without nodes does not have."""
    if existing() is not None:
        yield
        return
    lab = Lab(f"test-{os.getpid()}-api")
    program = lab.run("program", "kube-controller-manager").strip()
    if not Path(program).exists():
        Lab.setup("nodes")
    log = (tmp_path_factory.getbasetemp() / "controller-manager.log").open("wb")
    wanted = "garbage-collector-controller,namespace-controller,disruption-controller,serviceaccount-controller,clusterrole-aggregation-controller"
    command = [
        program, f"--kubeconfig={control_plane.kubeconfig}", f"--controllers={wanted}", "--leader-elect=false",
        "--bind-address=127.0.0.1", "--secure-port=0",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all operators of the session note their calls; FERRY_RECORD_CALLS may name the file."""
    return Path(os.environ.get("FERRY_RECORD_CALLS") or tmp_path_factory.mktemp("calls") / "calls.jsonl")


@pytest.fixture
def operators(
    kubectl: Kubectl, controllers: None, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operators]:
    """None runs yet; all end with the test, and their logs must be clean."""
    monkeypatch.setenv("KUBECONFIG", str(kubectl.kubeconfig))
    found = Operators(kubectl, tmp_path, restricted(kubectl, tmp_path), calls)
    yield found
    found.close()
    for one in found.running:
        assert not one.complaints(), "\n".join(one.complaints())


@pytest.fixture
def running(operators: Operators) -> Iterator[Running]:
    """A job with two workers, looked after by one operator."""
    with operators.job() as found:
        yield found
