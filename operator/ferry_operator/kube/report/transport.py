"""The transport of a job's links and their pinned memory, for the status and events. Pure.

The sidecars report whether a link is RDMA; this file must never guess.
"""

from __future__ import annotations

from ferry.contract import rings
from ferry.contract.status import Links
from ferry_operator.job.models import Spec
from ferry_operator.job.models_kubernetes import HUGE_PAGE
from ferry_operator.job.status import REASON_MAX, TransportStatus


def transport_status(links: Links, spec: Spec) -> TransportStatus | None:
    """The transport in the status; None before the first link of a job without RDMA."""
    memory = pinned(spec) or in_small_pages(spec) or not_huge(links)
    if not links.kind and not links.reason and memory is None:
        return None
    kind = links.kind or ("tcp" if links.reason else "none")
    return TransportStatus.model_validate(
        {"kind": kind, "reason": links.reason[:REASON_MAX] or None, "memory": memory and memory[:REASON_MAX]},
        strict=False,
    )


def pinned(spec: Spec) -> str | None:
    """The remedy when the links of an instance need more pinned memory than the job or the node default allows; else None.

    The links go to all other instances, and to the instances of a surge worker.
    """
    rdma = spec.transport.rdma
    if rdma.mode == "off":
        return None
    links = (spec.workers + 1) * spec.instances_per_worker - 1
    allowed, lend = rdma.pinned.bytes, rdma.lend.bytes
    each = rings.link_bytes(rdma.slots, rdma.slot_bytes, lend)
    problem = rings.pin_error(links, rdma.slots, rdma.slot_bytes, rings.LOCKED_BYTES, lend=lend)
    if links * each <= allowed:
        return problem and f"the nodes need a higher limit of locked memory than the default: {problem}"
    rest = "the others are TCP" if spec.transport.mode == "auto" else "the others cannot open"
    text = (
        f"transport.rdma.pinned allows {allowed} bytes, which is {allowed // each} of the {links} links that an instance "
        f"may have, {each} bytes each; {rest}: {rings.suggest_ring(links, rdma.slots, rdma.slot_bytes, allowed, lend)}, or "
        f"allow {links * each}"
    )
    return f"{text}. For the whole amount: {problem}" if problem else text


def in_small_pages(spec: Spec) -> str | None:
    """How many huge pages the rings of a worker need, when the sidecar requests fewer; else None."""
    rdma, wanted = spec.transport.rdma, spec.kubernetes.sidecar.huge_pages.bytes
    if rdma.mode == "off" or not wanted:
        return None
    links = (spec.workers + 1) * spec.instances_per_worker - 1
    each = links * rings.link_bytes(rdma.slots, rdma.slot_bytes)
    needed = spec.instances_per_worker * -(-each // HUGE_PAGE) * HUGE_PAGE
    if needed <= wanted:
        return None
    return (
        f"the rings of a worker need {needed} bytes of huge pages for {links} links of each instance, and the sidecar "
        f"requests {wanted}: other rings are in small pages; set kubernetes.sidecar.hugePages to {needed >> 20}Mi"
    )


def not_huge(links: Links) -> str | None:
    """Why rings of a running worker are in small pages; None: no worker reports that."""
    if not links.small_pages:
        return None
    return f"rings of links are in small pages ({links.small_pages}): the nodes of the workers need free huge pages of 2 MiB"
