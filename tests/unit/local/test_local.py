"""The pieces of a run on one machine that need no whole run: registry, directory, settings, environment, processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.run_directory import LIFE, SYNCING
from ferry.contract.settings import CheckpointSettings, RunSettings, TransportSettings
from ferry.system.flight_places import fits_socket, socket_folder
from ferry_operator.cli import targets
from ferry_operator.job import spec
from ferry_operator.job.settings import Options, settings_for
from ferry_operator.local import driver as driver_module
from ferry_operator.local import environment, outputs
from ferry_operator.local.cluster import local, reaper
from ferry_operator.local.cluster import processes as processes_module
from ferry_operator.local.cluster.local import LocalCluster, Programs
from ferry_operator.local.cluster.private_redis import PrivateRedis, server_program
from ferry_operator.local.cluster.processes import Processes, last_lines
from ferry_operator.local.driver import StatusWatch
from ferry_operator.local.exits import ProcessExits
from ferry_operator.local.interrupts import Interrupts
from ferry_operator.local.registry import NoSuchJob, RegisteredRun, Registry, born
from ferry_operator.local.run import run
from ferry_operator.local.run_command import REFUSED, RunCommand
from ferry_operator.local.rundir import RunDirectory

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: counts}
spec:
  pipeline: {file: counts.py, args: {a: 1}}
  workers: 3
  epoch: {interval: 200ms}
  state: {memory: 64Mi}
"""


def entry(**changes: object) -> RegisteredRun:
    one = RegisteredRun("counts", "counts-1", "http://127.0.0.1:1", "s", os.getpid(), born(os.getpid()), "/d", 1.0)
    return replace(one, **changes)  # type: ignore[arg-type]


def test_a_run_is_found_by_the_name_of_its_job_or_its_own(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    file = registry.add(entry())
    assert file.stat().st_mode & 0o777 == 0o600
    assert registry.find("counts") == registry.find("counts-1") == entry()
    registry.add(entry(run="counts-2"))
    with pytest.raises(SpecRefused, match="counts-1, counts-2"):
        registry.find("counts")
    assert registry.find("counts-2").run == "counts-2"
    with pytest.raises(NoSuchJob, match=r"running: counts$"):
        registry.find("other")


def test_the_end_of_a_process_wakes_the_supervisor() -> None:
    woken = threading.Event()
    with Interrupts(woken.set) as interrupts:
        subprocess.run([sys.executable, "-c", ""], check=True)
        assert woken.wait(20) and interrupts.count == 0
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


@pytest.mark.parametrize("changes", [{"pid": 2**22 - 3}, {"born": 5.0}], ids=["gone", "another process has its id"])
def test_what_is_left_of_a_dead_run_is_cleaned_up(tmp_path: Path, changes: dict[str, object]) -> None:
    file = Registry(tmp_path).add(entry(**changes))
    (tmp_path / "registry" / "broken.json").write_text("{")
    assert Registry(tmp_path).entries() == []
    assert not file.exists() and list(file.parent.iterdir()) == []


def test_a_step_of_the_clock_does_not_hide_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Registry(tmp_path).add(entry())
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 86_400)
    assert Registry(tmp_path).entries() == [entry()]


def test_an_entry_that_cannot_be_read_now_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Registry(tmp_path).add(entry())

    def read_text(path: Path) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        assert Registry(tmp_path).entries() == []
    assert file.exists()


def test_a_home_that_cannot_be_used_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(SpecRefused, match=r"home/locks: cannot be used .*Not a directory; set FERRY_HOME"):
        with Registry(tmp_path / "home").only("counts"):
            pass

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FERRY_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(SpecRefused, match=r"directory for runs: Could not determine home directory\.; set FERRY_HOME"):
        environment.home()


@pytest.mark.parametrize("name", ["x" * 60, "a b", "é", "a%41#"])
def test_sockets_below_the_temporary_folder_have_a_path_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (long := tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    processes = Processes("counts-1", tmp_path / "logs")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(processes.temporary))
        path = socket_folder(tmp_path / "state" / ("y" * 90)) / f".{uuid.uuid4()}.sock"
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    finally:
        processes.close()
    assert not list(long.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SpecRefused, match=r"no folder for temporary files: .*nowhere.*set TMPDIR"):
        Processes("counts-2", tmp_path / "logs")


def test_settings_say_what_the_job_file_says(tmp_path: Path) -> None:
    job = spec.load(JOB, [])
    directory = RunDirectory(job, tmp_path)
    settings = settings_for(job, tmp_path / "jobs" / "job.yaml", directory, Options(events=5, output=Path("out")))
    directory.close(remove=True)
    assert not directory.path.exists()
    assert settings.run.startswith("counts-") and settings.directory == str(tmp_path / "runs" / settings.run)
    assert settings.pipeline_file == str(tmp_path / "jobs" / "counts.py") and settings.pipeline_args == {"a": 1}
    assert (settings.workers, settings.epoch_interval_ms, settings.memory_bytes) == (3, 200, 64 << 20)
    assert settings.output == str(Path("out").absolute()) and settings.events == 5
    assert (settings.heartbeat_ms, settings.timeout_ms) == (500, 2500)


def test_settings_say_where_checkpoints_go(tmp_path: Path) -> None:
    def settings(*sets: str) -> RunSettings:
        job = spec.load(JOB, sets)
        directory = RunDirectory(job, tmp_path)
        found = settings_for(job, Path("job.yaml"), directory, Options())
        directory.close(remove=True)
        return found

    assert (settings().checkpoint, settings().restore_from, settings().restore_sink) == (None, None, "truncate")
    given = settings("state.checkpoint.location=s3://b/x", "state.checkpoint.every=1.5m", "state.checkpoint.keep=9")
    assert given.checkpoint == CheckpointSettings("s3://b/x", 90_000, 9)
    asked = settings(
        "state.checkpoint.location=store", "state.checkpoint.every=null", "restoreFrom=12", "restoreSink=keep"
    )
    assert asked.checkpoint == CheckpointSettings(str(Path("store").absolute()), None, 3)
    assert (asked.restore_from, asked.restore_sink) == ("12", "keep")


@pytest.mark.parametrize("one", ["workers=0", "suspend=true"])
def test_a_job_is_not_suspended_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str) -> None:
    monkeypatch.setenv("FERRY_HOME", str(tmp_path))
    (tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(SpecRefused, match="ferry suspend JOB"):
        run(RunCommand(tmp_path / "job.yaml", ("state.checkpoint.location=/x", one), quiet=True))


def test_an_output_that_cannot_be_written_to_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "counts.py").write_text("")
    (tmp_path / "afile").write_text("")
    nothing = Programs(("false",), ("false",))

    def refusal(output: Path, *sets: str) -> str:
        with pytest.raises(SpecRefused) as refused:
            run(RunCommand(tmp_path / "job.yaml", sets, options=Options(output=output), quiet=True), nothing)
        assert not list((tmp_path / "home" / "runs").iterdir())
        return str(refused.value)

    for output in (tmp_path / "afile", tmp_path / "afile" / "a" / "b"):
        assert f"{tmp_path / 'afile'} is a file; make it a folder, or choose another --output" in refusal(output)
    written = tmp_path / "out" / "sales"
    (written / "epoch=0").mkdir(parents=True)
    (written / LIFE).write_text(json.dumps({"run": "counts-1", "job": "counts", "sink": "sales", "life": ""}))
    monkeypatch.chdir(tmp_path)
    assert f"{written} is written by run counts-1; choose another --output" in refusal(Path("out"))
    assert "counts-1" in refusal(Path("out"), "restoreFrom=none", "state.checkpoint.location=/x")


@pytest.mark.parametrize("changes", [{"run": "counts-1"}, {"job": "other"}, {"output": None}], ids=str)
def test_an_output_of_this_run_or_of_another_job_is_left_to_the_driver(tmp_path: Path, changes: dict[str, str]) -> None:
    (tmp_path / "sales" / "epoch=0").mkdir(parents=True)
    (tmp_path / "sales" / LIFE).write_text(json.dumps({"run": "counts-1", "job": "counts"}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LIFE).write_text("of an older release")
    other = {"job": "counts", "run": "counts-2", "output": str(tmp_path), **changes}
    outputs.require(cast(RunSettings, SimpleNamespace(**other)), restores=False)
    outputs.require(cast(RunSettings, SimpleNamespace(**{**other, **changes, "run": "counts-3"})), restores=True)
    (tmp_path / "away").write_text("in the way")
    outputs.require(cast(RunSettings, SimpleNamespace(**{**other, "output": str(tmp_path / "away")})), restores=True)


def test_a_log_of_an_older_run_is_said_to_be_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FERRY_HOME", str(tmp_path))
    older, registry = tmp_path / "runs" / "counts-1", Registry(tmp_path)
    older.mkdir(parents=True)
    (older / "run.json").write_text(json.dumps({"job": "counts", "run": "counts-1"}))
    with registry.only("counts"):
        end = {"kind": "ended", "outcome": "refused", "text": "no rows", "t": registry.begun("counts") + 1.0}
        (older / "timeline.jsonl").write_text(json.dumps(end) + "\n")
    assert targets.directory(targets.Target(), "counts") is not None
    assert "a later run" not in capsys.readouterr().err
    later = registry.begun("counts") + 60
    os.utime(tmp_path / "locks" / "counts.lock", (later, later))
    assert targets.directory(targets.Target(), "counts") is not None
    assert "a later run of counts has left no files: `ferry run --keep` leaves them" in capsys.readouterr().err


def test_a_directory_serves_one_run_of_one_job(tmp_path: Path) -> None:
    job = spec.load(JOB, [f"state.directory={tmp_path / 's'}"])
    directory = RunDirectory(job, tmp_path)
    with pytest.raises(SpecRefused, match="another run uses this directory"):
        RunDirectory(job, tmp_path)
    settings_for(job, Path("job.yaml"), directory, Options()).write()
    directory.close(remove=False)
    again = RunDirectory(job, tmp_path)
    assert again.resumed and again.run == directory.run
    again.close(remove=False)
    other = spec.load(JOB.replace("name: counts", "name: other"), [f"state.directory={tmp_path / 's'}"])
    with pytest.raises(SpecRefused, match="holds the state of job 'counts'"):
        RunDirectory(other, tmp_path)
    (tmp_path / "s" / "run.json").write_text("{}")
    with pytest.raises(SpecRefused, match="is not the file of a run"):
        RunDirectory(job, tmp_path)


def test_a_checkpoint_is_for_a_directory_without_state(tmp_path: Path) -> None:
    """It would be passed over, and nobody told."""
    here = f"state.directory={tmp_path / 's'}"
    restores = spec.load(JOB, [here, "state.checkpoint.location=/x", "restoreFrom=latest"])
    directory = RunDirectory(restores, tmp_path)
    settings_for(restores, Path("job.yaml"), directory, Options()).write()
    directory.close(remove=False)
    RunDirectory(restores, tmp_path).close(remove=False)  # it did not come so far
    (tmp_path / "s" / "checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "s" / "checkpoint" / "commits" / "7").write_text("v1")
    with pytest.raises(SpecRefused, match="Remove restoreFrom"):
        RunDirectory(restores, tmp_path)
    RunDirectory(spec.load(JOB, [here]), tmp_path).close(remove=False)


def test_what_is_set_wins_over_what_setup_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ferry.env").write_text("JAVA_HOME=/found\nFERRY_X=/a=b\n# FERRY_Y=1\nnonsense\n")
    monkeypatch.setenv("JAVA_HOME", "/mine")
    monkeypatch.delenv("FERRY_X", raising=False)
    environment.read_ferry_env(tmp_path / "ferry.env")
    assert (os.environ["JAVA_HOME"], os.environ["FERRY_X"]) == ("/mine", "/a=b")
    assert "FERRY_Y" not in os.environ and "# FERRY_Y" not in os.environ
    monkeypatch.delenv("FERRY_X")
    environment.read_ferry_env(tmp_path / "none.env")


def test_a_file_of_the_users_takes_the_place_of_no_module_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise NameError('of the user')\n")
    monkeypatch.chdir(tmp_path)
    processes = Processes(f"test-{os.getpid()}-shadow", tmp_path / "logs")
    try:
        child = processes.start("shadow", [sys.executable, "-m", "json.tool", "--help"])
        assert child.popen.wait(20) == 0, (tmp_path / "logs" / "shadow.log").read_text()
    finally:
        processes.close()


@pytest.mark.parametrize("name", ["d" * 100, "a b", "é#%41"])
def test_the_socket_of_redis_fits_whatever_the_directory(tmp_path: Path, name: str) -> None:
    processes = Processes("test-socket", tmp_path / "logs")
    redis = PrivateRedis(processes, tmp_path / name, "s")
    assert fits_socket(redis.socket)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(redis.socket))
    redis.close()
    processes.close()
    assert not redis.socket.parent.exists()


def test_a_kill_reaches_children_in_groups_of_their_own_and_nobody_else(tmp_path: Path) -> None:
    processes = Processes(f"test-{os.getpid()}", tmp_path / "logs")
    child = "import subprocess; subprocess.Popen(['sleep', '99'], process_group=0); print('up', flush=True); input()"
    tree = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(99)"
    one = processes.start(
        "worker-1", [sys.executable, "-S", "-c", tree, child.replace("input()", "import time; time.sleep(9)")]
    )
    ten = processes.start("worker-10", ["sleep", "99"])
    while not last_lines(processes.log("worker-1")):
        assert one.code is None
    mark = f"test-{os.getpid()}/worker-1\0"
    while len(members := reaper.tagged(mark)) < 3:  # what is just being executed has no environment for a moment
        assert one.code is None
    assert len(members) == 3 and processes.belongs(members[-1], "worker-1")
    assert not processes.belongs(ten.pid, "worker-1")
    processes.kill(one)
    assert reaper.tagged(mark) == [] and one.code == -9 and one.killed
    assert ten.code is None
    processes.close()
    assert ten.popen.wait(5) == -9


def test_a_pid_that_belongs_to_nobody_of_ours_is_not_killed(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "99"])
    job = spec.load(JOB)
    directory = RunDirectory(job, tmp_path)
    settings: RunSettings = settings_for(job, Path("job.yaml"), directory, Options())
    processes = Processes(f"test-{os.getpid()}-stranger", tmp_path / "logs")
    sleeping = Programs(sidecar=("sh", "-c", "sleep 99"))
    cluster = LocalCluster(settings, processes, PrivateRedis(processes, tmp_path / "r", "s"), sleeping)
    cluster.start_worker(0, 1)
    file = settings.path / "workers" / "0" / "0" / "pid"
    file.parent.mkdir()
    file.write_text(str(stranger.pid))
    with pytest.raises(Refusal, match=r"0\.0 is not running"):
        cluster.kill_instance(0, 0)
    with pytest.raises(Refusal, match="has written no pid"):
        cluster.kill_instance(0, 7)
    with pytest.raises(Refusal, match="worker 3 is not running"):
        cluster.kill_worker(3)
    assert [(w.index, w.instances, w.running) for w in cluster.workers()] == [(0, 1, True)]
    cluster.kill_worker(0)
    assert [(w.running, w.failures) for w in cluster.workers()] == [(False, 0)], "killed on purpose is no failure"
    cluster.stop_worker(0)
    assert cluster.workers() == () and not file.exists()
    cluster.close()
    directory.close(remove=True)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_json_of_a_run_is_read_back(tmp_path: Path) -> None:
    job = spec.load(JOB)
    directory = RunDirectory(job, tmp_path)
    settings = replace(settings_for(job, Path("job.yaml"), directory, Options()), stops=((3, "begin"),))
    file = settings.write()
    assert RunSettings.read(file) == settings and file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["secret"] == settings.secret
    directory.close(remove=True)


def test_the_transport_of_a_run(tmp_path: Path) -> None:
    job = spec.load(
        JOB + "  transport: {mode: rdma, rdma: {slots: 2, slotBytes: 4096, pinned: 32Ki, notify: footer, lend: 8Ki}}\n"
    )
    directory = RunDirectory(job, tmp_path)
    settings = settings_for(job, Path("job.yaml"), directory, Options())
    directory.close(remove=True)
    wanted = TransportSettings("rdma", False, None, None, 2, 4096, "footer", 32 << 10, 8 << 10)
    assert settings.transport == wanted


@pytest.mark.parametrize("syncs", [True, False])
def test_a_worker_that_waits_for_the_disk_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool
) -> None:
    monkeypatch.setattr(local, "END_SECONDS", 0.3)
    job = spec.load(JOB)
    directory = RunDirectory(job, tmp_path)
    settings = settings_for(job, Path("job.yaml"), directory, Options())
    processes = Processes(f"test-{os.getpid()}-disk", tmp_path / "logs")
    slow = Programs(
        sidecar=("sh", "-c", "trap 'sleep 1; echo synced; exit' TERM; echo up; while :; do sleep 0.1; done")
    )
    cluster = LocalCluster(settings, processes, PrivateRedis(processes, tmp_path / "r", "s"), slow)
    cluster.start_worker(0, 1)
    while not last_lines(cluster.worker_log(0)):
        pass
    if syncs:
        (settings.path / "workers" / "0" / "0").mkdir()
        (settings.path / "workers" / "0" / "0" / SYNCING).touch()
    cluster.close()
    assert last_lines(cluster.worker_log(0)) == (["up", "synced"] if syncs else ["up"])
    directory.close(remove=True)


def test_the_directory_of_a_run_that_may_go_on_is_on_the_disk_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = set[str](), os.fsync

    def note(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    for sets in ([f"state.directory={tmp_path / 's'}"], list[str]()):
        job = spec.load(JOB, sets)
        directory = RunDirectory(job, tmp_path)
        settings_for(job, Path("job.yaml"), directory, Options()).write()
        for name in ("redis/appendonlydir", "checkpoint/offsets", "workers/0"):
            (directory.path / name).mkdir(parents=True)
            (directory.path / name / "1").touch()
        directory.close(remove=False)
        if not sets:
            assert not synced, "nobody will look for it"
        else:
            wanted = ["redis", "redis/appendonlydir", "redis/appendonlydir/1", "checkpoint", "checkpoint/offsets"]
            wanted += ["checkpoint/offsets/1", "run.json", ".", ".."]
            assert synced == {str((directory.path / name).resolve()) for name in wanted}
            synced.clear()


def test_a_process_without_last_words_may_have_had_no_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes(f"test-{os.getpid()}-words", tmp_path / "logs")
    one = processes.start("one", ["sh", "-c", "exit 3"])
    one.popen.wait()
    assert one.why_ended == "exit code 3, and its log says nothing of it"
    monkeypatch.setattr(processes_module.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert one.why_ended.endswith(f"no space is left on the disk of {processes.log('one')}")
    two = processes.start("one", ["sh", "-c", "echo 'ends: of its own'; exit 3"])
    two.popen.wait()
    assert two.why_ended == "of its own"
    three = processes.start("one", ["sh", "-c", "kill -9 $$"])
    three.popen.wait()
    assert three.why_ended.startswith("killed by signal 9 (SIGKILL"), "the words of a process before it are not its own"
    processes.close()


def java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "modules", "problem"),
    [("17.0.15", "jdk.incubator.vector", ""), ("21", "jdk.incubator.vector", ""), ("25.0.2", "jdk.incubator.vector", "25"),
     ("1.8.0_17", "java.base", "Java 1"), ("17.0.15", "java.base", "jdk.incubator.vector")],
)  # fmt: skip
def test_java_is_named_when_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, modules: str, problem: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version, modules)))
    if not problem:
        environment.require_java()
        return
    with pytest.raises(SpecRefused, match=problem):
        environment.require_java()


def test_a_java_of_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java(tmp_path, "17.0.1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home / "bin"))
    environment.require_java()
    assert os.environ.pop("JAVA_HOME") == str(home)


def test_a_server_comes_with_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FERRY_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = subprocess.run([server_program(), "--version"], capture_output=True, text=True)
    assert "valkey" in found.stdout.lower()
    monkeypatch.setenv("FERRY_REDIS_SERVER", "/opt/redis-server")
    assert server_program() == "/opt/redis-server"


def test_a_run_that_is_stopped_before_it_worked_has_failed_of_what_ended_badly() -> None:
    exits = ProcessExits(cast(LocalCluster, SimpleNamespace()), lambda text: None)
    exits.stopped((), True)
    assert exits.as_stopped().reason == ""
    exits.failed("instance 0.0", "Exhausted: only 1892352 bytes are free")
    exits.stopped((), True)
    assert exits.as_stopped().reason == "Exhausted: only 1892352 bytes are free"
    exits.epoch_finished()
    exits.failed("instance 0.0", "Exhausted: only 1892352 bytes are free")
    exits.stopped((), True)
    assert exits.as_stopped().reason == "", "others have gone on"


@pytest.mark.parametrize("took", [0.01, 0.9, 2.9])
def test_an_answer_is_fresh_until_the_next_one_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float
) -> None:
    clock, known = [100.0], list[bool]()

    class SlowDriver:
        def status(self, pid: int, last: object) -> object:
            clock[0] += took
            known.append(watch.latest(pid) is not None)
            return object()

    class End:
        def is_set(self) -> bool:
            return len(known) == 5

        def wait(self, seconds: float) -> None:
            clock[0] += seconds

    monkeypatch.setattr(driver_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    thread = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=str), Event=End, Lock=threading.Lock)
    monkeypatch.setattr(driver_module, "threading", thread)
    watch = StatusWatch(tmp_path, "")
    watch._client = cast(driver_module.LocalDriver, SlowDriver())
    watch.latest(1)
    watch._run()
    assert known == [False, True, True, True, True] and watch.latest(1) is not None
    assert watch.silent is not None and watch.silent < 3
    assert watch.latest(2) is None and watch.silent is None, "another driver"


def test_a_pipeline_is_built_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(PrivateRedis, "start", lambda self: pytest.fail("something was started"))
    (tmp_path / "job.yaml").write_text(JOB)
    program = (
        "import ferry\n\ndef sources(spark, args):\n    return {}\n\ndef pipeline(streams, args):\n    streams['x']\n"
    )
    (tmp_path / "counts.py").write_text(program)
    assert run(RunCommand(tmp_path / "job.yaml")) == REFUSED
    assert "counts: refused: " in (said := capsys.readouterr().err) and "counts.py" in said and "files of" not in said
    assert list((tmp_path / "home" / "runs").iterdir()) == []
