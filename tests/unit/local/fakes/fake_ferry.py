"""The `ferry` command with the fake driver and sidecar in place of the real ones."""

import dataclasses
import sys
from pathlib import Path

from ferry_operator.cli import main, targets
from ferry_operator.local.cluster.local import Programs
from ferry_operator.local.request import Request
from ferry_operator.local.run import run

HERE = Path(__file__).parent
FAST = (sys.executable, "-S", "-E")
PROGRAMS = Programs((*FAST, str(HERE / "fake_driver.py")), (*FAST, str(HERE / "fake_sidecar.py")))


def run_with_fakes(request: Request) -> int:
    return run(dataclasses.replace(request), PROGRAMS)


if __name__ == "__main__":
    targets.run = run_with_fakes
    main.main()
