"""An instance that ends badly says why: in its log, and to its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferry.contract.exit_codes import ExitCode

ENDS = """
import sys, threading
from pathlib import Path
from ferry.sidecar import instance
instance._reason_files.append(Path(sys.argv[1]))

def fails():
    raise BlockingIOError("the lock is held\\nby another process")

def fails_in_a_thread():
    threading.excepthook = instance.end_with_thread
    thread = threading.Thread(target=fails, name="loop")
    thread.start()
    thread.join()

def fails_in_the_users_thread():
    threading.excepthook = instance.end_with_thread
    users = {}
    exec(compile("def fails(): {}['x']", "/home/me/job.py", "exec"), users)
    thread = threading.Thread(target=users["fails"], name="refresh")
    thread.start()
    thread.join()
    return 0

instance.end_with(locals()[sys.argv[2]])
"""


@pytest.mark.parametrize(("how", "code"), [("fails", ExitCode.CRASHED), ("fails_in_a_thread", ExitCode.THREAD_FAILED)])
def test_it_says_why_it_ends(tmp_path: Path, how: str, code: int) -> None:
    file = tmp_path / "ended"
    done = subprocess.run([sys.executable, "-c", ENDS, str(file), how], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == "ends: BlockingIOError: the lock is held by another process"
    assert file.read_text() == "BlockingIOError: the lock is held by another process"


def test_a_thread_of_the_users_ends_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path / "ended"), "fails_in_the_users_thread"]
    done = subprocess.run(command, capture_output=True, text=True)
    line = "user code: KeyError: 'x' (job.py:1 in fails), thread 'refresh', which ends"
    assert done.returncode == 0 and line in done.stderr and "ends: " not in done.stderr, done.stderr
