"""Ends every process of a run, also when the supervisor was killed: no process outlives its supervisor.

Processes carry a tag in their environment (`FERRY_PROCESS_TAG=RUN/ROLE`), which their children inherit, whatever session or
process group they move to. As a program, it waits for the end of its standard input, which the supervisor holds open,
and then kills all that is tagged; standard input may name process ids (one a line) of leaders of sessions that hide
their environment. Standard library only, and no import of ours: it runs as a script and has to start at once.
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
    """Process ids whose tag begins with `prefix`; end it with '/' or NUL to mean a whole name. Never this process."""
    wanted, found = f"\0{TAG}={prefix}".encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in b"\0" + file.read():
                    found.append(int(name))
    return found


def born(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: tells two processes of one id apart. None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def end_group(pid: int) -> None:
    """Kill the process group of this leader at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_tagged(prefix: str) -> None:
    """Kill all that is tagged, until two looks find nothing: a killed process cannot fork, so this ends."""
    looks = 0
    while looks < 2:  # what is just being executed has no environment for a moment
        pids = tagged(prefix)
        looks = 0 if pids else looks + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)  # a killed process is still listed until the kernel has taken it down


def main(prefix: str, temporary: str) -> None:
    """Wait for the supervisor's end, then end the rest, and remove its folder for temporary files."""
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
