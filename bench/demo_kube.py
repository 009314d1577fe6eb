"""`make demo-kube`: a Kubernetes of three nodes on this machine, Ferry on it by its chart, and a job that moves as it runs.

The job (NBQ5 of NEXMark) is scaled from 2 workers to 4 and back with kubectl; a Prometheus scrapes every process with the
chart's token, and the chart's dashboards are drawn from what it saw. The output is compared with that of the oracle.
Exit code 1 when they differ. Everything is removed at the end, also after ^C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import panels
import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tests.cluster import runner
from tests.kube.clusters import Lab, NoCluster
from tests.kube.conftest import image_archives
from tests.kube.installation import CHART, CLAIM, CLAIMED, PACE, ROOT, Installation, Job
from tests.kube.kubectl import Document, Kubectl, KubectlError, wait_until
from tests.kube.prometheus import Prometheus, PrometheusFailed, filled

RESULTS = ROOT / "bench" / "results"
NAMESPACE = "streams"
JOB = "nbq5"
UP_SECONDS = 400.0
ACT_SECONDS = 180.0
LOOK_SECONDS = 1.0
QUIET_SECONDS = 8.0
"""Between two acts, so that the pictures show the job at rest."""

VALUES = ("monitoring.podMonitor=true", "monitoring.serviceMonitor=true", "monitoring.interval=1s")
"""For the monitors alone: the cluster does not know their kinds, so that they are rendered and not installed."""

STORY = """\
[bold]Ferry[/bold] on a real Kubernetes: etcd, API server, scheduler, and three nodes with their own
kubelet, containerd and network. All of it runs on this machine, and is gone at the end.

 1. the cluster comes up, and the chart is installed with helm
 2. [cyan]kubectl apply[/cyan] of a job that counts bids per auction in sliding windows, on 2 workers
 3. [cyan]kubectl scale[/cyan] to 4 workers: the copies are warmed beside the running job, then they lead
 4. [cyan]kubectl patch[/cyan] back to 2: two workers are emptied before their pods are deleted
 5. its output is compared, row by row, with that of an independent program
 6. the chart's dashboards are drawn from what a Prometheus has scraped meanwhile"""


class DemoFailed(Exception):
    """Something did not happen; says what."""


def main() -> int:
    """Parse arguments, run the demo, say how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=2_500_000, help="events of the stream (92 %% of them are bids)")
    parser.add_argument("--pictures", type=Path, default=RESULTS, help="where the pictures of the dashboards go")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    # A request to end goes the way of an error, so that nothing is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with ExitStack() as stack:
            return Demo(arguments.events, arguments.pictures, console, stack).run()
    except (DemoFailed, NoCluster, KubectlError, PrometheusFailed, TimeoutError, AssertionError) as failed:
        console.print(Text(f"the demo failed: {failed}", style="red"))
        return 1
    except KeyboardInterrupt:
        return 130


@contextmanager
def laboratory(console: Console) -> Iterator[Lab]:
    """Three nodes with the images: the lab of FERRY_LAB if it is up, and it stays; else one that is taken down."""
    mine = Lab(os.environ.get("FERRY_LAB", "default"))
    if "FERRY_LAB" in os.environ and mine.is_up():
        yield mine
        return
    lab = Lab(f"demo-{os.getpid()}")
    try:
        lab.run("up", "3", *image_archives(), timeout=UP_SECONDS)
        yield lab
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it takes a second, and what is left would be in the way
        lab.run("down")
        console.print(Text("the cluster is gone", style="dim"))


class Demo:
    """One showing."""

    def __init__(self, events: int, pictures: Path, console: Console, stack: ExitStack) -> None:
        self.events, self.pictures, self.console, self._stack = events, pictures, console, stack
        self._began = time.monotonic()
        self._status = console.status("")
        self._before: dict[str, Any] = {}
        self._pods: dict[str, str] = {}
        self._marks: list[tuple[float, str]] = []

    def run(self) -> int:
        """All acts; returns the exit code."""
        self.console.print(Panel(STORY, border_style="blue", padding=(1, 2)))
        Lab.setup("nodes")
        if subprocess.run([ROOT / "images" / "build", "operator", "runtime"]).returncode != 0:
            raise DemoFailed("the images could not be built")
        self._stack.enter_context(self._status)
        lab = self._cluster()
        work = Path(tempfile.mkdtemp(prefix="ferry-demo-"))
        self._stack.callback(shutil.rmtree, work, True)
        ferry = self._install(lab)
        begin = time.time()
        with Prometheus(lab, ferry.kubectl, self._monitors(ferry), CHART / "alerts.yaml", work) as prometheus:
            self._say("Prometheus runs on node n1; it scrapes every process, with the token of the chart's Secret")
            job = self._acts(ferry)
            equal = self._compare(job, work)
            self._draw(prometheus, begin)
        self._say(f"{time.monotonic() - self._began:.0f} s in all", "bold")
        return 0 if equal else 1

    # ---- acts
    def _cluster(self) -> Lab:
        self._status.update("three nodes boot")
        lab = self._stack.enter_context(laboratory(self.console))
        for node in lab.kubectl().items("nodes"):
            info = node["status"]["nodeInfo"]
            self._say(f"node {node['metadata']['name']}: {info['kubeletVersion']}, {info['containerRuntimeVersion']}")
        return lab

    def _install(self, lab: Lab) -> Installation:
        kubectl = lab.kubectl()
        kubectl.run("create", "namespace", NAMESPACE)
        if lab.name == os.environ.get("FERRY_LAB"):
            self._stack.callback(self._leave, kubectl)
        mine = kubectl.within(NAMESPACE)
        mine.apply(CLAIMED)
        wait_until(lambda: mine.get("pvc", CLAIM)["status"].get("phase") == "Bound", "volume", 60.0)
        volume = mine.get("pv", mine.get("pvc", CLAIM)["spec"]["volumeName"])
        ferry = Installation(mine, Path(volume["spec"]["hostPath"]["path"]))
        self._command(f"helm install ferry charts/ferry --namespace {NAMESPACE} --wait")
        self._status.update("the chart is installed: two operators, and a Redis")
        ferry.install()
        for pod in mine.items("pods"):
            self._say(f"pod {pod['metadata']['name']} is ready on {pod['spec']['nodeName']}")
        return ferry

    def _leave(self, kubectl: Kubectl) -> None:
        """Nothing of the demo stays on a lab that does."""
        kubectl.run("delete", "streamjobs", "--all", "-n", NAMESPACE, "--wait=true", "--timeout=60s", timeout=90)
        kubectl.run("delete", "namespace", NAMESPACE, "--wait=false")

    def _monitors(self, ferry: Installation) -> list[Document]:
        text = ferry.helm("template", "ferry", str(CHART), *(word for one in VALUES for word in ("--set", one)))
        return [d for d in yaml.safe_load_all(text) if d and d["kind"] in ("PodMonitor", "ServiceMonitor")]

    def _acts(self, ferry: Installation) -> Job:
        document = ferry.job(JOB, events=self.events, epoch=PACE)
        self._command(f"kubectl -n {NAMESPACE} apply -f examples/{JOB}.yaml")
        self._say(f"  (with an end after {self.events:,} events, and its output on a volume)", "dim")
        job = ferry.start(document)
        self._await(job, lambda s: s.get("epoch", -1) >= 0, "the first epoch")
        self._say("first epoch: Spark and the compiled kernels are loaded", "green")
        self._await(job, lambda s: s["workers"] == 2 and s["phase"] == "Running", "two workers")
        self._rest(job)
        self._mark("4 workers")
        self._command(f"kubectl -n {NAMESPACE} scale sj/{JOB} --replicas=4")
        ferry.kubectl.run("scale", f"sj/{JOB}", "--replicas=4")
        self._move(job, 4)
        self._mark("2 workers")
        patch = json.dumps({"spec": {"workers": 2}})
        self._command(f"kubectl -n {NAMESPACE} patch sj/{JOB} --type=merge -p '{patch}'")
        ferry.kubectl.patch(f"streamjob/{JOB}", {"spec": {"workers": 2}})
        self._move(job, 2)
        self._await(job, lambda s: s["phase"] in ("Finished", "Failed"), "the end of the input")
        if job.status()["phase"] != "Finished":
            raise DemoFailed(job.story())
        self._say(f"end of the input after epoch {job.status()['epoch']}")
        return job

    def _move(self, job: Job, workers: int) -> None:
        begin = time.monotonic()

        def there(status: Document) -> bool:
            if status["phase"] in ("Finished", "Failed"):
                raise DemoFailed(f"the job was over before {workers} workers owned state; try more --events")
            return bool(status["workers"] == workers and not status["moving"] and status["phase"] == "Running")

        self._await(job, there, f"{workers} workers that own state")
        took = time.monotonic() - begin
        text = f"{workers} workers own all state, {took:.1f} s after they were asked for; epochs went on meanwhile"
        self._say(text, "green")
        self._rest(job)

    def _rest(self, job: Job) -> None:
        until = time.monotonic() + QUIET_SECONDS
        self._await(job, lambda _: time.monotonic() > until, "a pause")

    def _compare(self, job: Job, work: Path) -> bool:
        self._status.update("the oracle computes the same result in one pass, without any failure")
        args, output = job.document["spec"]["pipeline"]["args"], job.ferry.files / JOB / "out"
        rows = sum(pq.read_metadata(file).num_rows for file in output.glob(f"{JOB}/*/*.parquet"))
        missing, extra = runner.difference(JOB, self.events, args, output, work)
        self._say(f"missing {len(missing)}, unexpected {len(extra)} (of {rows:,} rows)")
        if missing or extra:
            self._say("NOT EQUAL", "bold red")
            return False
        self._say("EQUAL: moving state changed nothing in the result", "bold green")
        return True

    def _draw(self, prometheus: Prometheus, begin: float) -> None:
        self._status.update("the dashboards are drawn")
        end = time.time()
        for file in sorted((CHART / "dashboards").glob("*.json")):
            board, picture = json.loads(file.read_text()), self.pictures / f"dashboard-{file.stem}.png"
            shown = panels.draw(
                picture, board, lambda query: prometheus.over(filled(query), begin, end), begin, self._marks
            )
            near = picture.relative_to(Path.cwd()) if picture.is_relative_to(Path.cwd()) else picture
            self._say(f"{board['title']}: {shown} of {len(board['panels'])} panels have something to show: {near}")

    # ---- telling
    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim") + Text(text, style=style))

    def _command(self, text: str) -> None:
        self._say(f"$ {text}", "bold cyan")

    def _mark(self, text: str) -> None:
        self._marks.append((time.time(), text))

    def _await(self, job: Job, true: Callable[[Document], bool], what: str) -> None:
        """Look at the job until it is so, and tell what changes."""
        deadline = time.monotonic() + ACT_SECONDS
        while True:
            status = job.status()
            self._tell(status, job.pods())
            if status and true(status):
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited in vain for {what}\n{job.story()}")
            time.sleep(LOOK_SECONDS)

    def _tell(self, status: Document, found: list[Document]) -> None:
        before, self._before = self._before, status
        pods = {pod["metadata"]["name"]: _state(pod) for pod in found}
        for name, state in pods.items():
            if self._pods.get(name) != state:
                self._say(f"pod {name} {state}")
        for name in self._pods.keys() - pods.keys():
            self._say(f"pod {name} is gone; it held nothing any more", "cyan")
        self._pods = pods
        if status.get("phase") != before.get("phase") and status.get("phase"):
            self._say(f"phase: {status['phase']}")
        if status.get("moving") and not before.get("moving"):
            self._say(f"{status['moving']} of the virtual nodes are on their way", "yellow")
        self._status.update(
            f"epoch {status.get('epoch', '-')}, {status.get('rows') or 0:,} records, {status.get('workers', 0)} workers own "
            f"{status.get('state') or 'no'} state"
            + (f", {status['moving']} virtual nodes move" if status.get("moving") else "")
        )


def _state(pod: Document) -> str:
    where = pod["spec"].get("nodeName")
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    if ready:
        return f"runs on {where}"
    phase = pod["status"].get("phase", "Pending")
    return {"Succeeded": "has ended", "Failed": "has failed"}.get(phase, f"starts on {where}" if where else "is made")


if __name__ == "__main__":
    sys.exit(main())
