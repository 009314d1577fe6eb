"""Work beside a job has a lower priority; the rest of the process, or of the JVM, has not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ferry.system.priority import NICE, compilers_give_way

GIVES_WAY = """
import os, subprocess, sys
from ferry.system.priority import give_way
give_way(); give_way()
print(os.nice(0), subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, text=True).stdout)
"""


def test_a_process_and_its_children_give_way_once() -> None:
    seen = subprocess.run([sys.executable, "-c", GIVES_WAY], capture_output=True, text=True, check=True).stdout
    wanted = max(NICE, os.nice(0))
    assert seen.split() == [str(wanted), str(wanted)]


def test_only_the_compilers_of_a_jvm_give_way(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    for name, is_compiler in (("C2 CompilerThre", True), ("C1 CompilerThre", True), ("Executor task l", False)):
        shutil.copy(sleep, tmp_path / name)
        with subprocess.Popen([tmp_path / name, "60"]) as process:
            try:
                before = os.getpriority(os.PRIO_PROCESS, process.pid)
                while not Path(f"/proc/{process.pid}/comm").read_text().startswith(name[:8]):
                    pass
                compilers_give_way(process.pid)
                assert os.getpriority(os.PRIO_PROCESS, process.pid) == (max(NICE, before) if is_compiler else before)
            finally:
                process.kill()


def test_a_thread_may_have_any_name(tmp_path: Path) -> None:
    """Linux cuts a name after 15 bytes, also within a letter. The watch over the JVM must not fail of it."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    named = tmp_path / "12345678901234ß"
    shutil.copy(sleep, named)
    with subprocess.Popen([named, "60"]) as process:
        try:
            while not Path(f"/proc/{process.pid}/comm").read_bytes().startswith(b"1234"):
                pass
            compilers_give_way(process.pid)
        finally:
            process.kill()


def test_a_jvm_that_has_ended_has_no_compilers() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    compilers_give_way(process.pid)
