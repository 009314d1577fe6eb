"""A sidecar whose instances sleep: it writes their pids, starts dead ones again and follows the file `instances`."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

RUN = json.loads(Path(sys.argv[1]).read_text())
if RUN["pipeline_args"].get("broken"):
    sys.exit("no library to start with")
if RUN["transport"]["mode"] == "rdma":
    print("no transport: transport.mode is rdma, and there is no device", file=sys.stderr)
    sys.exit(4)
HERE = Path(RUN["directory"])
WORKER, COUNT = sys.argv[sys.argv.index("--worker") + 1], int(sys.argv[sys.argv.index("--instances") + 1])
instances = {}
while True:
    for i in range(COUNT):
        if i not in instances or instances[i].poll() is not None:
            instances[i] = subprocess.Popen(["sleep", "1000"])
            directory = HERE / "workers" / WORKER / str(i)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "pid").write_text(str(instances[i].pid))
    for i in [i for i in instances if i >= COUNT]:
        instances.pop(i).kill()
    time.sleep(0.05)
    with contextlib.suppress(OSError, ValueError):
        COUNT = int((HERE / "workers" / WORKER / "instances").read_text())
