"""Every job of the papers follows the clock when it is asked to: `pace` is in the arguments of all."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from ferry_workloads import jobs
from ferry_workloads.pacing import PacedSplits

NAMES = [m.name for m in pkgutil.iter_modules(jobs.__path__) if m.name != "arguments"]


@pytest.mark.parametrize("name", NAMES)
def test_all_sources_of_a_job_are_paced_and_none_where_nobody_asks(name: str) -> None:
    module = importlib.import_module(f"ferry_workloads.jobs.{name}")
    asked = module.sources(None, {"pace": 1000})
    assert asked and all(isinstance(source, PacedSplits) for source in asked.values())
    assert not any(isinstance(source, PacedSplits) for source in module.sources(None, {}).values())
