"""A process that stands in for the pods of many jobs: kubelets that report each pod as running, and drivers that answer.

    python -m tests.kube.crowd PLAN.json        prints "ready", and later a line for each problem; ends with its parent

One event loop serves all drivers, and one watch of kubectl reports all pods, so that the operator has the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ferry.contract.certificates import issue, server_context
from ferry.contract.program_text import identity
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.port import PODS, ApiError
from tests.kube.stand_ins import Document, Driver

PORT = 7070
REPORTERS = 4
STEPS = 8
"""Rounds in which a driver moves everything to its place after a change of its pods."""

FLOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 300000000\r\n\r\n" + b"[" * 1_000_000
LIE = b'{"alive": [' + b"1," * 100_000 + b"1]}"


def address(number: int) -> str:
    """Of one driver, in the loopback network of this test."""
    parent = os.getppid()
    return f"127.{124 + parent % 60}.{parent // 60 % 40 * 6 + number // 200}.{number % 200 + 2}"


@dataclass(slots=True)
class CrowdJob:
    """One job: its driver, and its pods that run."""

    namespace: str
    name: str
    address: str
    secret: str
    manner: str
    """how its driver behaves from the signal on: floods, hangs, lies; empty: well"""
    driver: Driver = field(init=False)
    pods: dict[str, Document] = field(default_factory=dict)
    context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.address, self.secret, serves=False)
        since, program = 0, identity("jobs.nbq5", None, "", {})
        self.driver.programs = [{"number": 1, "state": "in force", "since": since, "identity": program, "hash": ""}]
        self.context = server_context(issue(self.secret))

    def changed(self) -> None:
        """Its pods have changed."""
        alive = []
        for pod in self.pods.values():
            labels = pod["metadata"]["labels"]
            if names.WORKER in labels:
                count = int(pod["metadata"]["annotations"][names.INSTANCES])
                alive += [f"{labels[names.WORKER]}.{i}" for i in range(count)]
        for _ in range(STEPS):
            self.driver.step(sorted(alive))


class Crowd:
    """All of them."""

    def __init__(self, plan: Document) -> None:
        self.plan = plan
        self.jobs = {(job["namespace"], job["name"]): job_of(job, number) for number, job in enumerate(plan["jobs"])}
        self.bad = False
        self.api = KubeApi("default", lambda *_: None)
        self.reporters = ThreadPoolExecutor(REPORTERS)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.turn_bad)
        servers = [
            await asyncio.start_server(self.serve(job), job.address, PORT, ssl=job.context, backlog=16)
            for job in self.jobs.values()
        ]
        threading.Thread(target=self.watch, daemon=True).start()
        print("ready", flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(0.5)
            for job in self.jobs.values():
                job.driver.epoch += 1
        assert servers

    def turn_bad(self) -> None:
        self.bad = True

    # ---- drivers
    def serve(self, job: CrowdJob) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    await self.answer(job, head.decode(), reader, writer)
                    await writer.drain()
            except (asyncio.IncompleteReadError, OSError, ssl.SSLError):
                pass
            finally:
                writer.close()

        return talk

    async def answer(
        self, job: CrowdJob, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.bad and job.manner == "hangs":
            await asyncio.sleep(3600)
        if self.bad and job.manner == "floods":
            for _ in range(300):
                if writer.is_closing():
                    return
                writer.write(FLOOD)
                await writer.drain()
        code, document = job.driver.answer(method, path, body, headers.get("authorization", ""))
        if method == "PUT":
            job.changed()
        text = LIE if self.bad and job.manner == "lies" else json.dumps(document).encode()
        writer.write(f"HTTP/1.1 {code} OK\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    # ---- pods
    def watch(self) -> None:
        """Follow the pods of all namespaces, and begin again when kubectl ends."""
        while True:
            selector = f"{names.MANAGED}={names.MANAGER}"
            command = ["get", "pods", "-A", "-l", selector, "-o", "json", "--watch", "--output-watch-events"]
            process = subprocess.Popen([self.plan["kubectl"], *command], stdout=subprocess.PIPE, text=True)
            for event in documents(process):
                self.took(event["type"], event["object"])
            print("kubectl ended", flush=True)
            time.sleep(1)

    def took(self, kind: str, pod: Document) -> None:
        metadata = pod["metadata"]
        if kind not in ("ADDED", "MODIFIED", "DELETED") or "namespace" not in metadata:
            return  # A bookmark, an empty list, or an error with which the watch ends.
        job = self.jobs.get((metadata["namespace"], metadata["labels"].get(names.JOB, "")))
        if job is None:
            return
        name = metadata["name"]
        if kind == "DELETED" or metadata.get("deletionTimestamp"):
            if job.pods.pop(name, None) is not None:
                job.driver.serving = job.driver.serving and name != names.driver_pod(job.name)
                job.changed()
        elif name not in job.pods and pod["status"].get("phase") == "Pending":
            self.reporters.submit(self.report, job, pod)

    def report(self, job: CrowdJob, pod: Document) -> None:
        """The kubelet: the pod runs."""
        name = pod["metadata"]["name"]
        container = "driver" if name == names.driver_pod(job.name) else "executor"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        running = {"name": container, "ready": True, "restartCount": 0, "image": "x", "imageID": "x"}
        status = {
            "phase": "Running",
            "podIP": job.address,
            "podIPs": [{"ip": job.address}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            "containerStatuses": [{**running, "state": {"running": {}}}],
        }
        if container == "driver":
            job.driver.begin()
        job.pods[name] = pod
        job.changed()
        try:
            self.api.within(job.namespace).patch(PODS, name, {"status": status}, "status")
        except ApiError as error:
            if error.status not in (404, 409):
                print(f"{name}: {error}", flush=True)


def documents(process: subprocess.Popen[str]) -> Iterator[Document]:
    """The documents that kubectl prints, one in a line."""
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def job_of(job: dict[str, str], number: int) -> CrowdJob:
    return CrowdJob(job["namespace"], job["name"], address(number), job["secret"], job.get("manner", ""))


if __name__ == "__main__":
    asyncio.run(Crowd(json.loads(Path(sys.argv[1]).read_text())).run())
