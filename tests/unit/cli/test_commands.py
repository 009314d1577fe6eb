"""The command line: arguments, output, exit codes. The cluster is the one in memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ferry_operator.cli import main
from ferry_operator.cli.remote import follow, remote
from ferry_operator.kube.api.port import JOBS, PODS, ApiError
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes.fake_user import FakeUser
from tests.unit.kube.fakes.fake_world import job, settled


def test_status(run: Run) -> None:
    code, out, _ = run("status", "nbq5", "-n", "jobs")
    assert code == 0 and "ReplicasInSync" in out and "nbq5" in out
    code, out, _ = run("status", "nbq5", "--json")
    assert json.loads(out)["status"]["workers"] == 2


def test_what_is_not_there(run: Run) -> None:
    code, _, err = run("status", "x")
    assert code == 4 and err.startswith("kubectl streamjob: no StreamJob called 'x' in namespace jobs")


def test_changes(run: Run, api: FakeUser) -> None:
    assert run("scale", "nbq5", "--workers", "3")[:2] == (0, "nbq5: scaling\n")
    assert run("drain", "nbq5", "1")[0] == 0 and run("undrain", "nbq5", "1")[0] == 0
    assert run("move", "nbq5", "3", "1.0")[0] == 0 and run("unpin", "nbq5", "3")[0] == 0
    assert run("pause", "nbq5")[0] == 0 and run("resume", "nbq5")[0] == 0
    assert json.loads(run("restart", "nbq5", "--json")[1])["job"] == "nbq5"
    assert run("drain", "nbq5", "9")[0] == 2 and run("unpin", "nbq5", "3")[0] == 2 and run("scale", "nbq5")[0] == 2
    api.refuses = ApiError(422, "Invalid", "no")
    assert run("scale", "nbq5", "--workers", "3")[0] == 2
    api.refuses = ApiError(0, "Unreachable", "the API server does not answer")
    assert run("scale", "nbq5", "--workers", "3")[0] == 1


@pytest.mark.parametrize("line", ["run job.yaml", "kill nbq5 driver", "stop nbq5"])
def test_what_is_of_one_machine_says_what_to_do_instead(run: Run, line: str) -> None:
    code, _, err = run(*line.split())
    assert code == 2 and "kubectl" in err.partition(":")[2]


def test_usage(run: Run) -> None:
    assert run("status")[0] == 2 and run("nothing")[0] == 2
    code, out, _ = run("--help")
    assert code == 0 and "diagnose" in out and "--kubeconfig" in out and "kubectl streamjob" in out


def test_errors_of_the_file_system_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/x")

    assert main.guarded(full) == 1 and capfd.readouterr().err == "ferry: [Errno 28] No space left on device: '/x'\n"
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main.guarded(Path.cwd) == 1 and "directory of this shell was deleted" in capfd.readouterr().err


@pytest.mark.parametrize(("error", "said"), [("KeyboardInterrupt", False), ("ValueError", True)])
def test_an_interrupt_while_commands_are_imported_has_no_traceback(error: str, said: bool) -> None:
    done = subprocess.run([sys.executable, "-c", f"import ferry_operator.cli; raise {error}"], capture_output=True)
    assert done.returncode == (1 if said else -signal.SIGINT) and bool(done.stderr) is said


CHECKPOINTED = {"virtualNodes": 8, "checkpoint": {"location": "/data/ferry"}}


@pytest.fixture
def shelved(api: FakeUser, monkeypatch: pytest.MonkeyPatch) -> FakeUser:
    """A job with durable checkpoints; while a command waits, the world goes on."""
    api.api.edit(JOBS, "nbq5", {"spec": {"state": CHECKPOINTED}})
    api.world.until(settled)
    # Of that module alone: threads that other tests have left behind sleep, too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: api.world.round())
    monkeypatch.setattr(remote, "time", clock)
    return api


def test_a_checkpoint(run: Run, shelved: FakeUser) -> None:
    code, out, _ = run("checkpoint", "nbq5", "--name", "before-upgrade")
    assert (code, out.partition(",")[0]) == (0, "nbq5: checkpoint 1 (before-upgrade)")
    assert json.loads(run("checkpoint", "nbq5", "--json")[1])["number"] == 2
    assert "2, as of epoch" in run("status", "nbq5")[1]
    shelved.world.no_checkpoint = True
    assert "it has no location" in run("checkpoint", "nbq5")[2]
    run("pause", "nbq5")
    assert run("checkpoint", "nbq5")[0] == 2


def test_a_checkpoint_that_nobody_takes(run: Run, shelved: FakeUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelved.world, "operate", lambda: None)
    code, _, err = run("checkpoint", "nbq5", "--wait", "0")
    assert code == 1 and "the operator has not asked for it" in err


def test_suspend_resume_and_restore(run: Run, shelved: FakeUser) -> None:
    assert run("restore", "nbq5", "--from", "1")[0] == 2, "it runs"
    assert run("suspend", "nbq5")[0] == 0
    shelved.world.until(lambda w: w.status["phase"] == "Suspended")
    assert "Suspended" in run("status", "nbq5")[1]
    assert run("resume", "nbq5")[1] == "nbq5: the job continues from its latest checkpoint\n"
    shelved.world.until(settled)
    assert run("scale", "nbq5", "--workers", "0")[0] == 0
    shelved.world.until(lambda w: w.status["phase"] == "Suspended")
    assert run("resume", "nbq5")[0] == 2 and "--workers N" in run("restore", "nbq5", "--from", "1")[2]
    assert run("restore", "nbq5", "--from", "1", "--sink", "keep", "--workers", "3")[0] == 0
    shelved.world.until(lambda w: settled(w) and w.status["workers"] == 3)
    assert list(shelved.world.runs.values()) == [None, "latest", "1"]
    assert run("restore", "job.yaml", "--from", "1")[0] == 2


def test_checkpoints_of_a_directory_of_pods(run: Run, shelved: FakeUser) -> None:
    code, _, err = run("checkpoints", "nbq5")
    assert code == 2 and "/data/ferry, a directory of its pods" in err and "--location" in err


def test_ps_and_top_of_a_namespace(run: Run, api: FakeUser) -> None:
    assert "nbq5" in run("ps")[1] and json.loads(run("ps", "--json")[1])["jobs"][0]["job"] == "nbq5"
    api.api.set_status(JOBS, "nbq5", phase="Finished")
    code, out, _ = run("top", "nbq5", "--json")
    assert code == 0 and json.loads(out)["status"]["phase"] == "Finished"
    assert run("ps", plugin=False)[1].split() == ["JOB", "RUN", "PID", "FOR", "DIRECTORY"]


def test_watch(run: Run, api: FakeUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(follow, "CALM_SECONDS", 0.0)
    code, out, _ = run("watch", "nbq5")
    assert code == 0 and "at rest with 2 workers" in out
    run("pause", "nbq5")
    code, out, _ = run("watch", "nbq5", "--json")
    last = json.loads(out.splitlines()[-1])
    assert code == 1 and last["state"] == "paused" and last["workers"] == 2


def test_plan(run: Run, api: FakeUser, tmp_path: Path) -> None:
    before = json.dumps(api.get(JOBS, "nbq5"))
    code, out, _ = run("plan", "nbq5", "--set", "workers=4")
    assert code == 0 and "started: workers 2 to 3" in out and "handover" in out
    code, out, _ = run("plan", "nbq5", "-p", "spec: {state: {virtualNodes: 16}}")
    assert code == 2 and "refused" in out
    (tmp_path / "j.yaml").write_text(yaml.safe_dump(job(workers=3)))
    code, out, _ = run("plan", "-f", str(tmp_path / "j.yaml"), "--json")
    assert code == 0 and json.loads(out)["changes"][0]["after"] == 3
    assert json.dumps(api.get(JOBS, "nbq5")) == before and api.written == []


@pytest.mark.parametrize(
    "line", ["plan nbq5", "plan nbq5 --set workers=3 --patch {}", "plan --set workers=3", "plan nbq5 --set worker=3"]
)
def test_plan_refuses_what_it_cannot_understand(run: Run, line: str) -> None:
    assert run(*line.split())[0] == 2


def test_plan_of_what_the_api_server_refuses(run: Run, api: FakeUser) -> None:
    api.refuses = ApiError(422, "Invalid", "more instances than virtualNodes")
    code, _, err = run("plan", "nbq5", "--set", "workers=20")
    assert code == 2 and "the API server refuses it: more instances" in err


def test_logs(run: Run, api: FakeUser) -> None:
    for name in api.api.names(PODS):
        for one in ("driver", "sidecar", "executor"):
            api.logs[name, one, False] = f"{one} begins\nand {name} goes on".encode()
    api.logs["nbq5-driver", "driver", True] = b"before\n"
    assert run("logs", "nbq5")[1] == "driver begins\nand nbq5-driver goes on\n"
    assert run("logs", "nbq5", "--driver", "--previous")[1] == "before\n"
    assert run("logs", "nbq5", "--worker", "1", "-c", "executor", "--tail", "1")[1] == "and nbq5-worker-1 goes on\n"
    both = run("logs", "nbq5", "--worker", "0")[1].splitlines()
    assert both[0] == "[nbq5-worker-0 sidecar] sidecar begins" and len(both) == 4
    assert sorted(run("logs", "nbq5", "--worker", "0", "-f")[1].splitlines()) == sorted(both)
    assert run("logs", "nbq5", "--worker", "7")[0] == 2 and run("logs", "nbq5", "--operator")[0] == 2
    assert (
        run("logs", "nbq5", "--worker", "0", "-c", "x")[0] == 2
        and run("logs", "nbq5", "--worker", "0", "--driver")[0] == 2
    )
    del api.logs["nbq5-driver", "driver", False]
    code, _, err = run("logs", "nbq5")
    assert code == 2 and "is waiting to start" in err


def test_diagnose(run: Run, tmp_path: Path) -> None:
    code, out, err = run("diagnose", "nbq5", "-o", str(tmp_path / "d.tar.gz"))
    assert code == 0 and out == f"{tmp_path}/d.tar.gz\n" and (tmp_path / "d.tar.gz").exists() and "not in it" in err
    assert run("diagnose", "nbq5", "-o", "/nowhere/d.tar.gz")[0] == 2
