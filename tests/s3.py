"""A server of S3, as a process that tests start, stop, freeze and kill: versitygw on a folder of this machine.

`tests/kube/lab/lab setup s3` compiles it, once. It asserts nothing itself.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LAB = Path(__file__).parent / "kube" / "lab" / "lab"
START_SECONDS = 30.0

ASK = """
import sys, time
from pyarrow import fs
store = fs.S3FileSystem(endpoint_override=sys.argv[1], scheme="http", region="us-east-1")
while True:
    try:
        if store.get_file_info("checkpoints").type == fs.FileType.Directory:
            break
    except OSError:
        pass
    time.sleep(0.05)
"""
"""Ends when the server answers, to somebody who has its keys."""


class S3Server:
    """One server, with a bucket; its objects outlive its lives."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        """It is started, at a port of its own; `prefix`: what its command begins with, where the address is not of here."""
        self._directory, self.address, self._prefix = directory, address, prefix
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.environment = {
            "AWS_ACCESS_KEY_ID": f"key{secrets.token_hex(6)}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        """Of processes that may use it."""
        for folder in ("objects/checkpoints", "attributes"):
            (directory / folder).mkdir(parents=True)
        self._program = _program()
        self.start()

    @property
    def url(self) -> str:
        """A folder of the bucket."""
        return f"s3://checkpoints/jobs?endpoint_override={self.address}:{self.port}&scheme=http"

    @property
    def objects(self) -> Path:
        """What the bucket holds, as files."""
        return self._directory / "objects" / "checkpoints"

    def start(self) -> None:
        """Another life of it, at the same port. Returns when it answers."""
        assert self._process is None, "it runs"
        key, secret = self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"]
        command = [*self._prefix, self._program, "--port", f"{self.address}:{self.port}", "--quiet", "posix"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--sidecar", str(self._directory / "attributes"), str(self._directory / "objects")],
                env={**os.environ, "ROOT_ACCESS_KEY_ID": key, "ROOT_SECRET_ACCESS_KEY": secret},
                stdout=log,
                stderr=log,
            )
        # Asked from where it is: this process may have no way to it.
        asking = subprocess.Popen(
            [*self._prefix, sys.executable, "-c", ASK, f"{self.address}:{self.port}"],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS
        try:
            while asking.poll() is None and self._process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            asking.kill()
            asking.wait()
        if asking.returncode != 0:
            self.kill()
            raise RuntimeError(f"versitygw does not answer: {(self._directory / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """As a power cut; it is fine if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections, and says nothing, from now on: its threads do not stop at once."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)


def _program() -> str:
    for command in (["setup", "s3"], ["program", "versitygw"]):
        done = subprocess.run([LAB, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"lab {' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout.strip()
