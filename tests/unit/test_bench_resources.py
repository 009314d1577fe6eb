"""What is seen of the processes of a run: who belongs to it, what each is, and that what they used adds up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.shared import proc, resources
from bench.shared.resources import LOOPBACK, Resources

PYTHON = "/usr/bin/python -m"
COMMANDS = {
    "Flink, job manager": "java -cp x org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint --configDir c",
    "Flink, task managers": "java -Xmx768m org.apache.flink.runtime.taskexecutor.TaskManagerRunner --configDir bench.results",
    "Ferry, sidecars": "python -B -c from multiprocessing.forkserver import main; main(3, 5, ['ferry.sidecar.preload'])",
    "Ferry, driver": f"{PYTHON} ferry.driver /repo/bench/results/work-latency-1/ferry/run/run.json",
    "Spark, Python of tasks": f"{PYTHON} ferry.spark.daemon pyspark.worker",
    "Spark, JVM": "java -cp pyspark/jars/x.jar org.apache.spark.deploy.SparkSubmit pyspark-shell",
    "Spark, driver": f"{PYTHON} bench.parts.latency.spark_paced conf.json",
    "Ferry, supervisor": f"{PYTHON} bench.shared.apart fb12 run job.yaml --quiet",
    "Redis": "redis-server unixsocket:/repo/bench/results/redis.sock",
    "Kafka": "java -cp jars/* kafka.Kafka server.properties",
    "the bench": f"{PYTHON} bench.reconfigure --act balance",
    "other": "sleep 60",
}


@pytest.mark.parametrize("group", COMMANDS)
def test_processes_are_told_apart_by_their_commands(group: str) -> None:
    assert proc.group_of(COMMANDS[group]) == group
    assert group == proc.OTHER or group in [name for name, _ in proc.KINDS]


# ---- a /proc of our own
@dataclass
class FakeProc:
    """Files as the kernel has them."""

    folder: Path

    def put(
        self, pid: int, parent: int, command: str = "sleep 60", *, cpu: float = 0.0, resident: int = 1, started: int = 5,
        io: tuple[int, int] = (0, 0), mark: str = "", space: str = "net:[1]", network: str = "",
    ) -> None:  # fmt: skip
        """One process, anew."""
        own, ticks = self.folder / str(pid), int(cpu * os.sysconf("SC_CLK_TCK"))
        for name in ("ns", "net"):
            (own / name).mkdir(parents=True, exist_ok=True)
        words = ["S", str(parent), *["0"] * 9, str(ticks), "0", *["0"] * 6, str(started), "0", str(resident), "0", "0"]
        (own / "stat").write_text(f"{pid} (a ) program) {' '.join(words)}\n")
        (own / "cmdline").write_text(command.replace(" ", "\0"))
        (own / "environ").write_text(f"PATH=/bin\0{proc.MARK}={mark}\0" if mark else "PATH=/bin\0")
        (own / "status").write_text("Name:\tx\nVmRSS:\t  99 kB\nRssAnon:\t       7 kB\n")
        (own / "io").write_text(f"rchar: 1\nwchar: 2\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")
        (own / "ns" / "net").unlink(missing_ok=True)
        (own / "ns" / "net").symlink_to(space)
        (own / "net" / "dev").write_text("Inter-| Receive | Transmit\n face |bytes packets\n" + network)

    def remove(self, pid: int) -> None:
        """It has ended."""
        for file in sorted((self.folder / str(pid)).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        (self.folder / str(pid)).rmdir()


def device(name: str, received: int, sent: int) -> str:
    return f"  {name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def test_members_are_what_was_started_and_what_has_the_mark(tmp_path: Path) -> None:
    fake, seen = FakeProc(tmp_path), Resources(100, "m1", where=tmp_path)
    fake.put(1, 0)
    fake.put(100, 50)
    fake.put(102, 101)
    fake.put(101, 100)
    fake.put(103, 1, mark="m1")
    fake.put(104, 103)
    fake.put(105, 1, mark="m2")
    fake.put(106, 50)
    (tmp_path / "self").mkdir()
    assert sorted(one.pid for one in seen.members()) == [100, 101, 102, 103, 104]
    # Whose parents have ended stays; a number that is used again is another process.
    fake.remove(101)
    fake.put(102, 1)
    fake.put(104, 1, started=9)
    assert sorted(one.pid for one in seen.members()) == [100, 102, 103]


def test_what_was_used_adds_up_also_of_those_that_have_ended(tmp_path: Path) -> None:
    fake, seen = FakeProc(tmp_path), Resources(100, "m", where=tmp_path)
    fake.put(100, 50, "python -m bench.x", cpu=1.0, resident=3)
    fake.put(101, 100, "python -m bench.x", cpu=0.5)
    fake.put(102, 100, "python -m ferry.driver", cpu=4.0, io=(10, 20))
    seen.look()
    fake.put(
        101, 100, "python -m ferry.sidecar", cpu=2.5, io=(0, 7)
    )  # It was a copy of its parent, and has become this.
    fake.remove(102)
    seen.look()
    first, last = (look.uses for look in seen.looks)
    page = os.sysconf("SC_PAGE_SIZE")
    assert (first["the bench"].cpu, first["the bench"].rss, first["the bench"].processes) == (1.5, 4 * page, 2)
    assert first["the bench"].anonymous == 2 * 7 * 1024 and "Ferry, sidecars" not in first
    assert (last["the bench"].cpu, last["the bench"].processes) == (1.5, 1)
    assert (last["Ferry, sidecars"].cpu, last["Ferry, sidecars"].written) == (2.0, 7)
    assert (last["Ferry, driver"].cpu, last["Ferry, driver"].read, last["Ferry, driver"].written) == (4.0, 10, 20)
    assert (last["Ferry, driver"].processes, last["Ferry, driver"].rss) == (0, 0)
    # One that has ended and waits for its parent has no command and no files; what it used at the end is its group's.
    fake.put(101, 100, "", cpu=3.0)
    seen.look()
    assert (seen.looks[-1].uses["Ferry, sidecars"].cpu, seen.looks[-1].uses["Ferry, sidecars"].written) == (2.5, 7)
    assert seen.looks[-1].uses["Ferry, sidecars"].processes == 0 and proc.OTHER not in seen.looks[-1].uses


def test_network_is_told_by_namespace(tmp_path: Path) -> None:
    fake, seen = FakeProc(tmp_path), Resources(100, "m", where=tmp_path)
    host = device("lo", 1000, 1000) + device("eth0", 5, 5)
    fake.put(100, 50, "python -m bench.x", network=host)
    seen.look()
    sidecar = "python -m ferry.sidecar"
    for pid, space in ((101, "net:[2]"), (102, "net:[2]"), (103, "net:[3]")):
        fake.put(pid, 100, sidecar, space=space, network=device("lo", 9, 9) + device("fb1t10", 30, 40))
    fake.put(100, 50, "python -m bench.x", network=host.replace("1000", "1500"))
    seen.look()
    fake.put(101, 100, sidecar, space="net:[2]", network=device("fb1t10", 35, 40))
    fake.put(102, 100, sidecar, space="net:[2]", network=device("fb1t10", 35, 40))
    fake.remove(103)
    seen.look()
    fake.put(104, 100, sidecar, space="net:[3]", network=device("fb1t10", 2, 3))
    seen.look()
    told = [look.network for look in seen.looks]
    assert told[:3] == [{LOOPBACK: 0}, {LOOPBACK: 500, "Ferry, sidecars": 140}, {LOOPBACK: 500, "Ferry, sidecars": 145}]
    assert told[3]["Ferry, sidecars"] == 150, "another namespace that has the name of one that is gone"


def test_what_was_seen_is_written_and_drawn(tmp_path: Path) -> None:
    fake, seen = FakeProc(tmp_path / "proc"), Resources(100, "m", every=2.0, where=tmp_path / "proc")
    for n in range(3):
        fake.put(100, 50, "python -m bench.x", cpu=n, network=device("lo", n, n))
        if n:
            fake.put(101, 100, "python -m ferry.driver", cpu=10 * n, network=device("lo", n, n))
        seen.look()
    files = resources.write(tmp_path / "x-resources.json", "rhino-6", seen)
    assert [file.name for file in files] == ["x-resources.json", "x-resources.png"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    found = json.loads(files[0].read_text())
    assert found["about"]["what"] == "rhino-6" and "each 2 s" in found["about"]["method"] and len(found["t"]) == 3
    assert found["groups"]["the bench"]["cpu"] == [0, 1, 2] and found["network"][LOOPBACK] == [0, 1, 2]
    assert found["groups"]["Ferry, driver"]["cpu"] == [None, 10, 20]
    assert resources.rates([0.0, 2.0, 3.0], {"a": [1.0, 5.0, None], "b": [None, 1.0, 4.0]}) == {
        "a": [None, 2.0, None],
        "b": [None, None, 3.0],
    }
    assert len(resources.panels(seen.looks)) == 4


# ---- processes that are there
BUSY = "import time\nx = bytearray(b'1') * 30_000_000\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
WRITES = "import os\nf = open({file!r}, 'wb'); f.write(b'x' * 3_000_000); f.flush(); os.fsync(f.fileno())\n"
STAYS = "time.sleep(60)\n"


@contextmanager
def orphan(mark: str, program: str) -> Iterator[int]:
    """A process with this mark whose parent has ended, in a session of its own."""
    parent = f"""
import subprocess, sys
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
print(subprocess.Popen([sys.executable, "-c", {program!r}], start_new_session=True, **quiet).pid)
"""
    environment = {**os.environ, proc.MARK: mark}
    done = subprocess.run([sys.executable, "-c", parent], env=environment, check=True, capture_output=True, text=True)
    pid = int(done.stdout)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_command_is_run_and_looked_at(tmp_path: Path) -> None:
    code, seen = resources.run(
        [sys.executable, "-c", f"import os; exit(7 if os.environ['{proc.MARK}'] else 0)"], tmp_path
    )
    assert code == 7 and seen.looks and proc.mark_of(os.getpid()) != seen.mark


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_orphan_of_the_run_is_found_and_a_stranger_is_not(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    root = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with (
            orphan(mark, BUSY + WRITES.format(file=str(tmp_path / "f")) + STAYS) as lost,
            orphan("another", "import time\n" + STAYS) as other,
        ):
            seen = Resources(root.pid, mark, every=0.02)
            with seen:
                until(lambda: bool(seen.looks) and seen.looks[-1].uses["other"].cpu > 0.1)
                until(lambda: seen.looks[-1].uses["other"].written >= 3_000_000 or not (tmp_path / "f").exists())
                members = {one.pid for one in seen.members()}
            assert {root.pid, lost} <= members and other not in members and os.getpid() not in members
            use = seen.looks[-1].uses["other"]
            assert use.anonymous > 30_000_000 and use.rss > use.anonymous and use.processes == 2
            assert list(seen.looks[-1].network) == [LOOPBACK]
    finally:
        root.kill()
        root.wait()
