"""A server of S3, as a process that tests start, stop, freeze and kill: versitygw on a folder of this machine.

`tests/kube/lab/lab setup s3` compiles it, once. It asserts nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pyarrow import fs

LAB = Path(__file__).parent / "kube" / "lab" / "lab"
START_SECONDS = 20.0


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
        asked = fs.S3FileSystem(
            access_key=key,
            secret_key=secret,
            endpoint_override=f"{self.address}:{self.port}",
            scheme="http",
            region="us-east-1",
        )
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if asked.get_file_info("checkpoints").type == fs.FileType.Directory:
                    return
            if time.monotonic() > end or self._process.poll() is not None:
                self.kill()
                raise RuntimeError(f"versitygw does not answer: {(self._directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

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
