"""Input that is away when a driver begins, and input of nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.errors import InputAway, Unreachable, fault_in
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import inputs
from ferry.driver.publisher import is_passing
from ferry.spark.source import PROBLEM

SCHEMA = pa.schema([("a", pa.int64())])


def test_a_driver_of_a_job_that_has_begun_waits_for_its_folders(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inputs, "LOOK_SECONDS", 0.0)
    metrics, said = DriverMetrics("j", str(tmp_path)), []

    def build() -> Any:
        said.append([problem.text for problem in metrics.problems.current])
        if len(said) < 4:
            raise (InputAway if len(said) % 2 else Unreachable)("no directory '/in'")
        return "plan"

    assert inputs.built(build, True, metrics) == "plan" and not metrics.problems.current
    assert said[3] == ["source: no directory '/in'"]
    said.clear()
    with pytest.raises(InputAway):
        inputs.built(build, False, metrics)


def test_a_finite_job_that_has_read_nothing_says_what_there_was(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("")
    (tmp_path / "dead").symlink_to("nowhere")
    sources = {"clicks": ferry.json_files(tmp_path, SCHEMA, finite=True), "other": object()}
    text = inputs.nothing_read(sources, 3)
    assert text.startswith("no record was read (3 were set aside as malformed): source 'clicks' (")
    assert "has 1 files without records" in text and "dead (a broken link)" in text


def test_what_is_not_read_is_a_notice_for_as_long_as_it_is_there(tmp_path: Path) -> None:
    metrics = DriverMetrics("j", str(tmp_path))
    inputs.notice(metrics, "in/done is not read")
    assert [one.text for one in metrics.problems.lasting] == ["in/done is not read"]
    inputs.notice(metrics, "")
    assert not metrics.problems.lasting


def test_what_sparks_process_waits_for_is_passed_on(tmp_path: Path) -> None:
    metrics = DriverMetrics("j", str(tmp_path))
    assert not inputs.pass_on(tmp_path, metrics, False)
    (tmp_path / PROBLEM).write_text("the folder is away")
    assert inputs.pass_on(tmp_path, metrics, False) and metrics.problems.current[0].text == "source: the folder is away"
    (tmp_path / PROBLEM).unlink()
    assert not inputs.pass_on(tmp_path, metrics, True) and not metrics.problems.current


def test_a_fault_of_a_task_is_found_in_sparks_failure() -> None:
    text = "Job aborted\n  ferry.contract.errors.Fault: in/f cannot be read: OSError: x\n\n at org.apache.spark"
    assert is_passing(RuntimeError(text)) and fault_in(text) == "Fault: in/f cannot be read: OSError: x"
    assert fault_in("another") == "another"


def test_a_program_that_takes_long_is_said_to_while_it_is_built(tmp_path: Path) -> None:
    metrics, reported = DriverMetrics("j", str(tmp_path), slow_ms=1), threading.Event()
    report = metrics.problems.report

    def reports(reason: str, text: str) -> None:
        report(reason, text)
        reported.set()

    def build() -> Any:
        assert reported.wait(20)
        assert [problem.reason for problem in metrics.problems.current] == ["SlowCode"]
        return "plan"

    metrics.problems.report = reports  # type: ignore[method-assign]
    assert inputs.built(build, False, metrics) == "plan" and not metrics.problems.current
