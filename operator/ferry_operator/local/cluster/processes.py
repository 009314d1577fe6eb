"""Starts the processes of a run, each as the leader of its own session, and ends them with their children.

It does not know workers or drivers. Each process writes to a log file, carries the tag of the run, and is registered with
the run's reaper (`reaper`), so that no process is left when the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ferry.contract.errors import SpecRefused
from ferry.system.flight_places import fits_socket
from ferry.system.parent import dying_with_parent
from ferry_operator.control.restarts import SILENT, why_ended
from ferry_operator.local.cluster import reaper

TAIL_BYTES = 1 << 18
"""Bytes at the end of a log that are searched for the last error: a Java stack is long."""

LINES_MAX = 2000

FULL_BYTES = 1 << 20
"""A disk with less free space than this counts as full."""

NAMES_BYTES = 62
"""Greatest length of the path of a socket below the folder for temporary files."""

OTHER_TEMPORARY = "/var/tmp"
"""Used if the path of the environment's temporary folder is too long for sockets."""


class ChildProcess:
    """One started process: its Popen, its log, its start and, once observed, its end."""

    def __init__(self, popen: subprocess.Popen[bytes], role: str, log: Path, log_begins: int) -> None:
        """`log_begins`: size of the log at the start of the process."""
        self.popen = popen
        self.role = role
        self._log = log
        self._log_begins = log_begins
        self.started = time.monotonic()
        self.ended: float | None = None
        self.killed = False
        """the process was killed on purpose"""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session and process group."""
        return self.popen.pid

    @property
    def code(self) -> int | None:
        """Exit code, or None while it runs; notes the time at which the end is first observed."""
        code = self.popen.poll()
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
        return code

    @property
    def why_ended(self) -> str:
        """Why the process ended: the last error in its log, else its exit code or signal."""
        assert self.code is not None
        why = why_ended(self.code, last_lines(self._log, LINES_MAX, self._log_begins))
        with contextlib.suppress(OSError):
            if why.endswith(SILENT) and shutil.disk_usage(self._log).free < FULL_BYTES:
                why += f": no space is left on the disk of {self._log}"
        return why


class Processes:
    """The processes of one run."""

    def __init__(self, run: str, logs: Path) -> None:
        """`run`: the tag, unique on this machine."""
        self.run = run
        self.logs = logs
        self.temporary = _temporary_folder()
        """folder for temporary files of all processes, with a path that is short enough for sockets"""
        # A user's file such as json.py must not replace a module of Python in any process.
        self.environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONSAFEPATH": "1"}
        logs.mkdir(parents=True, exist_ok=True)
        self._reaper = self._start_reaper()

    def start(
        self, role: str, command: Sequence[str], log: str | None = None, more: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start `command`, with its output in the log of `role`, or of `log`. Raises OSError if it cannot start.

        `more`: further environment variables; a process with them also has a standard input.
        """
        if self._reaper.poll() is not None:
            self._reaper = self._start_reaper()
        path = self.log(log or role)
        with open(path, "ab") as file:
            begins = file.tell()
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if more else subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self.environment, **(more or {}), reaper.TAG: self._tag(role)},
                preexec_fn=dying_with_parent(),  # also when the reaper is killed with the supervisor
            )
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError):
            self._reaper.stdin.write(f"{popen.pid}\n".encode())
            self._reaper.stdin.flush()
        return ChildProcess(popen, role, path, begins)

    def log(self, role: str) -> Path:
        """The log file of `role`."""
        return self.logs / f"{role}.log"

    def strike(self, process: ChildProcess) -> None:
        """Kill a process and its process group, and do not wait; `kill` ends the rest."""
        process.killed = True
        if process.code is None:
            reaper.end_group(process.pid)

    def kill(self, process: ChildProcess) -> None:
        """Kill a process and all its children. Returns when they are gone."""
        self.strike(process)  # one system call for most of the tree, then the processes outside the group
        reaper.end_tagged(self._tag(process.role) + "\0")
        process.popen.wait()
        assert process.code is not None

    def end(self, process: ChildProcess, patience: float) -> None:
        """Ask a process to end, and kill the rest after `patience` seconds."""
        process.killed = True
        if process.code is None:
            with contextlib.suppress(ProcessLookupError):
                process.popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(patience)
        self.kill(process)

    def belongs(self, pid: int, role: str) -> bool:
        """Whether `role` has started this process."""
        return pid in reaper.tagged(self._tag(role) + "\0")

    def close(self) -> None:
        """Kill all processes of the run."""
        reaper.end_tagged(f"{self.run}/")
        with contextlib.suppress(OSError):
            self._reaper.communicate(timeout=5)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _tag(self, role: str) -> str:
        return f"{self.run}/{role}"

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, f"{self.run}/", str(self.temporary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _temporary_folder() -> Path:
    """A new folder in the environment's temporary folder, or in OTHER_TEMPORARY if that path is too long for sockets.

    Raises SpecRefused if no folder can be created.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="ferry-"))
        if not fits_socket(folder / ("x" * NAMES_BYTES)):
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="ferry-", dir=OTHER_TEMPORARY))
    except OSError as error:
        raise SpecRefused(
            f"no folder for temporary files: {error}; set TMPDIR to a short path of ASCII letters"
        ) from None
    return folder


def last_lines(log: Path, count: int = 20, begin: int = 0) -> list[str]:
    """The last `count` lines of a log that are not blank, without its first `begin` bytes."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(begin, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.split("\n") if line.strip()][-count:]
