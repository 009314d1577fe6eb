"""The reference generator under tests/oracle, as tables in memory."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))

Reference = Callable[..., tuple[dict[str, pa.Table], int]]


@pytest.fixture(scope="session")
def reference() -> Reference:
    """reference(workload, **options) -> (tables, max_disorder_ms), as `python -m oracle generate` writes them."""
    gen = importlib.import_module("oracle.gen")

    def make(workload: str, **options: Any) -> tuple[dict[str, pa.Table], int]:
        options.setdefault("rate", 10.0 if workload == "unimico" else 1000.0)
        made = gen.WORKLOADS[workload](gen.Config(workload=workload, **options))
        stamped = [t for t in made.values() if "ts" in t]
        order = np.argsort(np.concatenate([t["seq"] for t in stamped]))
        ts = np.concatenate([t["ts"] for t in stamped])[order]
        disorder = int((np.maximum.accumulate(ts) - ts).max()) if len(ts) else 0
        return {name: pa.table(columns) for name, columns in made.items()}, disorder

    return make
