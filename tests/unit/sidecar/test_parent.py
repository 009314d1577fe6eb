"""The parent notices an instance that stands still, and only that."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ferry.contract import limits
from ferry.contract.documents import RunSettings
from ferry.environment import Environment
from ferry.sidecar import ALIVE
from ferry.sidecar.parent import Parent


def settings(directory: Path) -> RunSettings:
    return RunSettings(
        job="j", run="j-1", directory=str(directory), secret="s" * 16, redis=f"unix://{directory}/none.sock",
        pipeline_module="m", pipeline_file=None, pipeline_args={}, virtual_nodes=4, replicas=0, workers=1,
        instances_per_worker=1, memory_bytes=1 << 20, epoch_interval_ms=0, epoch_max_rows=1, cores=1,
    )  # fmt: skip


def test_an_instance_that_stands_still_is_noticed(tmp_path: Path) -> None:
    parent = Parent(settings(tmp_path), str(tmp_path / "run.json"), worker=3, instances=1, surroundings=Environment())
    alive = tmp_path / "workers" / "3" / "0" / ALIVE
    assert not parent._hangs(0), "it has not begun yet"
    alive.parent.mkdir(parents=True)
    alive.touch()
    assert not parent._hangs(0)
    long_ago = time.time() - limits.HANG_SECONDS - 1
    os.utime(alive, (long_ago, long_ago))
    assert parent._hangs(0)
