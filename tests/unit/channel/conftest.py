from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

# Tests are collected without packages, so the rig beside them is loaded by its path, once.
if "channel_rig" not in sys.modules:
    spec = importlib.util.spec_from_file_location("channel_rig", Path(__file__).with_name("rig.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["channel_rig"] = module
    spec.loader.exec_module(module)


@pytest.fixture(params=["memory", "tcp"])
def rig(request):
    from channel_rig import Rig

    rig = Rig(request.param)
    yield rig
    rig.end()
