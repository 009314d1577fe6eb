from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

CARRIERS = os.environ.get("FERRY_CHANNEL_CARRIERS", "memory tcp fake-footer fake-imm none-footer").split()
"""Every test of the contract runs over each; with real devices (tests/rdma) also over rdma-footer and rdma-imm."""


def load(name: str, path: Path) -> None:
    """Tests are collected without packages, so what lies beside them is loaded by its path, once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


load("fake_verbs", Path(__file__).with_name("fake_verbs.py"))
load("channel_rig", Path(__file__).with_name("rig.py"))


@pytest.fixture(params=CARRIERS)
def rig(request):
    from channel_rig import Rig

    rig = Rig(request.param)
    yield rig
    rig.end()
