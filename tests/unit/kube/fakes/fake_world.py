"""A small cluster in memory: an API server, kubelets, a scheduler, and drivers that move one virtual node a round.

Time stands still but for `round`. The operator of the world may be killed anywhere and begun again with another token.
"""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from typing import Any

from ferry.contract.errors import NO_TRANSPORT, UNDECIDED, Unreachable
from ferry.contract.exit_codes import ExitCode
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.settings import NOTHING
from ferry.contract.status import (
    CheckpointStatus,
    Links,
    LoadStatus,
    MovesStatus,
    ProgressStatus,
    ReportedProblem,
    SparkStatus,
    Status,
)
from ferry.contract.work import WorkReport
from ferry_operator.control import decide as d
from ferry_operator.control.driver_client import DriverRefuses, PlacementRefused, from_wire, to_wire
from ferry_operator.control.observed import Submitted
from ferry_operator.job.quantities import Quantity
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, JOBS, NODES, PODS, SECRETS, ApiError, Deposed, Kind
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.facts import stamp
from ferry_operator.kube.reconcile import Reconciler
from ferry_operator.kube.store import Store
from tests.unit.kube.fakes.fake_api import FakeApi

RELEASE = Installation("jobs", "ferry:1", "redis://127.0.0.1:1/0", "key", "ferry-job")

PROXY = "a-proxy"
"""Container that a service mesh injects; in reports of a kubelet it is before the driver."""

CAPACITY = 2
"""Worker pods that a node takes."""


def job(name: str = "nbq5", **spec: Any) -> Doc:
    return {
        "apiVersion": "ferry.dev/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": name, "annotations": {}},
        "spec": {"pipeline": {"module": "jobs.nbq5"}, "workers": 2, "state": {"virtualNodes": 8}, **spec},
    }


class Killed(BaseException):
    """The operator's process is no more."""


class FakeDriver:
    """The coordinator in one driver's life: moves towards what is desired, one virtual node a round."""

    def __init__(self, world: World, pod: str, generation: int, groups: list[list[str]]) -> None:
        self.world, self.pod, self.generation = world, pod, generation
        self.groups = groups
        self.desired: Doc | None = None
        self.token, self.bandwidth = 0, -1
        self.began = world.epoch
        self.age = 0
        self.suspends = 0
        """requests to be suspended"""

    def alive(self) -> list[str]:
        found = []
        for (kind, _), pod in self.world.api.objects.items():
            index = pod["metadata"].get("labels", {}).get(names.WORKER) if kind == PODS else None
            if index is not None and self.world.obeys(pod) and self.world.hears(pod):
                count = int(pod["metadata"]["annotations"].get(names.INSTANCES, "1"))
                found += [f"{index}.{i}" for i in range(count)]
        return sorted(found)

    def round(self) -> None:
        alive = self.alive()
        self.age += 1
        if self.world.fails_epochs and self.age > 3:
            self.world.driver_ends(1, "ValueError: a record says nonsense")
            return
        if self.suspends and not self.world.no_checkpoint:
            self.world.take_checkpoint(None)
            self.world.driver_ends(
                ExitCode.SUSPENDED, f"up\nsuspended: checkpoint {self.world.checkpoints[-1].number}\n"
            )
            return
        if not (self.world.fails_epochs or self.world.stands or self.world.no_records):
            self.world.epoch += 1
        # A member that is gone leaves its group; the next in sync leads. A group without members waits for one.
        self.groups = [[i for i in group if i in alive] or group for group in self.groups]
        if self.desired is None:
            return
        for vnode, wanted in enumerate(self.desired["placements"]):
            living = [i for i in wanted if i in alive]
            if living and self.groups[vnode] != living:
                if not self.world.gives_up:
                    self.groups[vnode] = living
                return

    def settled(self) -> bool:
        alive = self.alive()
        return self.desired is not None and all(
            group == [i for i in wanted if i in alive] for group, wanted in zip(self.groups, self.desired["placements"])
        )

    def status(self) -> Status:
        looked = self.age >= self.world.looks_back
        epoch, began, rows = (self.world.epoch, self.began, 10) if looked else (-1, None, 0)
        rates, sizes = self.world.rates, self.world.sizes
        loads = [(rates.get(v, 1.0), sizes.get(v, 1.0)) for v in range(len(self.groups))]
        return Status(
            job="nbq5", generation=self.generation, phase="ingest" if self.world.stands else "idle", epoch=epoch,
            version=(1, 1), groups=[(list(g), []) for g in self.groups], settled=self.settled(),
            desired=self.desired["number"] if self.desired else 0, alive=self.alive(), journal_up=True, finished=False,
            problems=self.world.problems, notices=self.world.gives_up,
            progress=ProgressStatus(began=began, rows=rows), spark=self.world.spark,
            load=LoadStatus(loads, rows_per_second=1.0, epoch_seconds=0.1, work=self.world.work),
            moves=MovesStatus(
                given_up=len(self.world.gives_up), quiet_seconds=self.world.quiet, rolled_back=self.world.rolled_back,
                bandwidth=self.bandwidth,
            ),
            transport=self.world.links, checkpoint=self.world.checkpoints[-1] if self.world.checkpoints else None,
        )  # fmt: skip


class FakeLink:
    """What the operator has of a driver; `world.driver` is None while none serves."""

    def __init__(self, world: World) -> None:
        self.world = world

    def status(self, url: str, secret: str) -> Status | None:
        return self.world.driver.status() if self.world.driver is not None and not self.world.hangs else None

    def submitted(self, url: str, secret: str, generation: int) -> Submitted | None:
        driver = self.world.driver
        return from_wire(driver.desired, generation) if driver is not None and driver.desired is not None else None

    def submit(self, url: str, secret: str, action: d.SubmitDesired, token: int) -> None:
        self.world.api.before("submit", JOBS, "")
        driver = self.world.driver
        if driver is None:
            raise Unreachable("nobody is there")
        if token < driver.token or self.world.refuses_placements:
            raise PlacementRefused(f"the driver refuses plan {action.plan.number} with 422: too few")
        driver.token = token
        if driver.desired is None or action.plan.number > driver.desired["number"]:
            driver.desired = to_wire(action, token)
        self.world.api.after("submit", JOBS, "")

    def limit_copies(self, url: str, secret: str, bandwidth: int) -> None:
        self.world.api.before("limit", JOBS, "")
        if self.world.driver is not None:
            self.world.driver.bandwidth = bandwidth
        self.world.api.after("limit", JOBS, "")

    def stop(self, url: str, secret: str) -> bool:
        self.world.api.before("stop", JOBS, "")
        if self.world.driver is not None:
            self.world.driver_ends(0)
        self.world.api.after("stop", JOBS, "")
        return True

    def checkpoint(self, url: str, secret: str, name: str | None) -> int:
        self.world.api.before("checkpoint", JOBS, "")
        if self.world.no_checkpoint:
            raise DriverRefuses("the driver refuses a checkpoint with 409: it has no location")
        self.world.take_checkpoint(name)
        self.world.api.after("checkpoint", JOBS, "")
        return self.world.checkpoints[-1].number or 0

    def suspend(self, url: str, secret: str) -> None:
        self.world.api.before("suspend", JOBS, "")
        if self.world.driver is not None:
            self.world.driver.suspends += 1
        self.world.api.after("suspend", JOBS, "")

    def close(self) -> None:
        pass


class World:
    def __init__(self, nodes: int = 3, capacity: int = CAPACITY) -> None:
        self.now = 1_000_000.0
        self.release = RELEASE
        self.capacity = capacity
        self.api = FakeApi(lambda: self.now)
        self.driver: FakeDriver | None = None
        self.lives = 0
        self.epoch = -1
        """the last one that any driver finished"""
        self.groups: list[list[str]] = []
        self.token = 0
        self.silent: list[str] = []
        self.refuses_image = ""
        self.early = False
        """sidecars obey the driver before their pods run as a whole"""
        self.lingers = 0.0
        """seconds for which a pod lives on after it was deleted"""
        self.old_nodes: dict[str, facts.KubeNode] | None = None
        """what the operator takes for the nodes, as if they had been listed before"""
        self.ignores_affinity = False
        """the scheduler does not heed what pods and nodes say"""
        self.lacks_device = ""
        """a resource that is given out, and nothing is behind it"""
        self.links = Links()
        self.rates: dict[int, float] = {}
        """records per second, of virtual nodes that have not one"""
        self.sizes: dict[int, float] = {}
        """bytes of virtual nodes that have not one"""
        self.quiet = 0.0
        """seconds for which no group has changed, as the driver tells"""
        self.fails_epochs = False
        """every epoch ends the driver"""
        self.spark = SparkStatus()
        """what drivers say of their executors"""
        self.in_mesh = False
        """every pod gets a proxy that never ends"""
        self.stands = False
        """an epoch is under way, and does not come to its end"""
        self.hangs = False
        """the driver that runs answers nobody, and its kubelet says so"""
        self.refuses_placements = False
        self.gives_up: tuple[ReportedProblem, ...] = ()
        """why nothing moves"""
        self.rolled_back = ""
        """why the plan in force was"""
        self.looks_back = 0
        """rounds until a driver has found out what the job has done"""
        self.no_records = False
        """no epoch begins"""
        self.problems: tuple[ReportedProblem, ...] = ()
        """what the driver says of itself"""
        self.checkpoints: list[CheckpointStatus] = []
        """complete ones, of all runs"""
        self.work: WorkReport | None = None
        """what the driver has measured"""
        self.no_checkpoint = False
        """none can be written"""
        self.runs: dict[str, str | None] = {}
        """what drivers were told: runs, and what each begins from"""
        self.ends_with: tuple[int, str] | None = None
        self.ending: dict[str, float] = {}
        for i in range(nodes):
            self.api.add_node(f"n{i}")
        self.begin_operator()

    # ---- the operator
    def begin_operator(self) -> None:
        """A new process with a higher token, that knows nothing."""
        self.token += 1
        self.store = Store()
        self.operator = Reconciler(
            self.api, self.store, self.release, FakeLink(self), Metrics(), self.token, lambda: self.now  # type: ignore[arg-type]
        )  # fmt: skip

    def look(self) -> None:
        self.store.shared.known = self.old_nodes or {
            d["metadata"]["name"]: facts.node(d) for (k, _), d in self.api.objects.items() if k == NODES
        }
        for kind in (JOBS, PODS, BUDGETS):
            documents = [d for (k, _), d in self.api.objects.items() if k == kind]
            self.store.sync(kind, documents, self.store.uids(kind))

    def operate(self) -> None:
        """One look and one pass over every job; a process that is killed is followed by another one."""
        try:
            self.look()
            for name in self.store.jobs():
                with contextlib.suppress(ApiError, Deposed):
                    self.operator.reconcile(name)
        except Killed:
            self.begin_operator()

    # ---- the cluster
    def obeys(self, pod: Doc) -> bool:
        return pod["status"]["phase"] == "Running" or (self.early and bool(pod["spec"].get("nodeName")))

    def hears(self, pod: Doc) -> bool:
        return (pod.get("spec") or {}).get("nodeName") not in self.silent

    def kubelets(self) -> None:
        for (kind, name), pod in list(self.api.objects.items()):
            if kind != PODS:
                continue
            spec = pod["spec"]
            if not spec.get("nodeName"):
                self.schedule(name, pod)
                continue
            if not self.hears(pod):
                continue
            if pod["metadata"].get("deletionTimestamp"):
                if self.now >= self.ending.setdefault(pod["metadata"]["uid"], self.now + self.lingers):
                    self.end(name)
            elif pod["status"]["phase"] == "Pending":
                self.start(name, pod)
            elif self.hangs and name == names.driver_pod("nbq5") and pod["status"]["conditions"][0]["status"] == "True":
                no = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
                self.api.set_status(PODS, name, conditions=[{**no, "lastTransitionTime": stamp(self.now)}])

    def schedule(self, name: str, pod: Doc) -> None:
        nodes = [d for (k, _), d in self.api.objects.items() if k == NODES]
        taken = {n["metadata"]["name"]: 0 for n in nodes}
        for (kind, _), other in self.api.objects.items():
            if kind == PODS and other["metadata"]["labels"].get(names.WORKER) and other["spec"].get("nodeName"):
                taken[other["spec"]["nodeName"]] += 1
        is_worker = names.WORKER in pod["metadata"]["labels"]
        free = [
            n for n in nodes if n["metadata"]["name"] not in self.silent and (self.ignores_affinity or takes(n, pod))
        ]
        fitting = [n["metadata"]["name"] for n in free if not is_worker or taken[n["metadata"]["name"]] < self.capacity]
        if not fitting:
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no room"}
            self.api.set_status(PODS, name, conditions=[no])
            return
        node = min(fitting, key=lambda n: (taken[n], n))
        self.api.edit(PODS, name, {"spec": {"nodeName": node}})
        self.api.set_status(PODS, name, conditions=[])

    def start(self, name: str, pod: Doc) -> None:
        image = pod["spec"]["containers"][0]["image"]
        container = pod["spec"]["containers"][0]["name"]
        if image == self.refuses_image:
            waiting = {"reason": "ImagePullBackOff", "message": f"no such image {image}"}
            self.api.set_status(PODS, name, containerStatuses=[{"name": container, "state": {"waiting": waiting}}])
            return
        if self.lacks_device in pod["spec"].get("initContainers", [{}])[0].get("resources", {}).get("limits", {}):
            ended = {"exitCode": ExitCode.NO_TRANSPORT, "message": f"{NO_TRANSPORT}there is none"}
            waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
            self.api.set_status(PODS, name, initContainerStatuses=[{"name": "sidecar", "ready": False, **waiting}])
            return
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(self.now)}
        if self.in_mesh:
            self.api.edit(PODS, name, {"spec": {"containers": [{"name": PROXY}, *pod["spec"]["containers"]]}})
        statuses = [
            {"name": one, "ready": True, "state": {"running": {"startedAt": stamp(self.now)}}}
            for one in (*([PROXY] if self.in_mesh else []), container)
        ]
        self.api.set_status(
            PODS, name, phase="Running", podIP="10.0.0.1", conditions=[ready], containerStatuses=statuses
        )
        if pod["metadata"]["labels"][names.ROLE] == names.DRIVER_ROLE:
            if self.ends_with is not None:
                self.driver_ends(*self.ends_with)
                return
            if not self.begin_run():
                self.driver_ends(ExitCode.REFUSED, f"refused: {UNDECIDED}: set restoreFrom: latest or none\n")
                return
            self.lives += 1
            if not self.groups:
                self.groups = [["0.0", "1.0"] for _ in range(8)]
            self.driver = FakeDriver(self, name, self.lives, [list(g) for g in self.groups])

    def begin_run(self) -> bool:
        """A driver reads its settings: a run that it has not seen has no state, and begins from a checkpoint, or from
        nothing; False: it is told neither."""
        settings = json.loads(b64decode(self.api.objects[SECRETS, "nbq5-run"]["data"]["run.json"]))
        origin = settings["restore_from"]
        if settings["run"] in self.runs:
            return True
        if origin is None and self.checkpoints:
            return False
        self.runs[settings["run"]] = origin
        self.groups, self.epoch = [], -1
        if origin not in (None, NOTHING):
            self.epoch = self.checkpoints[-1].epoch
        return True

    def take_checkpoint(self, name: str | None) -> None:
        number = len(self.checkpoints) + 1
        self.checkpoints.append(CheckpointStatus(number, name, self.epoch, self.now, 10, 100))

    def end(self, name: str) -> None:
        if self.driver is not None and name == self.driver.pod:
            self.groups, self.driver = self.driver.groups, None
        if (PODS, name) in self.api.objects:
            del self.api.objects[PODS, name]

    def driver_ends(self, code: int, message: str = "") -> None:
        if self.driver is not None:
            self.groups, self.driver = self.driver.groups, None
        name = names.driver_pod("nbq5")
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        ended["finishedAt"] = stamp(self.now)
        statuses = [{"name": "driver", "state": {"terminated": ended}}]
        phase = "Failed" if code else "Succeeded"
        if self.in_mesh:
            phase = "Running"
            statuses.insert(0, {"name": PROXY, "ready": True, "state": {"running": {"startedAt": stamp(self.now)}}})
        self.api.set_status(PODS, name, phase=phase, conditions=[], containerStatuses=statuses)

    def node_falls_silent(self, node: str) -> None:
        self.silent.append(node)
        no = {"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp(self.now)}
        self.api.set_status(NODES, node, conditions=[no])
        pod = self.api.objects.get((PODS, names.driver_pod("nbq5")))
        if pod is not None and pod["spec"].get("nodeName") == node and self.driver is not None:
            self.groups, self.driver = self.driver.groups, None

    def round(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.operate()
        self.kubelets()
        if self.driver is not None and (PODS, self.driver.pod) not in self.api.objects:
            self.groups, self.driver = self.driver.groups, None
        if self.driver is not None:
            self.driver.round()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def until(self, what: Any, rounds_max: int = 200) -> int:
        for count in range(rounds_max):
            if what(self):
                return count
            self.round()
        raise AssertionError(f"did not come about in {rounds_max} rounds: {self.story()}")

    # ---- what is asked of it
    @property
    def status(self) -> Doc:
        found: Doc = self.api.objects[JOBS, "nbq5"].get("status") or {}
        return found

    def condition(self, kind: str) -> Doc:
        return next((one for one in self.status.get("conditions", []) if one["type"] == kind), {})

    def pods(self) -> list[str]:
        return self.api.names(PODS)

    def pod(self, name: str) -> Doc:
        return self.api.objects[PODS, name]

    def used(self) -> list[int]:
        """Workers in any group."""
        assert self.driver is not None
        return sorted({worker_of(InstanceId(i)) for group in self.driver.groups for i in group})

    def story(self) -> str:
        groups = self.driver.groups if self.driver is not None else self.groups
        pods = {
            n: (d["status"]["phase"], d["spec"].get("nodeName")) for (k, n), d in self.api.objects.items() if k == PODS
        }
        return f"{pods} {groups} {self.status}"


NODE_MEMORY = Quantity("64Gi")


def takes(node: Doc, pod: Doc) -> bool:
    """Whether a node with nothing on it would take a pod."""
    spec, name = pod["spec"], node["metadata"]["name"]
    if node["spec"].get("unschedulable") and {"operator": "Exists"} not in spec["tolerations"]:
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(pods.REQUIRED) or {}
    for term in required.get("nodeSelectorTerms", [{}])[:1]:
        if any([name] == field["values"] for field in term.get("matchFields", ())):
            return False
    if not (spec.get("nodeSelector") or {}).items() <= node["metadata"]["labels"].items():
        return False
    every = [*spec.get("initContainers", ()), *spec["containers"]]
    return all(Quantity(one["resources"]["requests"]["memory"]).bytes <= NODE_MEMORY.bytes for one in every)


def settled(world: World) -> bool:
    """Ready, and nothing left to do."""
    return (
        world.condition("Ready").get("status") == "True"
        and world.condition("Progressing").get("status") == "False"
        and world.condition("Handover").get("status") == "False"
    )


def writes(world: World, kind: Kind | None = None) -> int:
    return sum(verb not in ("get", "list") and kind in (None, one) for verb, one, _ in world.api.calls)
