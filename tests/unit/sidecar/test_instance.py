"""An instance that ends badly says why: in its log, and to its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferry.contract.exit_codes import ExitCode
from ferry.contract.names import Attempt, CommitId, Step
from ferry.sidecar import ALIVE, REASON
from ferry.sidecar.signs import Computing, EndedLife, Signs, read_end, write_end

ENDS = """
import sys, threading
from pathlib import Path
from ferry.sidecar import ending
ending.reason_files.append(Path(sys.argv[1]))

def fails():
    raise BlockingIOError("the lock is held\\nby another process")

def fails_in_a_thread():
    threading.excepthook = ending.end_with_thread
    thread = threading.Thread(target=fails, name="loop")
    thread.start()
    thread.join()

users = {}
exec(compile("import os\\ndef fails(): {}['x']\\ndef leaves(): os._exit(7)", "/home/me/job.py", "exec"), users)

def leaves():
    ending.guard_exit()
    users["leaves"]()

def fails_in_the_users_thread():
    threading.excepthook = ending.end_with_thread
    thread = threading.Thread(target=users["fails"], name="refresh")
    thread.start()
    thread.join()
    return 0

ending.end_with(locals()[sys.argv[2]])
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
    line = "user code: KeyError: 'x' (job.py:2 in fails), thread 'refresh', which ends"
    assert done.returncode == 0 and line in done.stderr and "ends: " not in done.stderr, done.stderr


def test_an_exit_in_the_users_code_says_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / REASON
    done = subprocess.run([sys.executable, "-c", ENDS, str(file), "leaves"], capture_output=True, text=True)
    line = "user code: os._exit(7) (job.py:3 in leaves): it ends the process of the instance"
    assert done.returncode == 7 and file.read_text() == line and done.stderr.splitlines()[-1] == f"ends: {line}"
    write_end(tmp_path, 7)
    assert not (tmp_path / ALIVE).exists() and read_end(tmp_path) == EndedLife(7, None), (
        "the user's code was not at work"
    )
    signs = Signs()
    signs.begin(tmp_path / ALIVE)
    computing = Computing(CommitId(Step(14, 2), Attempt(3, 4)), "operator 'w' in epoch 14", users=True)
    with signs.computes(computing):
        write_end(tmp_path, 7)
    assert read_end(tmp_path) == EndedLife(7, computing, line)
