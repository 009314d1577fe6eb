"""The operator dies at every call of a scale, on a real API server: whoever comes next brings the job to the same end.

Right after a call is as good as right before the next one: between the two only the memory of the process changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from ferry.contract.errors import Fault
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, JOBS, PODS, SECRETS, Api, Kind
from ferry_operator.kube.manifests.release import Installation, run_key
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.reconcile import Reconciler
from ferry_operator.kube.store import Store
from tests.kube.kubectl import Kubectl
from tests.kube.operators import KEY, addresses, job
from tests.kube.stand_ins import Driver, Kubelets

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

T = TypeVar("T")

MANY, FEW = 4, 2
"""Workers of the job, by turns."""

ROUNDS_MAX = 60
"""Of a scale, with a death in it."""

QUIET_ROUNDS = 2
"""Without any write, before all counts as done."""


class Killed(BaseException):
    """The operator's process is no more."""


class Mortal:
    """The API server and the driver, for an operator that dies when it has made so many more calls that change something."""

    def __init__(self, api: Api) -> None:
        self._api, self._link = api, DriverClient()
        self.get, self.find = api.get, api.find
        self.status, self.submitted, self.close = self._link.status, self._link.submitted, self._link.close
        self.left: int | None = None
        """None: it lives on"""
        self.calls = 0
        self.deaths = 0
        self.made: list[str] = []
        """names of pods"""

    def create(self, kind: Kind, document: Doc) -> Doc:
        made = self._api.create(kind, document)
        if kind is PODS:
            self.made.append(made["metadata"]["name"])
        return self._survive(made)

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        return self._survive(self._api.replace(kind, name, document))

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        return self._survive(self._api.patch(kind, name, document, subresource))

    def json_patch(self, kind: Kind, name: str, steps: Sequence[dict[str, Any]]) -> Doc:
        return self._survive(self._api.json_patch(kind, name, steps))

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        self._survive(self._api.delete(kind, name, uid, version, grace))

    def submit(self, *what: Any) -> None:
        return self._survive(self._link.submit(*what))

    def stop(self, *what: Any) -> bool:
        return self._survive(self._link.stop(*what))

    def _survive(self, answer: T) -> T:
        self.calls += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left, self.deaths = None, self.deaths + 1
                raise Killed
        return answer


class World:
    """A job on an API server without nodes, and an operator that is followed by another one when it dies."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.plain = KubeApi(str(kubectl.namespace), lambda verb, resource, code: None)
        self.world = Mortal(self.plain)
        self.release = Installation(str(kubectl.namespace), "ferry:1", "redis://127.0.0.1:1/0", KEY)
        uid = self.plain.create(JOBS, job(workers=FEW))["metadata"]["uid"]
        self.driver = Driver(next(addresses), run_key(self.release, uid))
        self.kubelets = Kubelets(self.release.namespace, "a", self.driver, alone=False)
        self.token = 0
        self.begin()

    def begin(self) -> None:
        """A new process with a higher token, that knows nothing."""
        self.token += 1
        self.store = Store()
        link: Any = self.world
        self.operator = Reconciler(self.world, self.store, self.release, link, Metrics(), self.token)

    def round(self) -> None:
        """A listing and a pass, and what the cluster makes of it."""
        ours = f"{names.MANAGED}={names.MANAGER}"
        try:
            for kind, selector in ((JOBS, ""), (PODS, ours), (BUDGETS, ours)):
                before = self.store.uids(kind)
                self.store.sync(kind, self.plain.find(kind, selector), before)
            with suppress(Fault):
                self.operator.reconcile("a")
        except Killed:
            self.begin()
        self.kubelets.round()

    def scale(self, workers: int, left: int | None = None) -> Doc:
        """What is there in the end, when the operator dies after so many calls."""
        self.world.made.clear()
        self.plain.patch(JOBS, "a", {"spec": {"workers": workers}})
        self.world.left = left
        quiet = 0
        for _ in range(ROUNDS_MAX):
            calls = self.world.calls
            self.round()
            quiet = quiet + 1 if self.world.calls == calls and self.at_rest(workers) else 0
            if quiet == QUIET_ROUNDS:
                self.world.left = None
                return self.final()
        raise AssertionError(f"no rest with {workers} workers: {self.store.job('a')}")

    def at_rest(self, workers: int) -> bool:
        """As the last listing tells."""
        document = self.store.job("a")
        status = (document or {}).get("status") or {}
        truth = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return (
            document is not None
            and status.get("observedGeneration") == document["metadata"]["generation"]
            and (document["spec"]["workers"], status.get("workers")) == (workers, workers)
            and len(self.store.pods("a")) == workers + 1
            and [truth[kind] for kind in ("Ready", "Progressing", "Handover")] == ["True", "False", "False"]
        )

    def final(self) -> Doc:
        """Every object without what tells processes and moments apart, and where state is."""
        one, pods = self.plain.get(JOBS, "a"), self.plain.find(PODS, f"{names.JOB}=a")
        status = {key: value for key, value in one["status"].items() if key not in PASSING}
        status["memory"]["good"] = status["memory"]["good"]["spec"]
        truth = [[c["type"], c["status"], c["reason"], c["message"]] for c in status["conditions"]]
        status["conditions"] = [
            words[:3] if words[0] == "SpecInForce" else words for words in truth
        ]  # it names the generation
        return {
            "job": (one["spec"], status, notes(one)),
            "pods": {pod["metadata"]["name"]: (pod["spec"], pod["metadata"]["labels"], notes(pod)) for pod in pods},
            "settings": self.plain.get(SECRETS, names.run_secret("a"))["data"],
            "budgets": self.budgets(),
            "used": self.driver.used(),
            "copies": [len(group) for group in self.driver.groups],
        }

    def budgets(self) -> list[Doc]:
        """Without their numbers, which follow some seconds later; they are never too low."""
        specs = [dict(budget["spec"]) for budget in self.plain.find(BUDGETS)]
        assert all(spec.pop("minAvailable") >= len(self.store.pods("a")) - 1 for spec in specs)
        return specs

    def lives(self) -> dict[str, str]:
        """Uids of the pods."""
        return {name: pod["metadata"]["uid"] for name, pod in self.kubelets.pods().items()}

    def close(self) -> None:
        """End what stands in for others."""
        self.kubelets.close()
        self.driver.close()
        self.world.close()


PASSING = ("token", "epoch", "progress", "lastHandover", "lastHandoverSeconds", "observedGeneration")
"""Fields of the status that say when, or who."""


def notes(document: Doc) -> dict[str, str]:
    """Annotations, without who wrote them and when."""
    found = document["metadata"].get("annotations") or {}
    return {key: value for key, value in found.items() if key not in (names.TOKEN, names.EPOCH, names.WITHOUT_SURGE)}


@pytest.fixture
def world(kubectl: Kubectl, controllers: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("KUBECONFIG", str(kubectl.kubeconfig))
    found = World(kubectl)
    yield found
    found.close()


def test_wherever_the_operator_dies_a_scale_has_the_same_end(world: World) -> None:
    world.scale(FEW)
    stay = world.lives()
    expected, made = {}, {}
    for workers in (MANY, FEW, MANY, FEW):  # from the first scale-in on, the workers are recorded
        expected[workers], made[workers] = world.scale(workers), sorted(world.world.made)
    assert made == {MANY: ["a-worker-2", "a-worker-3"], FEW: []}
    for left in itertools.count():
        before = world.world.deaths
        for workers in (MANY, FEW):
            assert world.scale(workers, left) == expected[workers], f"died after call {left} of the scale to {workers}"
            assert sorted(world.world.made) == made[workers], "every pod was made once"
        if world.world.deaths == before:
            break  # no scale has so many calls
    assert world.world.deaths > 15
    assert world.lives() == stay and not world.kubelets.violations and len(world.kubelets.lives) == 1
