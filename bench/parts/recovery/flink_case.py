"""Flink 2's side of the recovery benchmark: kill -9 of one of its task managers, or of its whole cluster.

Flink's libraries are those of PyPI, what is for S3 is from Maven. They are put below `build/`, never into the environment of
Ferry, and started without its shell scripts, which they are without. The job is `flink/CountJob.java`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench.parts.recovery.case import ONE, PAYLOAD, STORE, Bench, Recovery
from bench.shared.ferry_job import ROOT, RunFailed
from bench.shared.links import FIRST_WORKER

DEFAULTS, TUNED = "flink", "flink-tuned"
HOME = ROOT / "build" / "flink"
VERSION = "2.3.0"
LIBRARIES = f"apache-flink-libraries=={VERSION}"
SETTLE_SECONDS = 2.0
"""After the last sink has put something out: traces come by then."""

FAST = {
    "heartbeat.interval": "500 ms", "heartbeat.timeout": "3 s", "heartbeat.rpc-failure-threshold": "1",
    "execution.state-recovery.from-local": "true", "restart-strategy.fixed-delay.delay": "100 ms",
}  # fmt: skip
SPAN = re.compile(r"max(Download|Restore)StateDurationMs=(\d+)")


class FlinkCase:
    """A cluster of its own, one job, one loss after another."""

    def __init__(self, bench: Bench, gigabytes: float, system: str) -> None:
        self.a, self.bench, self.gigabytes, self.store = bench.a, bench, gigabytes, bench.store()
        self.keys, self.system, self.apart = int(gigabytes * 1e9 / PAYLOAD), system, bench.apart()
        self.work = bench.work / f"{system}-{gigabytes:g}"
        self.home = installed(self.a.flink)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.rest = f"http://127.0.0.1:{one.getsockname()[1]}"
        self.managers: list[subprocess.Popen[bytes]] = []
        self.master: subprocess.Popen[bytes] | None = None
        self.job = ""

    def measure(self) -> None:
        """Fill, then loss after loss."""
        try:
            self._start()
            self._fill()
            for repeat in range(self.a.repeats):
                self._lose(repeat)
            for repeat in range(self.a.repeats):
                self._lose_all(repeat)
        finally:
            self._kill()

    # ---- the cluster
    def _start(self) -> None:
        for folder in ("conf", "log", "out", "tmp"):
            (self.work / folder).mkdir(parents=True)
        (self.work / "conf" / "log4j.properties").write_text(LOG4J)
        (self.work / "conf" / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in self._settings().items()))
        self._launch()

    def _launch(self) -> None:
        self.master = self._process(MASTER)
        self.managers = [self._manager(worker) for worker in range(self.a.workers)]
        self._until(lambda: self._get("/overview")["slots-total"] >= 2 * self.a.workers, "slots")

    def _kill(self) -> None:
        for process in [*self.managers, *([self.master] if self.master else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _settings(self) -> dict[str, str]:
        a, port = self.a, self.rest.rpartition(":")[2]
        place = self.store.location if self.store.endpoint is None else "s3://checkpoints/jobs"
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            rpc = one.getsockname()[1]
        here = "127.0.0.1" if self.apart is None else self.apart.here
        made = {
            "jobmanager.rpc.address": here, "jobmanager.rpc.port": str(rpc), "jobmanager.bind-host": here,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1", "rest.port": port, "taskmanager.numberOfTaskSlots": "2",
            "taskmanager.load-balance.mode": "SLOTS", "taskmanager.cpu.cores": str(a.cores), **MEMORY,
            "state.backend.type": "rocksdb", "execution.checkpointing.interval": f"{a.every}s",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.dir": f"{'' if '://' in place else 'file://'}{place}/flink",
            "io.tmp.dirs": str(self.work / "tmp"), "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1000",
            "traces.reporters": "log", "traces.reporter.log.factory.class": TRACES,
        }  # fmt: skip
        if self.store.endpoint is not None:
            made |= {
                "s3.endpoint": f"http://{self.store.endpoint}", "s3.path.style.access": "true",
                "s3.endpoint.region": "us-east-1", "s3.directory.marker.retention": "keep",
                "s3.access-key": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            }  # fmt: skip
        return made | (FAST if self.system == TUNED else {})

    def _manager(self, worker: int) -> subprocess.Popen[bytes]:
        """The process of a worker, on its machine; what it is called begins with its number."""
        machine = FIRST_WORKER + worker
        inside, host = (
            ((), "127.0.0.1") if self.apart is None else (self.apart.inside(machine), self.apart.address(machine))
        )
        about = {"host": host, "bind-host": host, "resource-id": f"{worker}-{time.time_ns()}"}
        return self._process(MANAGER, inside, *(f"-Dtaskmanager.{key}={value}" for key, value in about.items()))

    def _process(self, what: str, inside: tuple[str, ...] = (), *more: str) -> subprocess.Popen[bytes]:
        conf = self.work / "conf"
        command = [
            *inside, "java", f"-Xmx{HEAP}", "-XX:+UseG1GC", f"-Dlog4j.configurationFile={conf / 'log4j.properties'}",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
            "-cp", f"{self.home / 'lib'}/*", f"org.apache.flink.runtime.{what}", "--configDir", str(conf), *more,
        ]  # fmt: skip
        environment = {**os.environ, "FLINK_PLUGINS_DIR": str(self.home / "plugins"), "FLINK_CONF_DIR": str(conf)}
        name = what.rpartition(".")[2]
        with open(self.work / "log" / f"{name}-{time.time():.3f}.out", "wb") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _get(self, path: str) -> dict[str, Any]:
        return httpx.get(self.rest + path, timeout=30, trust_env=False).json()  # type: ignore[no-any-return]

    def _post(self, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            answer = httpx.post(self.rest + path, timeout=60, trust_env=False, **arguments)
        except httpx.HTTPError as error:
            raise RunFailed(f"Flink: {path}: {type(error).__name__}\n{self._log_end()}") from error
        if answer.status_code != 200:
            raise RunFailed(f"Flink: {path}: {answer.text[:2000]}")
        return answer.json()  # type: ignore[no-any-return]

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError, ValueError, TypeError):
                if condition():
                    return
            if time.monotonic() > deadline or (self.master is not None and self.master.poll() is not None):
                raise RunFailed(f"Flink: no {what} within {seconds:g} s\n{self._log_end()}")
            time.sleep(0.1)

    def _log_end(self) -> str:
        files = sorted((self.work / "log").glob(f"{MASTER.rpartition('.')[2]}-*.out"))
        return "\n".join(files[-1].read_text(errors="replace").splitlines()[-15:]) if files else ""

    # ---- the job
    def _fill(self) -> None:
        self.jar = compiled(self.home, self.bench.work)
        with self.bench.console.status(f"{self.system}: filling {self.gigabytes:g} GB ({self.keys:,} keys)"):
            self._submit()
            self._until(lambda: self._rows() >= self.keys, f"{self.keys} keys", 1800)
            self._checkpoints(2)

    def _submit(self, **more: str) -> None:
        with open(self.jar, "rb") as file:
            uploaded = self._post("/jars/upload", files={"jarfile": ("count.jar", file, "application/x-java-archive")})
        rate = int(self.a.rows * 1000 / float(self.a.interval.removesuffix("ms")))
        arguments = [str(self.keys), str(PAYLOAD - 20), str(rate), str(self.work / "out")]
        body = {"entryClass": "CountJob", "parallelism": self.a.workers, "programArgsList": arguments, **more}
        self.job = self._post(f"/jars/{Path(uploaded['filename']).name}/run", json=body)["jobid"]

    def _rows(self) -> int:
        vertices = self._get(f"/jobs/{self.job}")["vertices"]
        return int(next(v for v in vertices if "count" in v["name"])["metrics"]["read-records"] or 0)

    def _checkpoints(self, more: int) -> None:
        """The second one is begun after now."""

        def number() -> int:
            last = self._get(f"/jobs/{self.job}/checkpoints")["latest"]["completed"]
            return int(last["id"]) if last else 0

        first = number()
        self._until(lambda: number() >= first + more, f"{more} checkpoints")

    def _lose(self, repeat: int) -> None:
        self._checkpoints(2)
        victim, logs, at = self._busy(), self._logs(), time.time()
        os.killpg(self.managers[victim].pid, signal.SIGKILL)
        self.managers[victim].wait()
        back = self._back(at, "the kill of a task manager")
        self._add(ONE, repeat, back - at, logs)
        self.managers[victim] = self._manager(victim)
        self._until(lambda: self._get("/overview")["slots-total"] >= 2 * self.a.workers, "slots")

    def _lose_all(self, repeat: int) -> None:
        """The newest checkpoint is begun with as soon as there are slots."""
        self._checkpoints(2)
        newest = self._get(f"/jobs/{self.job}/checkpoints")["latest"]["completed"]["external_path"]
        logs, at = self._logs(), time.time()
        self._kill()
        shutil.rmtree(self.work / "tmp")
        (self.work / "tmp").mkdir()
        self._launch()
        self._submit(savepointPath=newest)
        back = self._back(at, "the kill of everything")
        self._add(STORE, repeat, back - at, logs)

    def _logs(self) -> dict[Path, int]:
        """Those of the master, and how long they are."""
        return {file: file.stat().st_size for file in (self.work / "log").glob(f"{MASTER.rpartition('.')[2]}-*.out")}

    def _add(self, case: str, repeat: int, seconds: float, before: dict[Path, int]) -> None:
        """With the parts that the traces say since."""
        text = "".join(file.read_text(errors="replace")[before.get(file, 0) :] for file in self._logs())
        spans = {
            what: max((int(ms) / 1000 for w, ms in SPAN.findall(text) if w == what), default=None) for what in KINDS
        }
        download, restore = spans["Download"], spans["Restore"]
        rest = None if restore is None else seconds - restore - (download or 0.0)
        self.bench.add(self.system, case, self.gigabytes, repeat, Recovery(seconds, rest, download, restore))

    def _busy(self) -> int:
        """A task manager that runs tasks of the count, by its process."""
        vertices = self._get(f"/jobs/{self.job}")["vertices"]
        count = next(v for v in vertices if "count" in v["name"])["id"]
        tasks = self._get(f"/jobs/{self.job}/vertices/{count}")["subtasks"]
        return int(str(tasks[0]["taskmanager-id"]).partition("-")[0])

    def _back(self, at: float, what: str) -> float:
        """When the last of all sinks that were opened since has put something out."""
        self._until(lambda: len(self._first_rows(at)) == self.a.workers, f"output of all tasks after {what}")
        time.sleep(SETTLE_SECONDS)
        return max(self._first_rows(at).values())

    def _first_rows(self, at: float) -> dict[str, float]:
        """By subtask: when its newest sink, if it was opened since, wrote first; in 5 ms."""
        found = {}
        for file in sorted((self.work / "out").glob("*.txt")):
            opened, subtask, _ = file.stem.split("-")
            words = file.read_text().split(maxsplit=3)
            if int(opened) / 1000 >= at and len(words) >= 3:
                found[subtask] = int(words[0]) / 1000
        return found


MASTER, MANAGER = "entrypoint.StandaloneSessionClusterEntrypoint", "taskexecutor.TaskManagerRunner"
HEAP = "768m"
MEMORY = {
    f"taskmanager.memory.{name}": size
    for name, size in {
        "framework.heap.size": "128m", "framework.off-heap.size": "128m", "task.heap.size": "640m",
        "task.off-heap.size": "0b", "network.min": "128m", "network.max": "128m", "managed.size": "512m",
        "jvm-metaspace.size": "256m", "jvm-overhead.min": "192m", "jvm-overhead.max": "192m",
    }.items()
}  # fmt: skip
LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} - %m%n
"""
KINDS = ("Download", "Restore")
TRACES = "org.apache.flink.traces.slf4j.Slf4jTraceReporterFactory"
OPENED = ("java.net", "java.io", "java.lang", "java.lang.reflect", "java.text", "java.time", "java.util",
          "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks")  # fmt: skip


def installed(where: Path) -> Path:
    """Home of Flink in this directory; it is installed there if need be."""
    home = where / "pyflink"
    if not home.exists():
        _ask("pip", sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(where), LIBRARIES)
    plugin = home / "plugins" / "s3"
    if not plugin.exists():
        _ask(
            "Maven", "mvn", "-q", "dependency:copy", f"-Dartifact=org.apache.flink:flink-s3-fs-hadoop:{VERSION}",
            f"-DoutputDirectory={plugin}", "-Dmdep.useBaseVersion=true",
        )  # fmt: skip
    return home


def compiled(home: Path, work: Path) -> Path:
    """The job as a jar."""
    (work / "classes").mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent / "flink" / "CountJob.java"
    dist = home / "lib" / f"flink-dist-{VERSION}.jar"
    _ask("javac", "javac", "-nowarn", "-cp", str(dist), "-d", str(work / "classes"), str(source))
    _ask("jar", "jar", "cf", str(work / "count.jar"), "-C", str(work / "classes"), ".")
    return work / "count.jar"


def _ask(what: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    except FileNotFoundError as error:
        raise RunFailed(f"Flink needs {what}: {error}; leave it out with --systems ferry spark") from None
    if done.returncode:
        why = (done.stdout + done.stderr)[-1500:]
        raise RunFailed(f"Flink is not to be had, {what} says: {why}\nleave it out with --systems ferry spark")
