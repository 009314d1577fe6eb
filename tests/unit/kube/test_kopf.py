"""How kopf watches: what it holds in memory, and what its first lists cause."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import PODS
from ferry_operator.kube.process import watch
from ferry_operator.kube.process.queue import WorkQueue
from ferry_operator.kube.process.watch import JobWatch, settings
from ferry_operator.kube.store import Stores


def test_kopf_lists_in_parts_and_soon_drops_a_document() -> None:
    """The default is one answer with all objects, and five seconds for each document: many pods would be held at a time."""
    options = settings()
    assert options.watching.chunk_size is not None and options.watching.chunk_size <= 200
    assert options.queueing.idle_timeout <= 0.5


def test_watches_of_many_namespaces_begin_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[float, tuple[str, ...]]] = []

    async def operator(namespaces: Sequence[str], **_: Any) -> None:
        begun.append((time.monotonic(), tuple(namespaces)))

    monkeypatch.setattr(watch.kopf, "operator", operator)
    wanted = [f"n{number:02}" for number in range(25)]
    watching = JobWatch(wanted, Stores(), WorkQueue())
    watching.start()
    for thread in watching._threads:
        thread.join(10)
    assert sorted(name for _, some in begun for name in some) == wanted
    assert max(len(some) for _, some in begun) <= 5
    times = [at for at, _ in begun]
    assert all(later - earlier > 0.2 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize(("kind", "version", "queued"), [(None, "7", 0), (None, "8", 1), ("MODIFIED", "7", 1)])
def test_the_first_list_of_a_watch_queues_nothing_that_the_store_has(
    kind: str | None, version: str, queued: int
) -> None:
    stores, queue = Stores(), WorkQueue()
    stores.of("n").put(PODS, pod("7"))
    registry = JobWatch(["n"], stores, queue)._registry()
    (handler,) = [h for h in registry._watching.get_all_handlers() if h.fn.__name__ == "pod"]
    asyncio.run(handler.fn(event={"type": kind, "object": pod(version)}))
    assert queue.depth() == queued


def pod(version: str) -> dict[str, Any]:
    labels = {names.MANAGED: names.MANAGER, names.JOB: "a"}
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": version, "labels": labels}}
