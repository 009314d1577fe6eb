"""Rings in huge pages: blocks are given out once, returned, and replaced by small pages when there are no more."""

from __future__ import annotations

import ctypes
import errno
import itertools
import logging
import mmap
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.channel.rdma.memory import PAGE_BYTES, RingShape
from ferry.channel.rdma.pages import HUGE_BYTES, HugePages, map_huge
from ferry.channel.rdma.queue_pair import MemoryRegion
from ferry.contract.errors import Exhausted

NORESERVE = 0x4000
RESERVED = Path("/proc/sys/vm/nr_hugepages")


def small(size: int) -> mmap.mmap:
    """A mapping of small pages, in place of huge ones."""
    return mmap.mmap(-1, size)


class Verbs(SimpleNamespace):
    """As much of the library as a region needs."""

    class PyverbsError(Exception):
        pass

    enums = SimpleNamespace(IBV_ACCESS_LOCAL_WRITE=1, IBV_ACCESS_REMOTE_WRITE=2)
    keys = itertools.count(1)
    refuses = False

    def MR(self, domain: Any, size: int, access: int, address: int) -> SimpleNamespace:
        if self.refuses:
            raise self.PyverbsError("Cannot allocate memory")
        return SimpleNamespace(lkey=next(self.keys), rkey=next(self.keys), close=lambda: None)


def region(pages: HugePages, size: int, verbs: Verbs | None = None) -> MemoryRegion:
    return MemoryRegion(verbs or Verbs(), None, size, True, None, pages)


def test_regions_share_a_huge_page_and_return_their_blocks() -> None:
    pages = HugePages(HUGE_BYTES, small)
    ring = RingShape().ring_bytes
    regions = [region(pages, size) for size in (ring, PAGE_BYTES, ring, 8)]
    assert pages.used == 2 * ring + 2 * PAGE_BYTES
    addresses = sorted((r.address, r.address + r.size) for r in regions)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(addresses))
    regions[0].view[:4] = b"ring"
    first = regions[0].address
    for one in regions:
        one.close()
    assert pages.used == 0
    again = region(pages, HUGE_BYTES)
    assert (again.address, bytes(again.view[:4])) == (first, bytes(4)), "as one block, and without old bytes"
    again.close()
    pages.close()


def test_blocks_never_overlap() -> None:
    chance, pages, held = random.Random(1), HugePages(4 * HUGE_BYTES, small), list[tuple[MemoryRegion, bytes]]()
    for number in range(3000):
        if held and chance.random() < 0.5:
            one, mark = held.pop(chance.randrange(len(held)))
            assert bytes(one.view) == mark * one.size
            one.close()
        else:
            one, mark = region(pages, chance.choice((8, PAGE_BYTES, 100_000, HUGE_BYTES))), bytes([number % 251])
            one.view[:] = mark * one.size
            held.append((one, mark))
    assert all(bytes(one.view) == mark * one.size for one, mark in held)


def test_a_block_with_a_view_is_not_given_out_again() -> None:
    pages = HugePages(HUGE_BYTES, small)
    one = region(pages, HUGE_BYTES)
    view = one.view[:8]
    one.close()
    assert pages.used == HUGE_BYTES and pages.take(8) is None, "who has the view may write"
    view.release()
    assert pages.used == 0


@pytest.mark.parametrize(("maximum", "reason"), [(HUGE_BYTES, "more than the"), (8 * HUGE_BYTES, "Cannot allocate")])
def test_without_huge_pages_regions_are_small_and_the_log_says_why_once(
    maximum: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    mapped = itertools.count()

    def few(size: int) -> mmap.mmap:
        if next(mapped) >= 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return small(size)

    pages = HugePages(maximum, few)
    with caplog.at_level(logging.WARNING):
        regions = [region(pages, HUGE_BYTES) for _ in range(4)]
    assert pages.used == HUGE_BYTES and next(mapped) <= 2, "the system is asked no more"
    (line,) = caplog.messages
    assert reason in line and "pages of 4096 bytes" in line and reason in pages.refusal
    for one in regions:
        one.view[:] = b"x" * one.size
        one.close()


def test_a_job_without_huge_pages_asks_for_none_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one = region(HugePages(), PAGE_BYTES)
    one.view[:] = b"y" * PAGE_BYTES
    one.close()
    assert caplog.messages == [] and HugePages().refusal == ""


def test_a_region_that_cannot_be_pinned_returns_its_block() -> None:
    pages, verbs = HugePages(HUGE_BYTES, small), Verbs(refuses=True)
    with pytest.raises(Exhausted, match="cannot be pinned"):
        region(pages, PAGE_BYTES, verbs)
    assert pages.used == 0


@contextmanager
def reserved(count: int) -> Iterator[None]:
    """Huge pages of this machine."""
    before = RESERVED.read_text()
    try:
        RESERVED.write_text(str(count))
    except OSError:
        pytest.skip("only root reserves huge pages")
    try:
        if int(RESERVED.read_text()) < count:
            pytest.skip("the machine has no room for huge pages")
        yield
    finally:
        RESERVED.write_text(before)


def free() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["HugePages_Free"])


@pytest.mark.skipif(not RESERVED.exists(), reason="the kernel has no huge pages")
def test_the_pages_of_the_kernel_are_huge_and_run_out_without_a_signal() -> None:
    with reserved(2):
        before = free()
        pages = HugePages(64 * HUGE_BYTES)
        regions = [region(pages, HUGE_BYTES) for _ in range(before)]
        assert free() == 0 and pages.used == before * HUGE_BYTES, "populated, not promised"
        regions.append(region(pages, HUGE_BYTES))
        assert pages.used == before * HUGE_BYTES
        for one in regions:
            ctypes.memset(one.address, 1, one.size)
            one.close()
        pages.close()
        assert free() == before


@pytest.mark.skipif(not RESERVED.exists(), reason="the kernel has no huge pages")
def test_pages_that_the_kernel_does_not_have_are_an_error_and_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose limit counts when a page is touched: the mapping alone succeeds, without a reservation."""
    monkeypatch.setattr("ferry.channel.rdma.pages._HUGETLB", 0x40000 | NORESERVE)
    count = free() + 1
    with pytest.raises(OSError):
        map_huge(count * HUGE_BYTES)
