"""`make demo-kube`: Kubernetes with three nodes on this machine, Ferry's chart, and a job whose state moves while it runs.

The job (NBQ5 of NEXMark) is scaled from 2 workers to 4 and back with kubectl, and loses a worker. Prometheus scrapes every
process with the chart's token, and the chart's dashboards are drawn from these metrics. The output is compared with
the oracle's output: exit code 1 if they differ. Everything is removed at the end, also after ^C.
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

import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from bench.parts.demo import dashboards
from bench.parts.demo.telling import Teller
from bench.shared.ferry_job import RESULTS
from tests.cluster import runner
from tests.kube.clusters import Lab, NoCluster, existing
from tests.kube.conftest import image_archives
from tests.kube.installation import CHART, CLAIM, CLAIMED, DISORDER, PACE, ROOT, Installation, Job
from tests.kube.kubectl import Document, Kubectl, KubectlError, wait_until
from tests.kube.prometheus import SCRAPERS, Prometheus, PrometheusFailed, filled

NAMESPACE = "ferry-demo"
JOB = "nbq5"
UP_SECONDS = 400.0
ACT_SECONDS = 180.0
LOOK_SECONDS = 1.0
QUIET_SECONDS = 10.0
"""Pause between two acts, so that the pictures show the job at rest."""

VALUES = ("monitoring.podMonitor=true", "monitoring.serviceMonitor=true", "monitoring.interval=1s")
"""For the monitors alone: the cluster does not know their kinds, so that they are rendered and not installed."""

STORY = """\
[bold]Ferry[/bold] on a real Kubernetes: a control plane and three nodes, each with its
own kubelet, containerd and network. All of it runs on this machine, and
is gone at the end.

 1. the cluster comes up, and the chart is installed with [cyan]helm[/cyan]
 2. [cyan]kubectl apply[/cyan] of a job that counts bids per auction in sliding
    windows, on 2 workers
 3. [cyan]kubectl scale[/cyan] to 4: copies of state are made while the job
    runs, then the copies become leaders
 4. [cyan]kubectl patch[/cyan] back to 2: the state of two workers is moved away,
    then their pods are deleted
 5. [red]kubectl delete pod --force[/red] of a worker: copies become leaders
 6. the output is compared, row by row, with the output of an independent
    program that never failed
 7. the chart's dashboards are drawn from Prometheus"""


class DemoFailed(Exception):
    """An expected event did not happen; the text names the event."""


def main() -> int:
    """Parse arguments and run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000, help="events of the stream (92 %% of them are bids)")
    parser.add_argument("--pictures", type=Path, default=RESULTS, help="folder for the pictures of the dashboards")
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
    """Three nodes with the images: the lab of FERRY_LAB, which stays, if it is up; else a lab that is removed at the end."""
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
        self.events, self.pictures, self.tell, self._stack = events, pictures, Teller(console), stack
        self._marks: list[tuple[float, str]] = []

    def run(self) -> int:
        """All acts; returns the exit code."""
        self.tell.console.print(Panel(STORY, border_style="blue", padding=(1, 2)))
        given = existing()
        if given is not None:
            self._stack.enter_context(self.tell.line)
            self._nodes(given)
            self._acts(self._install(given, stays=True), None)
            self.tell.say("on your own cluster nothing is compared or drawn: its volumes and its Prometheus are yours")
            return 0
        Lab.setup("nodes")
        if subprocess.run([ROOT / "images" / "build", "operator", "runtime"]).returncode != 0:
            raise DemoFailed("the images could not be built")
        self._stack.enter_context(self.tell.line)
        self.tell.line.update("three nodes boot")
        lab = self._stack.enter_context(laboratory(self.tell.console))
        self._nodes(lab.kubectl())
        work = Path(tempfile.mkdtemp(prefix="ferry-demo-"))
        self._stack.callback(shutil.rmtree, work, True)
        ferry = self._install(lab.kubectl(), stays=lab.name == os.environ.get("FERRY_LAB"), claims=True)
        begin = time.time()
        with Prometheus(lab, ferry.kubectl, self._monitors(ferry), CHART / "alerts.yaml", work) as prometheus:
            self.tell.say("Prometheus runs on node n1; it scrapes every process, with the token of the chart's Secret")
            job = self._acts(ferry, prometheus)
            equal = self._compare(job, work)
            self._draw(prometheus, begin)
        self.tell.say(f"{self.tell.seconds:.0f} s in all", "bold")
        return 0 if equal else 1

    # ---- acts
    def _nodes(self, kubectl: Kubectl) -> None:
        for node in kubectl.items("nodes"):
            info = node["status"]["nodeInfo"]
            name = node["metadata"]["name"]
            self.tell.say(f"node {name}: {info['kubeletVersion']}, {info['containerRuntimeVersion']}")

    def _install(self, kubectl: Kubectl, stays: bool, claims: bool = False) -> Installation:
        """`stays`: the cluster outlives the demo, so the demo deletes its objects. `claims`: all nodes share volumes."""
        kubectl.run("create", "namespace", NAMESPACE)
        if stays:
            self._stack.callback(self._leave, kubectl)
        mine = kubectl.within(NAMESPACE)
        if claims:
            mine.apply(CLAIMED)
            wait_until(lambda: mine.get("pvc", CLAIM)["status"].get("phase") == "Bound", "volume", 60.0)
        ferry = Installation(mine, (SCRAPERS,) if claims else ())
        self.tell.command(f"helm install ferry charts/ferry --namespace {NAMESPACE} --wait")
        self.tell.line.update("the chart is installed: two operators, and a Redis")
        ferry.install()
        for pod in mine.items("pods"):
            self.tell.say(f"pod {pod['metadata']['name']} is ready on {pod['spec']['nodeName']}")
        return ferry

    def _leave(self, kubectl: Kubectl) -> None:
        """Delete all objects of the demo from a cluster that stays, except the definition of StreamJob."""
        kubectl.run("delete", "streamjobs", "--all", "-n", NAMESPACE, "--wait=true", "--timeout=60s", timeout=90)
        kubectl.run("delete", "namespace", NAMESPACE, "--wait=false")

    def _monitors(self, ferry: Installation) -> list[Document]:
        text = ferry.helm("template", "ferry", str(CHART), *(word for one in VALUES for word in ("--set", one)))
        return [d for d in yaml.safe_load_all(text) if d and d["kind"] in ("PodMonitor", "ServiceMonitor")]

    def _acts(self, ferry: Installation, prometheus: Prometheus | None) -> Job:
        document = ferry.job(JOB, events=self.events, epoch=PACE, pipeline={"args": DISORDER})
        where = "and its output on a volume"
        if prometheus is None:
            del document["spec"]["kubernetes"], document["spec"]["output"]
            where = "and its output in the driver's pod"
        self.tell.command(f"kubectl -n {NAMESPACE} apply -f examples/{JOB}.yaml")
        self.tell.say(f"  (with an end after {self.events:,} events, some of them late, {where})", "dim")
        job = ferry.start(document)
        self._await(job, lambda s: s.get("epoch", -1) >= 0, "the first epoch")
        self.tell.say("first epoch: Spark and the compiled kernels are loaded", "green")
        self._await(job, lambda s: s["workers"] == 2 and s["phase"] == "Running", "two workers")
        self._rest(job)
        self._mark("to 4")
        self.tell.command(f"kubectl -n {NAMESPACE} scale sj/{JOB} --replicas=4")
        ferry.kubectl.run("scale", f"sj/{JOB}", "--replicas=4")
        self._move(job, 4)
        self._mark("to 2")
        patch = json.dumps({"spec": {"workers": 2}})
        self.tell.command(f"kubectl -n {NAMESPACE} patch sj/{JOB} --type=merge -p '{patch}'")
        ferry.kubectl.patch(f"streamjob/{JOB}", {"spec": {"workers": 2}})
        self._move(job, 2)
        if prometheus is not None:
            self._kill(job, prometheus)
        self._await(job, lambda s: s["phase"] in ("Finished", "Failed"), "the end of the input")
        if job.status()["phase"] != "Finished":
            raise DemoFailed(job.story())
        self.tell.say(f"end of the input after epoch {job.status()['epoch']}")
        return job

    def _move(self, job: Job, workers: int) -> None:
        begin = time.monotonic()

        def there(status: Document) -> bool:
            if status["phase"] in ("Finished", "Failed"):
                raise DemoFailed(f"the job was over before {workers} workers owned state; try more --events")
            return bool(status["workers"] == workers and not status["moving"] and status["phase"] == "Running")

        self._await(job, there, f"{workers} workers that own state")
        took = time.monotonic() - begin
        self.tell.say(f"{workers} workers own all state after {took:.1f} s; epochs went on meanwhile", "green")
        self._rest(job)

    def _kill(self, job: Job, prometheus: Prometheus) -> None:
        """Times come from the driver, because the status of the job is some seconds old."""
        pod, begin = f"{JOB}-worker-1", time.monotonic()
        self._mark("kill")
        self.tell.command(f"kubectl -n {NAMESPACE} delete pod {pod} --force --grace-period=0")
        job.kubectl.run("delete", "pod", pod, "--force", "--grace-period=0")
        self.tell.forget(pod)
        self._await(job, lambda _: prometheus.number("ferry_recovery_seconds_count") >= 1, "the recovery")
        seconds = prometheus.number("ferry_recovery_seconds_sum")
        self.tell.say(f"copies lead now: {seconds:.2f} s from the loss to the next end of an epoch", "green")
        self._await(job, lambda _: prometheus.number("ferry_replicas_missing") == 0, "all copies")
        self.tell.say(f"all state is on two workers again, {time.monotonic() - begin:.0f} s after the loss", "green")
        self._rest(job)

    def _rest(self, job: Job) -> None:
        until = time.monotonic() + QUIET_SECONDS
        self._await(job, lambda _: time.monotonic() > until, "a pause")

    def _compare(self, job: Job, work: Path) -> bool:
        self.tell.line.update("the oracle computes the same result in one pass, without any failure")
        args, output = job.document["spec"]["pipeline"]["args"], job.ferry.fetch(f"{JOB}/out", work / "out")
        rows = sum(pq.read_metadata(file).num_rows for file in output.glob(f"{JOB}/*/*.parquet"))
        missing, extra = runner.difference(JOB, self.events, args, output, work)
        self.tell.say(f"missing {len(missing)}, unexpected {len(extra)} (of {rows:,} rows)")
        if missing or extra:
            self.tell.say("NOT EQUAL", "bold red")
            return False
        self.tell.say("EQUAL: moving state changed nothing in the result", "bold green")
        return True

    def _draw(self, prometheus: Prometheus, begin: float) -> None:
        self.tell.line.update("the dashboards are drawn")
        end = time.time()
        for file in sorted((CHART / "dashboards").glob("*.json")):
            board, picture = json.loads(file.read_text()), self.pictures / f"dashboard-{file.stem}.png"
            shown = dashboards.draw(
                picture, board, lambda query: prometheus.over(filled(query), begin, end), (begin, end), self._marks
            )
            near = picture.relative_to(Path.cwd()) if picture.is_relative_to(Path.cwd()) else picture
            self.tell.say(f"{board['title']}: {shown} of {len(board['panels'])} panels have data: {near}")

    # ---- waiting
    def _mark(self, text: str) -> None:
        self._marks.append((time.time(), text))

    def _await(self, job: Job, true: Callable[[Document], bool], what: str) -> None:
        """Poll the job until the condition holds, and print each change."""
        deadline = time.monotonic() + ACT_SECONDS
        while True:
            status = job.status()
            self.tell.look(status, job.pods())
            if status and true(status):
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"timeout while waiting for {what}\n{job.story()}")
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
