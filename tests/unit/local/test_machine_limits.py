"""Too few open files, processes or threads are said at the start; what may be had is taken."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.local import machine_limits

Limits = dict[int, tuple[int, int]]

NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Limits:
    found: Limits = {resource.RLIMIT_NOFILE: (1 << 20, 1 << 20), resource.RLIMIT_NPROC: (NONE, NONE)}
    monkeypatch.setattr(resource, "getrlimit", found.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", found.__setitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine_limits, "CGROUP", tmp_path)
    monkeypatch.setattr(machine_limits, "_threads_of_user", lambda: 100)
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [((256, NONE), 65_536), ((1024, 4096), 4096), ((1024, 1024), 1024), ((1 << 20, 1 << 20), 1 << 20), ((NONE, NONE), NONE)],
)  # fmt: skip
def test_a_process_takes_the_open_files_that_it_may_have(limits: Limits, before: tuple[int, int], after: int) -> None:
    limits[resource.RLIMIT_NOFILE] = before
    machine_limits.require(2)
    assert limits[resource.RLIMIT_NOFILE][0] == after


def test_too_few_are_refused_with_what_to_set(limits: Limits, tmp_path: Path) -> None:
    limits[resource.RLIMIT_NOFILE] = (256, 256)
    with pytest.raises(SpecRefused, match=r"256 open files here, but Ferry needs at least 1,024: run `ulimit -n 4096`"):
        machine_limits.require(2)
    limits[resource.RLIMIT_NOFILE] = (4096, 4096)
    limits[resource.RLIMIT_NPROC] = (200, 400)
    with pytest.raises(SpecRefused, match=r"400 .* \(ulimit -u\), 100 are running, .* about 350 more: .* to 800"):
        machine_limits.require(2)
    limits[resource.RLIMIT_NPROC] = (200, NONE)
    machine_limits.require(2)
    assert limits[resource.RLIMIT_NPROC] == (NONE, NONE)
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "pids.current").write_text("90\n")
    machine_limits.require(2)
    (tmp_path / "pids.max").write_text("100\n")
    with pytest.raises(SpecRefused, match="the pids limit of this container"):
        machine_limits.require(2)
