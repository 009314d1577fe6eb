"""A pipeline is built in a process of its own: what becomes of one that dies there, or does not return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ferry.system import built_apart
from ferry_operator.job import spec
from ferry_operator.local import check

JOB = {
    "apiVersion": "ferry.dev/v1alpha1",
    "kind": "StreamJob",
    "metadata": {"name": "broken"},
    "spec": {"pipeline": {"file": "broken.py"}, "workers": 2},
}


def refused(folder: Path, program: str) -> str:
    (folder / "broken.py").write_text(program)
    (folder / "job.yaml").write_text(json.dumps(JOB))
    return check.pipeline(spec.load(folder / "job.yaml"), folder / "job.yaml").refused


def test_a_program_that_a_signal_ends_is_told_with_its_statement(tmp_path: Path) -> None:
    text = refused(tmp_path, "import ctypes\n\nctypes.string_at(0)\n")
    assert "Segmentation fault (broken.py:3 in <module>)" in text, text


def endless(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    """A program that does not return. A wait of this length for its process ends once the program is under way."""
    begun = folder / "begun"

    class Impatient(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout == seconds:
                until = time.monotonic() + 60
                while not begun.exists():
                    assert time.monotonic() < until
                    time.sleep(0.02)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Impatient)
    program = f"import time\n\ndef sources(spark, args):\n    open({str(begun)!r}, 'w').close()\n    time.sleep(600)\n"
    return program + "\n\ndef pipeline(streams, args): ...\n"


def test_a_program_that_does_not_return_is_told_with_its_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = refused(tmp_path, endless(tmp_path, monkeypatch, check.BUILD_SECONDS))
    assert "have not returned within 120 s (broken.py:" in text and "in sources" in text, text


def test_of_much_output_only_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    program = f"""
import os, pathlib
for _ in range(400):
    print("x" * 99_999)
files = [one for one in pathlib.Path({str(tmp_path / "temporary")!r}).rglob("*") if one.is_file()]
print(f"its output fills {{sum(one.stat().st_size for one in files) >> 20}} MiB of the disk", flush=True)
os._exit(3)
"""
    tracemalloc.start()
    try:
        text = refused(tmp_path, program)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "ended with code 3: its output fills 0 MiB of the disk" in text, text[-500:]
    assert peak < 16 << 20, peak


def test_a_process_that_the_program_leaves_behind_does_not_delay_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built_apart, "DRAIN_SECONDS", 0.2)
    program = (
        "import os, subprocess\nleft = subprocess.Popen(['sleep', '60'])\nprint(left.pid, flush=True)\nos._exit(4)\n"
    )
    begun = time.monotonic()
    text = refused(tmp_path, program)
    os.kill(int(text.rpartition(" ")[2]), signal.SIGKILL)  # It runs still.
    assert "ended with code 4" in text and time.monotonic() < begun + 45, text


def test_whoever_is_interrupted_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            made.append(self)
            if timeout == check.BUILD_SECONDS:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        refused(tmp_path, "import time; time.sleep(600)\n")
    assert made[0].poll() is not None
