"""What Spark's Python workers are forks of."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from ferry.spark import daemon
daemon.load()
import ferry.spark.tasks.fragment, pyarrow, sys
print(len(os.listdir("/proc/self/task")))
"""


def test_it_has_no_thread_when_it_forks() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
