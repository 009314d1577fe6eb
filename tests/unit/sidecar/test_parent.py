"""The parent notices an instance that stands still, and ends when none has a transport that it may use."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract import limits
from ferry.contract.errors import Superseded
from ferry.contract.exit_codes import ExitCode
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.places import life_of
from ferry.contract.run_directory import SYNCING
from ferry.contract.settings import RunSettings
from ferry.contract.signs import Pulse
from ferry.contract.timeline import TIMELINE
from ferry.environment import Environment
from ferry.registry import Claim
from ferry.sidecar import ALIVE, REASON, forks, parent
from ferry.sidecar.parent import Parent
from ferry.sidecar.signs import Computing, Signs


def settings(directory: Path) -> RunSettings:
    return RunSettings(
        job="j", run="j-1", directory=str(directory), secret="s" * 16, redis=f"unix://{directory}/none.sock",
        pipeline_module="m", pipeline_file=None, pipeline_args={}, virtual_nodes=4, replicas=0, workers=1,
        instances_per_worker=1, memory_bytes=1 << 20, epoch_interval_ms=0, epoch_max_rows=1, cores=1,
    )  # fmt: skip


def parent_of(tmp_path: Path, code: int, instances: int = 1) -> Parent:
    """A parent whose instances end at once with this code."""
    one = Parent(settings(tmp_path), str(tmp_path / "run.json"), worker=0, instances=instances, env=Environment())
    one._process = lambda index: process(os._exit, code)  # type: ignore[method-assign]
    one._preloaded.set()
    return one


def process(target: Callable[..., object], *args: object) -> BaseProcess:
    return get_context("fork").Process(target=target, args=args)


def started(target: Callable[..., object], *args: object) -> BaseProcess:
    child = process(target, *args)
    child.start()
    return child


@pytest.mark.parametrize(("code", "ends"), [(ExitCode.NO_TRANSPORT, True), (1, False), (3, False)])
def test_a_sidecar_without_a_transport_ends_with_it(tmp_path: Path, code: int, ends: bool) -> None:
    parent = parent_of(tmp_path, code)
    parent._supervise(100.0)
    parent._children[0].join(10)
    parent._supervise(101.0)
    assert (parent._stop, parent._code) == ((True, code) if ends else (False, 0))


def test_one_that_works_keeps_its_sidecar(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, ExitCode.NO_TRANSPORT, instances=2)
    parent._supervise(100.0)
    for child in parent._children.values():
        child.join(10)
    works = started(time.sleep, 60)
    parent._children[1], parent._started[1] = works, 0.0
    parent._supervise(101.0)
    works.kill()
    assert not parent._stop, "it has been up for long"


def test_an_instance_that_fails_for_hours_is_started_again(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, 1)
    parent._supervise(100.0)
    parent._failures[0] = 5000
    parent._children[0].join(10)
    parent._supervise(101.0)
    assert parent._retry_at[0] == 106.0 and not parent._stop


def test_an_instance_that_cannot_be_forked_is_tried_again(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, 0)
    forks = iter([EOFError("the server was killed"), ConnectionRefusedError(), None])

    def start() -> None:
        if (failed := next(forks)) is not None:
            raise failed

    child: Any = SimpleNamespace(start=start, exitcode=None, pid=1)
    parent._process = lambda index: child  # type: ignore[method-assign]
    for _ in range(2):
        parent._supervise(time.monotonic() + 10)
        assert not parent._children and parent._retry_at[0] > time.monotonic()
    parent._supervise(time.monotonic() + 10)
    assert parent._children[0] is child


class JobRegistry:
    """What a parent sees of it: who has the worker."""

    def __init__(self) -> None:
        self.elsewhere = False
        self.pulses: Sequence[Pulse] = ()

    def claim(self, worker: int, place: str) -> Claim:
        if self.elsewhere:
            raise Superseded("it was started again elsewhere")
        return Claim(7, "7 pod")

    def beat(self, worker: int, claim: Claim, ttl_ms: int, pulses: Sequence[Pulse] = ()) -> None:
        self.claim(worker, "")
        self.pulses = pulses


@pytest.mark.parametrize("began", [True, False], ids=["while it runs", "when it starts again there"])
def test_a_parent_whose_worker_was_started_elsewhere_ends_with_its_children(tmp_path: Path, began: bool) -> None:
    parent, registry = parent_of(tmp_path, 0), JobRegistry()
    parent._job_registry = registry  # type: ignore[assignment]
    if began:
        parent._reach(parent._claim)
        lives = [Parent._process(parent, 0)._args[-1] for _ in range(2)]  # type: ignore[attr-defined]
        assert lives == [life_of(7, 1), life_of(7, 2)] == sorted(lives)
    child = parent._children[0] = started(time.sleep, 60)
    registry.elsewhere = True
    parent._reach(parent._beat if began else parent._claim)
    assert (parent._stop, parent._code) == (True, ExitCode.SUPERSEDED)
    child.join(10)
    assert child.exitcode == -9


def test_a_heartbeat_says_which_instances_run_the_users_code_and_leaves_out_stopped_ones(tmp_path: Path) -> None:
    parent, registry = parent_of(tmp_path, 0), JobRegistry()
    parent._job_registry = registry  # type: ignore[assignment]
    parent._process = lambda index: process(time.sleep, 60)  # type: ignore[method-assign]
    parent._reach(parent._claim)
    now = time.monotonic()
    parent._supervise(now)
    signs, child = Signs(), parent._children[0]
    signs.begin(tmp_path / "workers" / "0" / "0" / ALIVE)
    try:
        with signs.computes(Computing(CommitId(Step(1, 0), Attempt(1, 1)), "operator 'w' in epoch 1", users=True)):
            parent._supervise(now - 60)
            parent._beat()
            (pulse,) = registry.pulses
            assert (pulse.instance, pulse.code) == ("0.0", "operator 'w' in epoch 1") and pulse.busy_ms >= 60_000
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            parent._beat()
            assert not registry.pulses
    finally:
        child.kill()


def test_no_instance_is_started_before_the_worker_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = parent_of(tmp_path, 0)  # its Redis does not answer
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(forks, "when_loaded", lambda tell: tell())
    monkeypatch.setattr(parent, "_serve_metrics", lambda: threading.Timer(0.3, parent._on_term).start())
    assert parent.run() == 0
    assert parent._starts == 0 and not parent._children and parent._claimed is None


@pytest.mark.parametrize(
    ("syncs", "sync_seconds", "code"),
    [(True, 30.0, 0), (True, 0.3, -9), (False, 30.0, -9)],
    ids=["the disk is slow", "and slower than it may be", "it does something else"],
)
def test_an_instance_that_waits_for_the_disk_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool, sync_seconds: float, code: int
) -> None:
    monkeypatch.setattr(parent, "END_SECONDS", 0.5)
    monkeypatch.setattr(limits, "SYNC_SECONDS", sync_seconds)
    one = parent_of(tmp_path, 0)
    directory = one._dir / "0"
    directory.mkdir(parents=True)
    if syncs:
        (directory / SYNCING).touch()
    child = started(time.sleep, 1.5)
    one._end(0, child, time.monotonic() + parent.END_SECONDS)
    child.join(10)
    assert child.exitcode == code


def test_what_a_former_life_has_said_of_the_disk_is_forgotten(tmp_path: Path) -> None:
    one = parent_of(tmp_path, 0)
    (one._dir / "0").mkdir(parents=True)
    (one._dir / "0" / SYNCING).touch()
    one._supervise(100.0)
    one._children[0].join(10)
    assert not (one._dir / "0" / SYNCING).exists()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [("Exhausted: the lock of 0.0 is held by process 7", 1, "Exhausted: the lock of 0.0 is held by process 7"), (None, 3, "exit code 3")],
)  # fmt: skip
def test_whoever_looks_at_the_run_is_told_why_an_instance_ended(
    tmp_path: Path, words: str | None, code: int, why: str
) -> None:
    parent = parent_of(tmp_path, code)
    parent._supervise(100.0)
    parent._children[0].join(10)
    if words is not None:
        (tmp_path / "workers" / "0" / "0" / REASON).write_text(words)
    parent._supervise(101.0)
    (record,) = map(json.loads, (tmp_path / TIMELINE).read_text().splitlines())
    assert (record["kind"], record["process"], record["text"]) == ("ended", "instance 0.0", why)
    parent._supervise(200.0)
    parent._children[0].join(10)
    assert not (tmp_path / "workers" / "0" / "0" / REASON).exists(), "the next life has words of its own"
