"""Ends every process of a run, so that no process outlives its supervisor, even a killed one.

Processes carry a tag in their environment (`FERRY_PROCESS_TAG=RUN/ROLE`). Their children inherit it in every session and
process group. As a program, the reaper waits for the end of its standard input, which the supervisor holds open, and then
kills all tagged processes. Standard input may list process ids, one a line, of session leaders that hide their
environment. Standard library only, without imports of Ferry: the reaper runs as a script and must start at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

TAG = "FERRY_PROCESS_TAG"


def tagged(prefix: str) -> list[int]:
    """Other processes whose tag begins with `prefix`; a '/' or NUL at its end completes the name of a run or role."""
    wanted, pids = f"\0{TAG}={prefix}".encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in b"\0" + file.read():
                    pids.append(int(name))
    return pids


def born(pid: int) -> str | None:
    """Start time of a process in ticks since boot, which differs for a later process with its id. None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def end_group(pid: int) -> None:
    """Kill the process group of this leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_tagged(prefix: str) -> None:
    """Kill all tagged processes, until two looks find none: a killed process cannot fork, so this ends."""
    looks = 0
    while looks < 2:  # a process has no environment for a moment during exec
        pids = tagged(prefix)
        looks = 0 if pids else looks + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)  # the kernel lists a killed process for a moment


def main(prefix: str, temporary: str) -> None:
    """Wait for the supervisor's end, then kill the processes of the run, and remove the folder for temporary files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: dict[int, str | None] = {}
    for line in sys.stdin:
        if line.strip().isdigit():
            leaders[int(line)] = born(int(line))
    for pid, birth in leaders.items():
        if birth is not None and born(pid) == birth:
            end_group(pid)
    end_tagged(prefix)
    shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
