"""A cluster of Flink 2 that benchmarks measure beside Ferry.

Flink's libraries are those of PyPI, what is for S3 is from Maven. They are put below `build/`, never into the environment of
Ferry, and started without its shell scripts, which they are without. A job is one file of Java.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.shared import fetching
from bench.shared.ferry_job import ROOT, RunFailed
from bench.shared.links import FIRST_WORKER, Links

HOME = ROOT / "build" / "flink"
VERSION = "2.3.0"
LIBRARIES = f"apache-flink-libraries=={VERSION}"
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
OPENED = ("java.net", "java.io", "java.lang", "java.lang.reflect", "java.text", "java.time", "java.util",
          "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks")  # fmt: skip
FAST = {
    "heartbeat.interval": "500 ms", "heartbeat.timeout": "3 s", "heartbeat.rpc-failure-threshold": "1",
    "execution.state-recovery.from-local": "true", "restart-strategy.fixed-delay.delay": "100 ms",
}  # fmt: skip
"""What a cluster is tuned with that is to be back soon."""

AT_ONCE = {
    "jobmanager.scheduler": "adaptive",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "0 s",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "0 s",
}
"""And what it is tuned with that gives a job another parallelism while it runs, and waits for nothing."""


class FlinkCluster:
    """A master and task managers of two slots each; Flink's own words and addresses."""

    def __init__(
        self,
        work: Path,
        home: Path,
        managers: int,
        settings: dict[str, str],
        apart: Links | None = None,
        jars: Sequence[Path] = (),
    ) -> None:
        self.work, self.home, self.count, self.apart = work, home, managers, apart
        self._classes = ":".join([f"{home / 'lib'}/*", *map(str, jars)])
        self.rest = f"http://127.0.0.1:{_free()}"
        self.managers: list[subprocess.Popen[bytes]] = []
        self.master: subprocess.Popen[bytes] | None = None
        for folder in ("conf", "log", "out", "tmp"):
            (work / folder).mkdir(parents=True)
        (work / "conf" / "log4j.properties").write_text(LOG4J)
        made = self._settings() | settings
        (work / "conf" / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in made.items()))

    def launch(self) -> None:
        """Start all of it. Returns when there are slots."""
        self.master = self._process(MASTER)
        self.managers = [self._manager(worker) for worker in range(self.count)]
        self.until_slots()

    def until_slots(self) -> None:
        """Wait for those of all task managers."""
        self.until(lambda: self.get("/overview")["slots-total"] >= 2 * self.count, "slots")

    def kill(self) -> None:
        """All of it, with kill -9."""
        for process in [*self.managers, *([self.master] if self.master else [])]:
            _kill(process)

    def kill_manager(self, worker: int) -> None:
        """One of its task managers, with kill -9."""
        _kill(self.managers[worker])

    def start_manager(self, worker: int) -> None:
        """Another life of one that was killed; does not wait."""
        self.managers[worker] = self._manager(worker)

    def _settings(self) -> dict[str, str]:
        here = "127.0.0.1" if self.apart is None else self.apart.here
        return {
            "jobmanager.rpc.address": here, "jobmanager.rpc.port": str(_free()), "jobmanager.bind-host": here,
            "rest.address": "127.0.0.1", "rest.bind-address": "127.0.0.1", "rest.port": self.rest.rpartition(":")[2],
            "taskmanager.numberOfTaskSlots": "2", "taskmanager.load-balance.mode": "SLOTS", **MEMORY,
            "io.tmp.dirs": str(self.work / "tmp"), "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1000",
        }  # fmt: skip

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
            "-cp", self._classes, f"org.apache.flink.runtime.{what}", "--configDir", str(conf), *more,
        ]  # fmt: skip
        environment = {**os.environ, "FLINK_PLUGINS_DIR": str(self.home / "plugins"), "FLINK_CONF_DIR": str(conf)}
        name = what.rpartition(".")[2]
        with open(self.work / "log" / f"{name}-{time.time():.3f}.out", "wb") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def logs(self) -> list[Path]:
        """Those of the master."""
        return sorted((self.work / "log").glob(f"{MASTER.rpartition('.')[2]}-*.out"))

    def get(self, path: str) -> dict[str, Any]:
        """What its REST interface says."""
        return httpx.get(self.rest + path, timeout=30, trust_env=False).json()  # type: ignore[no-any-return]

    def post(self, path: str, **arguments: Any) -> dict[str, Any]:
        """Ask its REST interface for something. Raises RunFailed."""
        return self._ask("POST", path, **arguments)

    def put(self, path: str, **arguments: Any) -> dict[str, Any]:
        """Tell its REST interface something. Raises RunFailed."""
        return self._ask("PUT", path, **arguments)

    def _ask(self, method: str, path: str, status: int = 200, **arguments: Any) -> dict[str, Any]:
        try:
            answer = httpx.request(method, self.rest + path, timeout=60, trust_env=False, **arguments)
        except httpx.HTTPError as error:
            raise RunFailed(f"Flink: {path}: {type(error).__name__}\n{self._log_end()}") from error
        if answer.status_code != status:
            raise RunFailed(f"Flink: {path}: {answer.text[:2000]}")
        return answer.json()  # type: ignore[no-any-return]

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
        """Wait for something; that it cannot be asked yet counts as no. Raises RunFailed."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError, ValueError, TypeError):
                if condition():
                    return
            if time.monotonic() > deadline or (self.master is not None and self.master.poll() is not None):
                raise RunFailed(f"Flink: no {what} within {seconds:g} s\n{self._log_end()}")
            time.sleep(0.1)

    def submit(self, jar: Path, entry: str, parallelism: int, arguments: list[str], **more: str) -> str:
        """Start a job of it; its id. `more` as Flink's REST interface calls it, as in `savepointPath`."""
        with open(jar, "rb") as file:
            uploaded = self.post("/jars/upload", files={"jarfile": (jar.name, file, "application/x-java-archive")})
        body = {"entryClass": entry, "parallelism": parallelism, "programArgsList": arguments, **more}
        return str(self.post(f"/jars/{Path(uploaded['filename']).name}/run", json=body)["jobid"])

    def rescale(self, job: str, parallelism: int) -> None:
        """Ask for another parallelism of every vertex, while the job runs; only the adaptive scheduler does it."""
        bounds = {"parallelism": {"lowerBound": 1, "upperBound": parallelism}}
        ids = [v["id"] for v in self.get(f"/jobs/{job}")["vertices"]]
        self.put(f"/jobs/{job}/resource-requirements", json=dict.fromkeys(ids, bounds))

    def stop(self, job: str, **more: str) -> str:
        """Take it down at a savepoint: where that is. `more` as Flink's REST interface calls it, as in `formatType`."""
        body = {"targetDirectory": f"file://{self.work}/savepoints", **more}
        asked = self._ask("POST", f"/jobs/{job}/stop", 202, json=body)
        path, found = f"/jobs/{job}/savepoints/{asked['request-id']}", dict[str, Any]()

        def is_there() -> bool:
            found.update(self.get(path))
            return bool(found["status"]["id"] == "COMPLETED")

        self.until(is_there, "savepoint")
        if "location" not in found["operation"]:
            raise RunFailed(f"Flink: no savepoint: {str(found['operation'])[:2000]}")
        return str(found["operation"]["location"])

    def _log_end(self) -> str:
        files = self.logs()
        return "\n".join(files[-1].read_text(errors="replace").splitlines()[-15:]) if files else ""


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def installed(where: Path, *, s3: bool = False) -> Path:
    """Home of Flink in this directory; it is installed there if need be, with what is for S3 if asked for."""
    home = where / "pyflink"
    if not home.exists():
        fetching.run("pip", sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(where), LIBRARIES)
    if s3:
        fetching.artifact(f"org.apache.flink:flink-s3-fs-hadoop:{VERSION}", home / "plugins" / "s3")
    return home


def compiled(home: Path, work: Path, source: Path, jars: Sequence[Path] = ()) -> Path:
    """A job as a jar, compiled against Flink's and these; it may use classes of the jobs beside this file."""
    classes, jar = work / "classes" / source.stem, work / f"{source.stem}.jar"
    classes.mkdir(parents=True, exist_ok=True)
    path = ":".join(map(str, [home / "lib" / "*", *jars]))
    beside = str(Path(__file__).parent)
    fetching.run("javac", "javac", "-nowarn", "-cp", path, "-sourcepath", beside, "-d", str(classes), str(source))
    fetching.run("jar", "jar", "cf", str(jar), "-C", str(classes), ".")
    return jar
