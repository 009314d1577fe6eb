"""The only importer of pyverbs, of rdma-core 44 to 64 and later, and the types that the other files share.

It must never import pyverbs before a device is asked for: it is optional, and has to come from the system's own
rdma-core.
"""

from __future__ import annotations

import functools
import importlib
import os
from ipaddress import IPv6Address
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

from ferry.contract.errors import Fault

PORT = 1
"""The port that is used of every device."""


class DeviceUnusable(Fault):
    """The device does not exist, or cannot do what a channel needs; the message says which and why."""


class Gid(NamedTuple):
    """One address of a port."""

    gid_index: int
    address: IPv6Address
    version: int
    """version of RoCE: 2 can be routed; 0 means another protocol"""
    netdev: str


class Port(NamedTuple):
    """A port of an open device, with the chosen address."""

    device: str
    gid: Gid
    mtu: int


class QueuePairAddress(NamedTuple):
    """The address of a queue pair."""

    qp_num: int
    psn: int
    """packet sequence number of its first request"""
    gid: IPv6Address
    mtu: int


class ScatterGatherEntry(NamedTuple):
    """Local bytes of one work request."""

    address: int
    length: int
    lkey: int


@functools.cache
def library() -> SimpleNamespace:
    """pyverbs, whatever its version: its classes, `enums` and `barrier`. Raises DeviceUnusable when it is missing."""
    try:
        from pyverbs import addr, cq, device, mr, pd, pyverbs_error, qp, wr
    except ImportError as error:
        raise DeviceUnusable(
            f"pyverbs cannot be imported ({error}): it has to come from the system's rdma-core"
        ) from error
    return SimpleNamespace(
        enums=_module("pyverbs.enums") or _module("pyverbs.libibverbs_enums"),  # moved with rdma-core 59
        barrier=getattr(_module("pyverbs.dma_util"), "udma_from_dev_barrier", lambda: None),
        PyverbsError=pyverbs_error.PyverbsError,
        get_device_list=device.get_device_list,
        Context=device.Context,
        PD=pd.PD,
        MR=mr.MR,
        CQ=cq.CQ,
        CompChannel=cq.CompChannel,
        QP=qp.QP,
        QPAttr=qp.QPAttr,
        QPCap=qp.QPCap,
        QPInitAttr=qp.QPInitAttr,
        AHAttr=addr.AHAttr,
        GID=addr.GID,
        GlobalRoute=addr.GlobalRoute,
        SGE=wr.SGE,
        SendWR=wr.SendWR,
        RecvWR=wr.RecvWR,
    )


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def device_names() -> list[str]:
    """Devices of this machine, sorted. Raises DeviceUnusable without the library."""
    lib = library()
    try:
        return sorted(os.fsdecode(device.name) for device in lib.get_device_list())
    except lib.PyverbsError as error:
        raise DeviceUnusable(
            f"no RDMA device can be used: none can be listed ({error}), as without a driver"
        ) from error


def status_name(status: int) -> str:
    """Name of a completion's status, e.g. REM_ACCESS_ERR."""
    enums = library().enums
    for name in dir(enums):
        if name.startswith("IBV_WC_") and name.endswith("_ERR") and int(getattr(enums, name)) == status:
            return name.removeprefix("IBV_WC_")
    return f"status {status}"
