"""Builds a pipeline in a child process (`ferry.driver.check`): its errors, its time and its output are its own.

Of the output only the end is kept. Must never read more of it into this process, nor write it to a disk.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

from ferry.contract.errors import SpecRefused
from ferry.contract.last_words import last_words
from ferry.contract.user_code import place_in
from ferry.system.priority import NICE

OUTPUT_KEPT = 256 << 10
"""Bytes at the end of the output in which the reason of an end is looked for."""

ABORT_SECONDS = 2.0
"""Time for Python to print the stack of a process that is late."""

DRAIN_SECONDS = 2.0
"""Time for the rest of the output once the process has ended: a process that it began may hold its output open."""

_CHUNK = 64 << 10


def built_apart(request: dict[str, Any], seconds: float, is_beside_job: bool = False) -> dict[str, Any]:
    """The answer of `ferry.driver.check` to a request. `is_beside_job`: epochs would wait for its processors.

    Raises SpecRefused for a process that ends without an answer, or has none within this time.
    """
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        asked, answer = (Path(folder) / name for name in ("request", "answer"))
        asked.write_text(json.dumps(request), "utf-8")
        nice = ["nice", "-n", str(NICE)] if is_beside_job else []
        # With faulthandler Python prints its stack when a signal ends it, after a crash or a timeout.
        command = [*nice, sys.executable, "-X", "faulthandler", "-m", "ferry.driver.check", str(asked), str(answer)]
        # A user's json.py must not replace Python's module; without a copy, modules are imported from the working directory.
        safe = {"PYTHONSAFEPATH": "1"} if request["pipeline"][2] is not None else {}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **safe},
            bufsize=0,
        )
        assert process.stdout is not None
        output = _End(process.stdout)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _abort(process)
            place = place_in(output.text())
            at = f" ({place})" if place else ""
            raise SpecRefused(f"sources() and pipeline() have not returned within {seconds:g} s{at}") from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        if not answer.is_file():
            words = last_words(output.text().splitlines()) or "it printed nothing"
            raise SpecRefused(f"the process that builds the pipeline ended with code {code}: {words}")
        built: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return built


class _End:
    """The end of the output of a process, which can write as much as it wants."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = cast(FileIO, output)
        self._kept = bytearray()
        self._reading = threading.Thread(target=self._read, name="output of a program's check", daemon=True)
        self._reading.start()

    def text(self) -> str:
        """The end of the output of a process that has ended."""
        self._reading.join(DRAIN_SECONDS)
        return bytes(self._kept[-OUTPUT_KEPT:]).decode("utf-8", "replace")

    def _read(self) -> None:
        with self._output:
            while chunk := self._output.read(_CHUNK):
                self._kept += chunk
                if len(self._kept) > 2 * OUTPUT_KEPT:
                    del self._kept[:-OUTPUT_KEPT]


def _abort(process: subprocess.Popen[bytes]) -> None:
    """End a process; SIGABRT first, so that Python prints its stack."""
    with suppress(subprocess.TimeoutExpired):
        process.send_signal(signal.SIGABRT)
        process.wait(ABORT_SECONDS)
    process.kill()
    process.wait()
