"""Drivers that run other people's code do what they like: the other jobs, and the operator, do not notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.port import JOBS, PODS
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.manifests.release import Installation, run_key
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.operators import KEY, Operators, addresses, job
from tests.kube.stand_ins import Driver, Kubelets

pytestmark = pytest.mark.kube

FOLLOWED_SECONDS = 2.0
"""Within which a pod is made for an edit."""

MEMORY_KB = 400_000
"""That an operator may have used at its peak; its container has 512 MiB."""

WORKERS_MAX = 4

Write = Callable[[bytes], object]


def head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


def drips(write: Write) -> None:
    for byte in head(60) + b" " * 60:
        write(bytes([byte]))
        time.sleep(1.0)


def drips_its_body(write: Write) -> None:
    write(head(600))
    for _ in range(600):
        write(b" ")
        time.sleep(1.0)


def floods(write: Write) -> None:
    write(head(300 << 20))
    for _ in range(300):
        write(b"[" * (1 << 20))


def babbles(write: Write) -> None:
    """As many words as are read, and none of a status."""
    body = b'{"alive": [' + b"1," * 2_000_000 + b"1]}"
    write(head(len(body)))
    write(body)


def hangs(write: Write) -> None:
    Event().wait(3600.0)


def politely(manner: Callable[[Write], None]) -> Callable[[Write], None]:
    """Without a complaint when the operator hangs up."""

    def talk(write: Write) -> None:
        with suppress(OSError):
            manner(write)

    return talk


BAD = {"drips": drips, "drips-more": drips_its_body, "floods": floods, "babbles": babbles, "hangs": hangs}
GOOD = ("good-0", "good-1", "good-2")


@contextmanager
def jobs(operators: Operators) -> Iterator[dict[str, Driver]]:
    """All of them, at rest, each with its stand-ins; their drivers."""
    kubectl, found = operators.kubectl, dict[str, Driver]()
    release = Installation(str(kubectl.namespace), "", "", KEY)
    with ExitStack() as ends:
        for name in (*BAD, *GOOD):
            kubectl.apply(job(name))
            driver = Driver(next(addresses), run_key(release, kubectl.get("sj", name)["metadata"]["uid"]))
            ends.callback(driver.close)
            kubelets = Kubelets(str(kubectl.namespace), name, driver)
            ends.callback(kubelets.close)
            found[name] = driver
        for name in found:
            wait_until(
                lambda name=name: condition(kubectl, name, "Ready") == ("True", "Running"), f"{name} at rest", 60
            )
        yield found


def condition(kubectl: Kubectl, name: str, kind: str) -> tuple[str, str]:
    for one in kubectl.get("sj", name).get("status", {}).get("conditions", ()):
        if one["type"] == kind:
            return str(one["status"]), str(one["reason"])
    return "", ""


class Edits:
    """Scales the good jobs in turn, and takes the time until the operator follows."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.seconds: list[float] = []
        self._api = KubeApi(str(kubectl.namespace), lambda *_: None)
        self._workers = dict.fromkeys(GOOD, 2)

    def edit(self, name: str) -> None:
        if self._workers[name] == WORKERS_MAX:
            self._scale(name, 2)
            wait_until(lambda: len(self._pods(name)) == 3, f"{name} with two workers again", 30)
        count = self._workers[name] + 1
        began = time.monotonic()
        self._scale(name, count)
        pod = names.worker_pod(name, count - 1)
        wait_until(lambda: pod in self._pods(name), f"another worker of {name}", 30, every=0.05)
        self.seconds.append(time.monotonic() - began)

    def _scale(self, name: str, count: int) -> None:
        self._api.patch(JOBS, name, {"spec": {"workers": count}})
        self._workers[name] = count

    def _pods(self, name: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._api.find(PODS, f"{names.JOB}={name}")]


def peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [15.0, pytest.param(600.0, marks=pytest.mark.long)])
def test_bad_drivers_are_their_own_jobs_trouble(
    operators: Operators, seconds: float, times: Callable[[str, float], None]
) -> None:
    operator = operators.start()
    with jobs(operators) as drivers:
        edits = Edits(operators.kubectl)
        for name, manner in BAD.items():
            drivers[name].manner = politely(manner)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name in GOOD:
                edits.edit(name)
            time.sleep(1.0)
        assert operator.process.poll() is None and operator.leads and "ok" in operator.get("/healthz")
        assert "no longer leads" not in operator.log.read_text()
        for name in BAD:
            wait_until(
                lambda name=name: condition(operators.kubectl, name, "Degraded") == ("True", "DriverUnheard"),
                f"{name} is told of", 20,
            )  # fmt: skip
            assert condition(operators.kubectl, name, "Ready")[0] == "False"
        assert peak_kb(operator.process.pid) < MEMORY_KB
        times(f"{len(edits.seconds)} edits beside bad drivers, the slowest", max(edits.seconds))
        assert max(edits.seconds) < FOLLOWED_SECONDS, sorted(edits.seconds)
        for name in BAD:
            drivers[name].manner = None
        for name in BAD:
            wait_until(lambda name=name: condition(operators.kubectl, name, "Ready")[0] == "True", f"{name} again", 30)


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_a_size_that_fits_nowhere_takes_nothing_down(operators: Operators, part: str) -> None:
    with operators.job(failure={"progressDeadline": "10s"}) as found:
        found.kubelets.has_room = lambda pod: "9Ti" not in str(pod["spec"])
        wait_until(lambda: found.kubectl.get("sj", "a")["status"].get("memory", {}).get("good"), "good spec", 30)
        before = {pod["metadata"]["uid"] for pod in found.kubectl.items("pods")}
        found.kubectl.patch("sj/a", {"spec": {"kubernetes": {part: {"memory": "9Ti"}}}})
        wait_until(lambda: len(found.pods()) == 4, "a pod that looks for room", 20)
        wait_until(lambda: found.condition("Degraded").get("reason") == "DoesNotFit", "refusal", 40)
        found.wait_settled(2)
        assert {pod["metadata"]["uid"] for pod in found.kubectl.items("pods")} == before
        assert "0/3 nodes: no room" in found.condition("Degraded")["message"]


def test_the_api_server_takes_pods_that_are_kept_from_nodes(kubectl: Kubectl) -> None:
    terms = [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
    ]
    affinity = {"nodeAffinity": {pods.REQUIRED: {"nodeSelectorTerms": terms}}}
    kubectl.create(
        *(
            pods.excluding(
                {
                    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {}},
                    "spec": {"affinity": given, "containers": [{"name": "a", "image": "a"}]},
                },
                [f"n{i}" for i in range(64)],
            )
            for name, given in (("with", affinity), ("without", None))
        )
    )  # fmt: skip
