"""A process ends with the one that has started it, also when that one ends first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

CHILD = """
import sys, time
from ferry.system.parent import die_with_parent
die_with_parent(int(sys.argv[1]))
print("begun", flush=True)
time.sleep(60)
"""

PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")


def test_it_is_killed_with_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        lines = sorted(parent.stdout.readline().strip() for _ in range(2))
        assert lines[1] == "begun"
        child = psutil.Process(int(lines[0]))
        parent.send_signal(signal.SIGKILL)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_it_does_not_begin_when_its_parent_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "process 1, which has started this one, is gone" in done.stderr
