"""`ferry run` whose workers are each on a machine of its own (`bench.shared.links`).

python -m bench.shared.apart BRIDGE run JOB [options of ferry run]     the job
python -m bench.shared.apart BRIDGE sidecar RUN_JSON --worker K ...    a worker, which it starts like this
"""

from __future__ import annotations

import os
import sys
from functools import partial
from unittest.mock import patch

from bench.shared.links import FIRST_WORKER, Links
from ferry_operator.cli import main as cli
from ferry_operator.local.cluster.local import Programs
from ferry_operator.local.run import run


def main() -> None:
    """Run the job, or become the worker."""
    bridge, what, *arguments = sys.argv[1:]
    if what == "sidecar":
        machine = FIRST_WORKER + int(arguments[arguments.index("--worker") + 1])
        apart = Links(bridge)
        program = [sys.executable, "-m", "ferry.sidecar", *arguments]
        command = [*apart.inside(machine), "env", f"FERRY_HOST={apart.address(machine)}", *program]
        os.execvp(command[0], command)
    programs = Programs(sidecar=(sys.executable, "-m", "bench.shared.apart", bridge, "sidecar"))
    sys.argv[1:] = [what, *arguments]
    with patch.object(cli, "run_job", partial(run, programs=programs)):
        cli.main()


if __name__ == "__main__":
    main()
