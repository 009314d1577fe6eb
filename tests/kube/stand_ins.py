"""What is missing on a control plane without nodes: kubelets that report pods as running, and a driver that is asked.

Pods never run here. The driver answers like a coordinator and moves as many virtual nodes at a time as it is told.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ferry.contract.certificates import issue, server_context
from ferry.contract.exit_codes import ExitCode
from ferry.contract.program_text import hash_of, identity
from ferry.contract.tickets import derived
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.port import PODS, ApiError

Document = dict[str, Any]

VNODES = 8
ROUND_SECONDS = 0.05


class Driver:
    """The coordinator of one job: where virtual nodes are, and where they should be."""

    def __init__(self, address: str, secret: str, serves: bool = True) -> None:
        """`serves`: it has a server of its own."""
        self.groups = [["0.0", "1.0"] for _ in range(VNODES)]
        self.alive: list[str] = []
        self.generation = 0
        self.stride = VNODES
        """moves in a round"""
        self.serving = False
        self.desired: Document | None = None
        self.token = 0
        self.refused = 0
        """placements with too low a token"""
        self.epoch = 0
        self.tokens: list[int] = []
        """of the placements that were taken"""
        self.programs: list[Document] = []
        """in force, and the newest one; empty: it deploys none"""
        self.asked: list[Document] = []
        """programs that it was asked to deploy"""
        self.rollbacks: list[Document] = []
        """requests to go back to an earlier program"""
        self.refusal = ""
        """of all programs"""
        self.checkpoint: Document | None = None
        self.suspends = 0
        """requests to be suspended, in this life"""
        self.holds = False
        """the last checkpoint does not come to its end"""
        self.lock = threading.Lock()
        self.manner: Callable[[Callable[[bytes], object]], None] | None = None
        """how it answers questions when that is not as it should be; it is given what writes"""
        self.authorization = f"Bearer {derived(secret, 'control')}"
        if serves:
            self.serve(address, secret)

    def serve(self, address: str, secret: str) -> None:
        driver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if driver.manner is not None:
                    self.close_connection = True
                    return driver.manner(self.wfile.write)
                self.answer()

            def do_PUT(self) -> None:
                self.answer()

            do_POST = do_PUT

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, document = driver.answer(self.command, self.path, body, self.headers["Authorization"])
                body = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer((address, 7070), Handler)
        self.server.daemon_threads = True
        self.server.socket = server_context(issue(secret)).wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, method: str, path: str, body: bytes, authorization: str) -> tuple[int, Document | None]:
        """The answer to a request; without the right words it is 401."""
        document = json.loads(body or b"{}")
        with self.lock:
            code, answer = self._answer(method, path, document)
        return (code, answer) if self.serving and authorization == self.authorization else (401, {})

    def _answer(self, method: str, path: str, document: Document) -> tuple[int, Document | None]:
        if method == "GET":
            found = self.status() if path == "/status" else self.desired
            return 200 if found is not None else 404, found
        if path == "/program":
            return 202, {"number": self.deploy(document)}
        if path == "/checkpoint":
            self.take_checkpoint(document["name"])
            return 202, {"number": self.checkpoint["number"]} if self.checkpoint else {}
        if path == "/rollback":
            self.rollbacks.append(document)
            self.ended(False)
            return 202, {"number": self.programs[0]["number"]}
        if method == "POST":
            self.suspends += path == "/suspend"
            return 202, {}
        if document["token"] < self.token:
            self.refused += 1
            return 409, {}
        self.token = document["token"]
        if self.desired is None or document["number"] > self.desired["number"]:
            self.desired = document
            self.tokens.append(document["token"])
        return 200, {}

    def status(self) -> Document:
        wanted = self.desired["placements"] if self.desired else []
        return {
            "job": "a", "generation": self.generation, "phase": "idle", "epoch": self.epoch,
            "version": [1, 1], "groups": [[group, []] for group in self.groups],
            "settled": bool(wanted) and all(g == [i for i in w if i in self.alive] for g, w in zip(self.groups, wanted)),
            "desired": self.desired["number"] if self.desired else 0, "alive": self.alive,
            "progress": {"rows": self.epoch * 10}, "journal_up": True, "finished": False,
            "load": {"vnodes": [[1.0, 1024.0]] * VNODES, "rows_per_second": 1.0, "epoch_seconds": 0.1},
            "checkpoint": self.checkpoint or {"number": None}, "programs": self.programs,
        }  # fmt: skip

    def begin(self) -> None:
        """A new life: what was desired is not known any more."""
        with self.lock:
            self.generation += 1
            self.desired, self.serving, self.token = None, True, 0
            self.suspends = 0

    def deploy(self, wanted: Document) -> int:
        """It is in force, a shadow, or refused, at once."""
        text = hash_of([(None, wanted["text"].encode())]) if wanted["text"] else ""
        number = 1 + max(one["number"] for one in self.programs)
        self.asked.append(wanted)
        made = {
            "number": number,
            "state": "refused" if self.refusal else "in force",
            "since": None if self.refusal else self.epoch,
            "identity": identity(wanted["module"], wanted["file"], text, wanted["arguments"]),
            "hash": text,
            "refused": self.refusal,
            "attempt": wanted["attempt"],
        }
        now = self.programs[0]
        if wanted["rewind"] and not self.refusal:
            made = {"number": 1, "state": "in force", "since": 0, "identity": made["identity"], "hash": text}
        if wanted["shadow"] and not self.refusal:
            made["state"], made["compared"] = "shadow", "0 % of its epochs are compared, and no row differs"
        if self.refusal or wanted["shadow"]:
            self.programs = [now, made]
        else:
            self.programs = [made, {**now, "state": "kept"}] if wanted["keep"] else [made]
        return number

    def ended(self, new: bool, compared: str = "") -> None:
        """Of two programs side by side one goes on, under a new number; `compared`: what a shadow found."""
        written, other = self.programs
        shadow = other["state"] == "shadow"
        half = other if new == shadow else written
        again = {"again": None if new else half["number"]}
        alone = {**half, **again, "number": 1 + max(written["number"], other["number"]), "state": "in force"}
        self.programs = [{**alone, "since": self.epoch, "compared": compared if new else ""}]
        if shadow and not new and compared:
            self.programs.append({**other, "state": "refused", "refused": f"as a shadow, {compared}"})

    def take_checkpoint(self, name: str | None) -> None:
        """It is complete at once."""
        number = self.checkpoint["number"] + 1 if self.checkpoint is not None else 1
        self.checkpoint = {
            "number": number,
            "name": name,
            "epoch": self.epoch,
            "at": time.time(),
            "bytes": 1,
            "total_bytes": 2,
        }

    def step(self, alive: list[str]) -> None:
        with self.lock:
            self.alive = alive
            self.epoch += 1
            self.groups = [[i for i in group if i in alive] or group for group in self.groups]
            moves = self.stride
            for vnode, wanted in enumerate(self.desired["placements"] if self.desired else []):
                living = [i for i in wanted if i in alive]
                if living and self.groups[vnode] != living and moves > 0:
                    self.groups[vnode] = living
                    moves -= 1

    def used(self) -> set[int]:
        with self.lock:
            return {int(i.split(".")[0]) for group in self.groups for i in group}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Kubelets:
    """Report every pod of a job as running at the driver's address, and tell which were deleted while in use."""

    def __init__(self, namespace: str, job: str, driver: Driver, alone: bool = True) -> None:
        """`alone`: they look after the pods by themselves, in a thread; else in every `round`."""
        self.address = str(driver.server.server_address[0])
        self.driver, self.job = driver, job
        self.violations: list[str] = []
        self.lives: list[str] = []
        """uids of the driver's pods"""
        self.over = False
        """the job has ended: state may go"""
        self.in_mesh = False
        """every pod has a proxy, first in reports, that never ends"""
        self.has_room: Callable[[Document], bool] = lambda pod: True
        """whether a node takes a pod"""
        self._api = KubeApi(namespace, lambda verb, resource, code: None)
        self._known: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if alone:
            self._thread.start()

    def pods(self) -> dict[str, Document]:
        return {pod["metadata"]["name"]: pod for pod in self._api.find(PODS, f"{names.JOB}={self.job}")}

    def end_driver(self, code: int, message: str) -> None:
        """The driver's container ends; with 0 the job has."""
        self.over = code in (ExitCode.FINISHED, ExitCode.SUSPENDED)
        self.driver.serving = False
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}}
        state["terminated"]["finishedAt"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._report(names.driver_pod(self.job), "Failed" if code else "Succeeded", state, "False")

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident:
            self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(ROUND_SECONDS):
            try:
                self.round()
            except ApiError as error:
                if error.status not in (0, 404, 409):
                    self.violations.append(f"the stand-in: {error}")

    def round(self) -> None:
        """Report what is new, and let the driver move virtual nodes."""
        pods = self.pods()
        for name, uid in list(self._known.items()):
            if name not in pods or pods[name]["metadata"]["uid"] != uid:
                del self._known[name]
                self._gone(name)
        for name, pod in pods.items():
            if name not in self._known and not self.has_room(pod):
                self._leave(name, pod)
            elif name not in self._known and pod["status"].get("phase") == "Pending":
                self._known[name] = pod["metadata"]["uid"]
                self._report(name, "Running", {"running": {}}, "True")
                if name == names.driver_pod(self.job):
                    self.over = False
                    self.lives.append(pod["metadata"]["uid"])
                    self.driver.begin()
        if self.driver.serving and self.driver.suspends and not self.driver.holds:
            self.driver.take_checkpoint(None)
            self.end_driver(ExitCode.SUSPENDED, "suspended: checkpoint 2\n")
        alive = []
        for name in self._known:
            labels = pods[name]["metadata"]["labels"]
            if names.WORKER in labels:
                count = int(pods[name]["metadata"]["annotations"][names.INSTANCES])
                alive += [f"{labels[names.WORKER]}.{i}" for i in range(count)]
        self.driver.step(sorted(alive))

    def _gone(self, name: str) -> None:
        if name == names.driver_pod(self.job):
            self.driver.serving = False
        elif "-worker-" in name and not self.over and int(name.rsplit("-", 1)[1]) in self.driver.used():
            self.violations.append(f"{name} was deleted while it was in use")

    def _leave(self, name: str, pod: Document) -> None:
        """No node takes it."""
        if not pod["status"].get("conditions"):
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no room"}
            self._api.patch(PODS, name, {"status": {"conditions": [no]}}, "status")

    def _report(self, name: str, phase: str, state: Document, ready: str) -> None:
        own = ("driver" if name.endswith("-driver") else "executor", ready == "True", state)
        reported = [own]
        if self.in_mesh:
            phase, reported = "Running", [("a-proxy", True, {"running": {}}), own]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now}],
            "containerStatuses": [
                {"name": one, "ready": is_ready, "restartCount": 0, "image": "x", "imageID": "x", "state": its}
                for one, is_ready, its in reported
            ],
        }
        self._api.patch(PODS, name, {"status": status}, "status")
