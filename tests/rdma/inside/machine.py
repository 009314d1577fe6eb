"""What runs on a machine of a job: it keeps one sidecar running, as a kubelet would, and does what the host asks of it.

`machine.py WORKER`, with the settings of the run in /x/run.json. The host asks by a file /x/ask-N with commands of the shell;
the answer is in /x/answer-N. The sidecar's state is in memory, and gone with the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

X = Path("/x")
JOB = Path("/tmp/job")
PID = Path("/tmp/sidecar.pid")
"""Of the group of its processes: parent and instances."""


def sidecar(worker: str) -> subprocess.Popen[bytes]:
    """Start it; its files are those of the sidecar before."""
    command = [sys.executable, "-m", "ferry.sidecar", str(JOB / "run.json"), "--worker", worker]
    process = subprocess.Popen(command, start_new_session=True)
    PID.write_text(str(process.pid))
    return process


def answer(ask: Path) -> None:
    """Run what is asked for: one line with the exit code, then what it printed."""
    done = subprocess.run(["bash", "-c", ask.read_text()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    hidden = X / f".{ask.name}"
    hidden.write_text(f"{done.returncode}\n{done.stdout}")
    ask.unlink()
    hidden.rename(X / ask.name.replace("ask", "answer"))


def main() -> None:
    shutil.copytree("/site/.kernels", "/tmp/kernels")
    JOB.mkdir()
    settings = json.loads((X / "run.json").read_text())
    (JOB / "run.json").write_text(json.dumps({**settings, "directory": str(JOB)}))
    running = sidecar(sys.argv[1])
    while True:
        if running.poll() is not None:
            print(f"the sidecar ended with {running.returncode}, and is started again", flush=True)
            running = sidecar(sys.argv[1])
        for ask in sorted(X.glob("ask-*")):
            answer(ask)
        time.sleep(0.1)


main()
