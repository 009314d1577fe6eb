"""Whole runs with a fake driver and fake sidecars: real processes, a real Redis, no Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry_operator.cli import client
from ferry_operator.local import environment
from ferry_operator.local.registry import NoSuchJob, RegisteredRun, Registry

pytestmark = pytest.mark.cluster

FAKE_FERRY = Path(__file__).parent / "fakes" / "fake_ferry.py"

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: counts}
spec:
  pipeline: {module: counts, args: {seconds: 0.01}}
  workers: 2
  state: {virtualNodes: 8, replicas: 1}
"""


class Ferry:
    """The command in a home of its own; remembers what it started."""

    def __init__(self, home: Path) -> None:
        self.home, self.started = home, list[subprocess.Popen[str]]()
        (home / "job.yaml").write_text(JOB)
        environment.read_ferry_env()
        self.environment = {**os.environ, "FERRY_HOME": str(home / "ferry"), "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(FAKE_FERRY), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.started.append(subprocess.Popen(command, cwd=self.home, env=self.environment, **pipes))  # type: ignore[call-overload]
        return self.started[-1]

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        return out, err

    def run(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        out, err = self("run", "job.yaml", "--json", *arguments, code=code)
        return json.loads(out), err

    def ask(self, method: str, path: str, document: dict[str, Any] | None = None, name: str = "counts") -> None:
        client.ask(Registry(self.home / "ferry").find(name), method, path, document or {})

    def entries(self) -> list[RegisteredRun]:
        return Registry(self.home / "ferry").entries()

    def job(self, name: str = "counts") -> dict[str, Any]:
        return client.ask(Registry(self.home / "ferry").find(name), "GET", "/job")

    def wait_for(self, true: Callable[[dict[str, Any]], bool], name: str = "counts") -> dict[str, Any]:
        """Return the job as soon as this is true of it; a run that is not known yet is waited for."""
        deadline, found = time.monotonic() + 20, dict[str, Any]()
        while time.monotonic() < deadline:
            with suppress(NoSuchJob):
                found = self.job(name)
                if true(found):
                    return found
            assert any(process.poll() is None for process in self.started), found
            time.sleep(0.01)
        raise AssertionError(found)


@pytest.fixture
def ferry(tmp_path: Path) -> Iterator[Ferry]:
    one = Ferry(tmp_path)
    yield one
    for process in one.started:
        process.kill()
        if process.stderr is not None and not process.stderr.closed:
            process.communicate()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def settles(in_status: dict[str, Any]) -> bool:
    return bool(in_status["status"] and in_status["status"]["desired"] and in_status["status"]["settled"])


def living(processes: list[psutil.Process]) -> list[str]:
    return [p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_bounded_job_runs_to_its_end_and_leaves_nothing(ferry: Ferry) -> None:
    summary, err = ferry.run("--events", "3000", "--plot", "run.png", "--set", "pipeline.args.prints=true")
    assert (summary["outcome"], summary["epochs"], summary["rows"]) == ("finished", 30, 3000)
    assert list((ferry.home / "ferry" / "runs").iterdir()) == []
    assert list((ferry.home / "ferry" / "registry").iterdir()) == []
    assert (ferry.home / "run.png").read_bytes().startswith(b"\x89PNG")
    assert '\n-- epoch 0: 1 rows\n   {"n": 3}\n' in err, "standard output is for the summary alone"
    assert err.count("output: /data/counts\n") == 2, "at the begin and at the end"


def test_timed_actions_happen_once_and_are_timed(ferry: Ferry) -> None:
    at = ["epoch=20 workers=3", "epoch=60:ingest kill-worker=1", "epoch=80:commit kill-driver", "epoch=100 move=0:2.0"]
    words = [word for one in at for word in ("--at", *one.split())]
    summary, errors = ferry.run("--events", "16000", "--keep", *words, "--at", "epoch=9999 drain=0")
    assert summary["epochs"] == 160
    assert [r["text"] for r in summary["recoveries"]] == ["kill-worker=1", "kill-driver"]
    assert all(0 < r["seconds"] < 10 for r in summary["recoveries"])
    assert any(m["switchovers"] for m in summary["moves"])
    assert summary["directory"].startswith(str(ferry.home))
    assert "warning: --at 'epoch=9999:begin drain=0' never became due" in errors
    (run,) = (ferry.home / "ferry" / "runs").iterdir()
    texts = [json.loads(line).get("text") for line in (run / "timeline.jsonl").read_text().splitlines()]
    assert [texts.count(text) for text in ("workers=3", "kill-worker=1", "kill-driver", "move=0:2.0")] == [1] * 4
    assert [s.stem for s in sorted((run / "logs").iterdir())] == ["driver", "redis", "worker-0", "worker-1", "worker-2"]
    assert (run / "run.json").stat().st_mode & 0o777 == 0o600


def test_from_another_terminal(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml", "--quiet")
    ferry.wait_for(settles)
    ferry("scale", "counts", "--workers", "3", "--instances", "2")
    found = ferry.wait_for(lambda j: settles(j) and len(j["status"]["alive"]) == 6 and j["status"]["desired"] > 1)
    assert {i for g, _ in found["status"]["groups"] for i in g} == {f"{k}.{i}" for k in range(3) for i in range(2)}
    ferry("move", "counts", "5", "2.1")
    ferry.wait_for(lambda j: settles(j) and j["status"]["groups"][5][0][0] == "2.1")
    assert "when their windows have ended" in ferry("move", "counts", "5", "1.1", "--at-window")[0]
    ferry.wait_for(lambda j: settles(j) and j["status"]["groups"][5][0][0] == "1.1")
    ferry("handover", "counts", "strategy=fluid", "gap=1", "warm=false")
    assert "must be" in ferry("handover", "counts", "strategy=some", code=2)[1]
    ferry("handover", "counts", "bandwidth=1M", "atWindow=never")
    told = ferry.wait_for(lambda j: settles(j) and j["spec"]["handover"].get("bandwidth") == "1000000")
    assert told["spec"]["handover"]["atWindow"] == "never"
    assert "must be" in ferry("balance", "counts", "mode=some", code=2)[1]
    ferry("balance", "counts", "mode=off")
    assert ferry.job()["balance"] == {"mode": "off"}
    ferry("balance", "counts", "mode=auto", "horizon=1h")
    assert ferry.wait_for(lambda j: "before" in j["balance"])["balance"]["mode"] == "auto"
    assert "balance auto: no move gains 10%" in " ".join(ferry("status", "counts")[0].split())
    led = [v for v, (g, _) in enumerate(ferry.job()["status"]["groups"]) if g[0] == "0.0"]
    ferry("move", "counts", "--from", "0.0", "--to", "2.0")
    ferry.wait_for(lambda j: settles(j) and all(j["status"]["groups"][v][0][0] == "2.0" for v in led))
    ferry("drain", "counts", "0")
    ferry.wait_for(lambda j: settles(j) and not any(i[0] == "0" for g, _ in j["status"]["groups"] for i in g))
    assert len(ferry.job()["workers"]) == 3, "a drained worker stays"
    ferry.ask("PATCH", "/spec", {"workers": 2})
    ferry.wait_for(lambda j: settles(j) and len(j["workers"]) == 2)
    ferry.ask("POST", "/kill", {"what": "driver"})
    ferry.wait_for(lambda j: settles(j) and j["status"]["generation"] == 2)
    assert "leads" in ferry("status", "counts")[0]
    assert "the virtual nodes are 0 to 7" in ferry("move", "counts", "8", "0.0", code=2)[1]
    for path, document in (
        ("/drain", {"worker": 1}),
        ("/kill", {"what": "7"}),
        ("/move", {"vnodes": [0], "instance": "x"}),
    ):
        with pytest.raises(Refusal):
            ferry.ask("POST", path, document)
    with pytest.raises(SpecRefused, match="not understood"):
        ferry.ask("POST", "/drain", {"warker": 1})
    with pytest.raises(Unreachable, match="401"):
        client.ask(replace(ferry.entries()[0], token="guessed"), "GET", "/job")
    assert "no job called 'other' runs here; running: counts" in ferry("status", "other", code=4)[1]
    ferry("stop", "counts")
    assert run.wait(10) == 0
    assert json.loads(ferry("ps", "--json")[0]) == []


CHECKPOINTED = "state.checkpoint.location=store"


def test_a_checkpoint_is_taken_from_another_terminal(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml", "--quiet", "--set", CHECKPOINTED)
    ferry.wait_for(settles)
    assert ferry("checkpoint", "counts")[0].startswith("counts: checkpoint 1, as of epoch ")
    found = json.loads(ferry("checkpoint", "counts", "--name", "before", "--json")[0])
    assert (found["number"], found["asked"], found["bytes"], found["totalBytes"]) == (2, 2, 5, 9) and found["epoch"] > 0
    assert "2 (before) as of epoch" in ferry("status", "counts")[0]
    assert ferry.job()["checkpoints"] == str(ferry.home / "store")
    for name in ("7", "latest", "a/b", "A", ""):
        assert "it is no number" in ferry("checkpoint", "counts", "--name", name, code=2)[1]
    ferry("stop", "counts")
    assert run.wait(10) == 0


def test_a_checkpoint_that_is_late_or_has_no_location(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml", "--quiet", "--set", CHECKPOINTED, "--set", "pipeline.args.full=true")
    ferry.wait_for(settles)
    assert "late: no room" in ferry("checkpoint", "counts", code=1)[1]
    assert "still without its last checkpoint" in ferry("suspend", "counts", "--wait", "1", code=1)[1]
    assert ferry.job()["phase"] == "suspending"
    ferry("stop", "counts")
    assert run.wait(20) == 0
    run = ferry.start("run", "job.yaml", "--quiet")
    ferry.wait_for(settles)
    for command in ("checkpoint", "suspend"):
        assert "set state.checkpoint.location" in ferry(command, "counts", code=2)[1]
    ferry("stop", "counts")
    assert run.wait(20) == 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_suspended_run_ends_with_a_last_checkpoint(ferry: Ferry, lost: bool) -> None:
    """Also when its driver is lost on the way; it is no failure, and nothing of it stays here."""
    run = ferry.start(
        "run", "job.yaml", "--json", "--events", "9999999", "--set", CHECKPOINTED, "--set", "pipeline.args.seconds=0.5"
    )
    ferry.wait_for(settles)
    if lost:
        ferry.ask("POST", "/suspend")
        ferry.ask("POST", "/kill", {"what": "driver"})
    else:
        assert ferry("suspend", "counts")[0] == "counts: suspended\n"
    out, err = run.communicate(timeout=20)
    assert run.returncode == 0 and json.loads(out)["outcome"] == "suspended"
    assert "continue it with `ferry run job.yaml --set restoreFrom=latest`" in err
    assert list((ferry.home / "ferry" / "runs").iterdir()) == []


def test_a_restore_is_a_run_that_begins_from_a_checkpoint(ferry: Ferry) -> None:
    directory = ferry.home / "state"
    options = ("--set", CHECKPOINTED, "--set", f"state.directory={directory}", "--events", "500", "--json")
    out, _ = ferry("restore", "job.yaml", "--from", "before", "--sink", "keep", "--workers", "3", *options)
    assert json.loads(out)["outcome"] == "finished"
    settings = json.loads((directory / "run.json").read_text())
    assert [settings[key] for key in ("restore_from", "restore_sink", "workers")] == ["before", "keep", 3]
    assert settings["checkpoint"] == {"location": str(ferry.home / "store"), "every_ms": 60000, "keep": 3}


@pytest.mark.parametrize(
    ("number", "times", "deaf"), [(signal.SIGINT, 1, 0), (signal.SIGTERM, 1, 0), (signal.SIGINT, 2, 1)]
)
def test_an_interrupt_leaves_no_process(ferry: Ferry, number: int, times: int, deaf: int) -> None:
    run = ferry.start("run", "job.yaml", "--set", f"pipeline.args.deaf={deaf}")
    ferry.wait_for(settles)
    started = family(run)
    assert len(started) >= 8, "reaper, redis, 2 sidecars, 2 instances, driver and its children"
    began = time.monotonic()
    run.send_signal(number)
    if times > 1:
        ferry.wait_for(lambda j: j["phase"] == "stopping")
        run.send_signal(number)
    assert run.wait(20) == 0
    assert time.monotonic() - began < 8
    assert living(started) == []


def test_a_driver_that_ends_without_an_answer_is_stopped_like_any_other(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml", "--set", "pipeline.args.mute=1")
    ferry.wait_for(settles)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 0, err


def test_a_run_whose_progress_nobody_reads_any_more_ends_as_if_interrupted(ferry: Ferry) -> None:
    directory = ferry.home / "named"
    run = ferry.start("run", "job.yaml", "--set", f"state.directory={directory}")
    ferry.wait_for(settles)
    started = family(run)
    assert run.stderr is not None
    run.stderr.close()
    assert run.wait(20) == 1 and living(started) == []
    *_, stop, ended = map(json.loads, (directory / "timeline.jsonl").read_text().splitlines())
    assert ended["kind"] == "ended" and ended["outcome"] == "stopped" and stop["t"] <= ended["t"]


def test_nothing_outlives_a_supervisor_that_is_killed(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml")
    ferry.wait_for(settles)
    started = family(run)
    run.kill()
    _, still = psutil.wait_procs(started, timeout=10)
    assert living(still) == []
    assert json.loads(ferry("ps", "--json")[0]) == []
    assert list((ferry.home / "ferry" / "registry").iterdir()) == []


def test_runs_of_two_names_do_not_know_each_other_and_a_second_one_of_one_name_is_refused(ferry: Ferry) -> None:
    (ferry.home / "other.yaml").write_text(JOB.replace("counts}", "others}"))
    first, second = ferry.start("run", "job.yaml"), ferry.start("run", "other.yaml", "--events", "2000")
    assert second.wait(30) == 0
    ferry.wait_for(settles)
    assert f"counts runs already (process {first.pid})" in ferry("run", "job.yaml", code=2)[1]
    first.kill()
    first.wait()
    assert ferry.run("--events", "500")[0]["outcome"] == "finished", "what a dead process has left is nobody's"


def test_nothing_is_left_when_the_supervisor_and_its_reaper_are_killed_at_once(ferry: Ferry) -> None:
    """What they leave of the directory's run, a process that moved to a group of its own, the next run ends and names."""
    directory = ferry.home / "named"
    run = ferry.start("run", "job.yaml", "--set", f"state.directory={directory}")
    ferry.wait_for(settles)
    started = family(run)
    (reaper,) = (p for p in started if any(part.endswith("reaper.py") for part in p.cmdline()))
    reaper.suspend()
    run.kill()
    reaper.kill()
    _, still = psutil.wait_procs([p for p in started if p.name() != "sleep"], timeout=10)
    assert living(still) == []
    out, err = ferry("run", "job.yaml", "--set", f"state.directory={directory}", "--events", "99999", "--json")
    assert json.loads(out)["outcome"] == "finished"
    assert re.search(r"ended \d+ processes of the previous run, whose supervisor was killed \(pids \d+", err)
    assert living(still) == [] and living([p for p in started if p.is_running()]) == []


def test_temporary_files_of_a_run_go_with_it(ferry: Ferry) -> None:
    temporary = Path(tempfile.mkdtemp())  # with a path that is short enough for sockets
    ferry.environment["TMPDIR"] = str(temporary)
    run = ferry.start("run", "job.yaml")
    ferry.wait_for(settles)
    (folder,) = temporary.iterdir()
    tagged = [p for p in family(run) if "sidecar" in " ".join(p.cmdline())]
    assert tagged and all(p.environ()["TMPDIR"] == str(folder) for p in tagged)
    run.kill()
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    temporary.rmdir()


@pytest.mark.parametrize("limit", ["-n 256"])
def test_too_few_files_are_said_before_anything_is_started(ferry: Ferry, limit: str) -> None:
    command = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, str(FAKE_FERRY), "run", "job.yaml"]
    done = subprocess.run(command, cwd=ferry.home, env=ferry.environment, capture_output=True, text=True)
    assert done.returncode == 2 and "run `ulimit -n 4096` in this shell first" in done.stderr
    assert not (ferry.home / "ferry").exists()


def test_a_driver_that_crashes_once_is_started_again(ferry: Ferry) -> None:
    summary, _ = ferry.run("--events", "2000", "--set", "pipeline.args.exit_at=7", "--set", "pipeline.args.code=9")
    assert (summary["outcome"], summary["epochs"]) == ("finished", 20)
    assert [r["text"] for r in summary["recoveries"]] == ["restart driver: something broke in epoch 7"]
    assert Path(summary["directory"]).is_dir(), "what has ended badly can be looked at"


def test_while_a_driver_is_down_everybody_is_told_why(ferry: Ferry) -> None:
    """Also after the end of the run, which an interrupt makes no success."""
    args = {"exit_at": 0, "always": 1, "seconds": 2}  # Its six lives are over later than the commands below.
    run = ferry.start(
        "run", "job.yaml", *(part for key in args for part in ("--set", f"pipeline.args.{key}={args[key]}"))
    )
    ferry.wait_for(lambda j: j["ends"].get("driver", {}).get("why") == "something broke in epoch 0")
    assert "something broke in epoch 0" in ferry("status", "counts")[0]
    assert "something broke in epoch 0" in ferry("logs", "counts")[0]
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 1 and "counts: stopped, and had failed: something broke in epoch 0" in err
    assert re.search(r"\d\d:\d\d:\d\d  restart driver: something broke in epoch 0\n", err)
    assert "something broke in epoch 0" in ferry("logs", "counts", "--driver", "--tail", "1")[0]
    assert "its last run has stopped: something broke in epoch 0 (ferry logs" in ferry("status", "counts", code=4)[1]
    assert "there are: driver, redis, worker-0, worker-1" in ferry("logs", "counts", "--worker", "7", code=2)[1]


@pytest.mark.parametrize(("ago", "code"), [(60, 1), (0, 0)])
def test_a_run_that_is_stopped_with_a_lasting_problem_has_failed(ferry: Ferry, ago: int, code: int) -> None:
    run = ferry.start("run", "job.yaml", "--set", f"pipeline.args.since={int(time.time()) + 30 - 2 * ago}")
    ferry.wait_for(settles)
    assert "degraded the database is away" in " ".join(ferry("status", "counts")[0].split())
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == code and ("and had failed: the database is away" in err) == bool(code)


def test_a_log_is_followed_to_the_end_of_the_run(ferry: Ferry) -> None:
    directory = ferry.home / "named"
    run = ferry.start("run", "job.yaml", "--set", f"state.directory={directory}")
    ferry.wait_for(settles)
    with open(directory / "logs" / "worker-1.log", "a") as log:
        log.write("\x1b[2Jfirst\n")
    following = ferry.start("logs", "counts", "--worker", "1", "-f")
    assert following.stdout is not None and following.stdout.readline() == "\\x1b[2Jfirst\n"
    with open(directory / "logs" / "worker-1.log", "a") as log:
        log.write("second\n")
    assert following.stdout.readline() == "second\n"
    ferry("stop", "counts")
    assert run.wait(10) == 0 and following.wait(10) == 0
    assert "second" in ferry("logs", "counts", "--worker", "1")[0], "its directory is found by the job's name"


def test_dead_letters_are_kept_with_the_run(ferry: Ferry) -> None:
    summary, err = ferry.run("--events", "500", "--set", "pipeline.args.malformed=2")
    letters = Path(summary["directory"]) / "dead-letter"
    assert summary["outcome"] == "finished" and list(letters.iterdir())
    assert f"malformed records were set aside in {letters}" in err
    assert err.count("malformed: no number in orders/1.json:7") == 1


def test_workers_that_never_come_up_end_the_job(ferry: Ferry) -> None:
    summary, errors = ferry.run("--events", "2000", "--set", "workers=1", "--set", "pipeline.args.broken=1", code=1)
    assert summary["outcome"] == "failed"
    assert "worker 0 failed 4 times" in errors and "no library to start with" in errors


def test_workers_without_the_transport_that_the_job_insists_on_end_it_at_once(ferry: Ferry) -> None:
    summary, errors = ferry.run("--events", "2000", "--set", "transport.mode=rdma", code=1)
    assert summary["outcome"] == "failed"
    assert "no transport: transport.mode is rdma, and there is no device" in errors and "failed 4 times" not in errors


@pytest.mark.parametrize(
    ("sets", "code", "outcome", "text"),
    [
        (["refuse=a window is missing"], 2, "refused", "pipeline refused: a window is missing"),
        (["exit_at=3", "code=3"], 1, "halted", "something broke in epoch 3"),
    ],
)
def test_a_driver_that_gives_up_is_not_started_again(
    ferry: Ferry, sets: list[str], code: int, outcome: str, text: str
) -> None:
    words = [word for one in sets for word in ("--set", f"pipeline.args.{one}")]
    summary, errors = ferry.run("--events", "2000", *words, code=code)
    assert summary["outcome"] == outcome
    assert text in errors and "files of the run" in errors, "its files are kept"


def test_a_named_directory_is_locked_and_continued(ferry: Ferry) -> None:
    directory = ferry.home / ("d" * 90) / "state"
    where = ("--set", f"state.directory={directory}")
    run = ferry.start("run", "job.yaml", *where)
    ferry.wait_for(settles)
    ferry.environment["FERRY_HOME"] = str(ferry.home / "elsewhere")
    assert f"another run uses this directory (process {run.pid})" in ferry("run", "job.yaml", *where, code=2)[1]
    ferry.environment["FERRY_HOME"] = str(ferry.home / "ferry")
    ferry.ask("PATCH", "/spec", {"workers": 3})
    ferry.wait_for(lambda j: settles(j) and len(j["status"]["alive"]) == 3)
    ferry.ask("POST", "/stop")
    assert run.wait(10) == 0
    before = json.loads((directory / "fake-epoch.json").read_text())
    (ferry.home / "bigger.yaml").write_text(JOB.replace("virtualNodes: 8", "virtualNodes: 16"))
    assert "virtualNodes cannot change" in ferry("run", "bigger.yaml", *where, code=2)[1]
    run = ferry.start("run", "job.yaml", *where)
    ferry.wait_for(lambda j: settles(j) and j["status"]["generation"] == 2 and len(j["workers"]) == 2)
    assert ferry.job()["status"]["epoch"] > before
    ferry.ask("POST", "/stop")
    assert run.wait(10) == 0
    assert directory.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "no.yaml"], "no such job file"),
        (["run", "job.yaml", "--set", "wokers=3"], "did you mean 'workers'"),
        (["run", "job.yaml", "--at", "epoch=1 dance"], "is no action"),
        (["run", "job.yaml", "--plot", "no/where.png"], "is no directory"),
        (["run", "job.yaml", "--set", "pipeline.module=null", "--set", "pipeline.file=no.py"], "no.py does not exist"),
        (["validate", "no.yaml"], "no such job file"),
        (["run"], "Missing argument"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_started(ferry: Ferry, arguments: list[str], text: str) -> None:
    assert text in ferry(*arguments, code=2)[1]
    assert not (ferry.home / "ferry").exists()


def test_a_job_is_valid_when_its_pipeline_can_be_built(ferry: Ferry) -> None:
    program = ferry.home / "counts.py"
    program.write_text(
        "import ferry, pyarrow as pa\n"
        "def sources(spark, args):\n"
        "    return {'in': ferry.parquet_files('.', pa.schema([('k', pa.int64())]))}\n"
        "def pipeline(streams, args):\n"
        "    return streams['in'].sink(ferry.parquet('out'))\n"
    )
    (ferry.home / "job.yaml").write_text(JOB.replace("module: counts", "file: counts.py"))
    assert ferry("validate", "job.yaml")[0] == "counts: valid\n"
    program.write_text(program.read_text().replace("'in'].", "'out']."))
    out, err = ferry("validate", "job.yaml", code=2)
    assert not out and "no source 'out'; there are in" in err and "counts.py:5" in err


def test_the_end_of_redis_and_of_a_worker_is_told(ferry: Ferry) -> None:
    run = ferry.start("run", "job.yaml")
    ferry.wait_for(settles)
    started = family(run)
    (redis,) = (p for p in started if p.name().startswith(("redis", "valkey")))
    (worker,) = (p for p in started if p.cmdline()[-4:-2] == ["--worker", "1"])
    redis.kill()
    ferry.wait_for(lambda j: j["ends"].get("redis", {}).get("why", "").startswith("killed by signal 9"))
    worker.kill()
    ferry.wait_for(lambda j: j["ends"].get("worker 1", {}).get("why", "").startswith("killed by signal 9"))
    ferry("stop", "counts")
    _, err = run.communicate(timeout=20)
    assert run.returncode == 0
    assert "  restart redis: killed by signal 9 (SIGKILL" in err and "  restart worker 1: killed by signal 9" in err
    assert "files of the run: " in err, "what has ended badly can be looked at"
