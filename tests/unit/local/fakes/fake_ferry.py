"""The `ferry` command with the fake driver and sidecar in place of the real ones."""

import dataclasses
import sys
from pathlib import Path

from ferry_operator.cli import main, targets
from ferry_operator.local.cluster.local import Programs
from ferry_operator.local.run import run
from ferry_operator.local.run_command import RunCommand

HERE = Path(__file__).parent
FAST = (sys.executable, "-S", "-E")
PROGRAMS = Programs((*FAST, str(HERE / "fake_driver.py")), (*FAST, str(HERE / "fake_sidecar.py")))


def run_with_fakes(command: RunCommand) -> int:
    return run(dataclasses.replace(command), PROGRAMS)


if __name__ == "__main__":
    targets.run = run_with_fakes
    main.main()
