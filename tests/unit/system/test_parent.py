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
    assert done.returncode == 1 and "process 1, which has started this one, has ended" in done.stderr


FORKS = """
import os, sys, time
from ferry.contract.user_code import calling
from ferry.system.parent import children_end_with_it
children_end_with_it()

def fork():
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    return child

with calling("f"):
    users = fork()
print(users, fork(), flush=True)
time.sleep(60)
"""


def test_a_child_that_the_users_code_makes_ends_with_the_process() -> None:
    """It has the lock of an instance's files, and its sockets: the next life would wait for it."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        users, ours = (psutil.Process(int(pid)) for pid in parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)
    psutil.wait_procs([users], timeout=10)
    assert not users.is_running() or users.status() == psutil.STATUS_ZOMBIE
    assert ours.is_running(), "as a worker of Spark, which is a fork of its daemon"
    ours.kill()
