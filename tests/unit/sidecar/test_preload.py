"""Instances are forks of a server that is their parent's: none of them outlives the other, and both are started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.unit.sidecar.test_parent import settings


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[psutil.Process]:
    """Of two instances, which find no Redis and wait for it."""
    file = settings(tmp_path).write()
    process = subprocess.Popen([sys.executable, __file__, str(file)])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def instances(parent: psutil.Process) -> list[psutil.Process]:
    """Those that the fork server has begun."""
    return [p for p in parent.children(recursive=True) if p.parent() != parent]


def until_two(parent: psutil.Process, besides: list[psutil.Process]) -> list[psutil.Process]:
    for _ in range(600):
        found = []
        with suppress(psutil.NoSuchProcess):  # One that ends meanwhile is looked for again.
            found = [p for p in instances(parent) if p not in besides and p.memory_info().shared > 0]
        if len(found) == 2:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{instances(parent)}")


def test_nothing_outlives_the_parent(parent: psutil.Process) -> None:
    children = [*until_two(parent, []), *parent.children()]
    time.sleep(0.5)  # each has said by now that it wants to end with its parent
    parent.kill()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive and len(gone) >= 3


def test_a_server_that_is_killed_is_started_again_and_its_instances_are(parent: psutil.Process) -> None:
    before = until_two(parent, [])
    time.sleep(0.5)
    server = before[0].parent()
    assert server is not None
    server.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(before, timeout=10)[1]
    after = until_two(parent, before)
    assert {p.parent() for p in after} != {server}


def test_an_instance_has_what_the_server_has_loaded(parent: psutil.Process) -> None:
    for process in until_two(parent, []):
        # A child maps what its server has loaded, and counts a page of a file once it has used the page itself.
        for _ in range(100):
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            sizes = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
            if sizes["Rss:"] > 100_000:
                break
            time.sleep(0.1)
        assert sizes["Rss:"] > 100_000, "it has the libraries"
        assert sizes["Pss:"] < 0.75 * sizes["Rss:"], "and shares them"


def test_pandas_is_loaded_for_whoever_asks_and_for_nobody_else() -> None:
    asks = (
        "import sys; import ferry.sidecar.preload; assert 'pandas' not in sys.modules\n"
        "import pyarrow as pa; assert pa.table({'a': [1, 2]}).to_pandas().a.sum() == 3\n"
        "import pandas; assert pa.array(pandas.Series([1, 2])).to_pylist() == [1, 2]\n"
    )
    assert subprocess.run([sys.executable, "-c", asks], check=True).returncode == 0


def main() -> None:
    """A parent as `ferry.sidecar` is one, which has claimed its worker."""
    from ferry.contract.settings import RunSettings
    from ferry.environment import Environment
    from ferry.registry import Claim
    from ferry.sidecar import forks
    from ferry.sidecar.parent import Parent

    one = Parent(RunSettings.read(sys.argv[1]), sys.argv[1], worker=0, instances=2, env=Environment())
    one._claimed = Claim(7, "7 pod")
    forks.begin()
    forks.when_loaded(one._preloaded.set)
    while os.getppid() > 1:
        one._supervise(time.monotonic())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
