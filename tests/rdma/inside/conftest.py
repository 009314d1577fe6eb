from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

INSIDE = "FERRY_GUEST_ROLE" in os.environ
CHANNEL = Path(__file__).resolve().parents[2] / "unit" / "channel"

# These tests need a device, and no device is a failure: elsewhere they are not tests. See tests/rdma/test_guests.py.
collect_ignore_glob = [] if INSIDE else ["test_*.py"]

for name, path in (("fake_verbs", CHANNEL / "fake_verbs.py"), ("channel_rig", CHANNEL / "rig.py")):
    if INSIDE and name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


@pytest.fixture(params=["rdma-footer", "rdma-imm"])
def rig(request):
    from channel_rig import Rig

    rig = Rig(request.param)
    yield rig
    rig.end()


@pytest.fixture
def device():
    from ferry.channel.rdma.device import choose_device
    from ferry.channel.rdma.memory import RingShape

    device = choose_device(RingShape())
    yield device
    device.close()
