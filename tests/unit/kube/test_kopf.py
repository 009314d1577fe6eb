"""How kopf watches: what it holds in memory, and what its first lists cause."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import PODS
from ferry_operator.kube.process import watch
from ferry_operator.kube.process.queue import WorkQueue
from ferry_operator.kube.process.watch import JobWatch, JobWatches, settings
from ferry_operator.kube.store import Stores
from tests.unit.kube.test_isolation import until


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
    watching = JobWatches(Stores(), WorkQueue())
    watching.follow(frozenset(wanted))
    for part in watching._parts:
        part.join(10)
    assert sorted(name for _, some in begun for name in some) == wanted
    assert max(len(some) for _, some in begun) <= 5
    times = [at for at, _ in begun]
    assert all(later - earlier > 0.2 for earlier, later in itertools.pairwise(times))


def waits(begun: list[list[str]], **endings: str) -> Callable[..., Any]:
    """An instance of kopf that notes its namespaces, and watches until it is stopped or fails; `endings`: how it ends."""

    async def operator(namespaces: Sequence[str], stop_flag: asyncio.Event, **_: Any) -> None:
        begun.append([*namespaces])
        if endings.pop(namespaces[0], None):
            raise ValueError("an object that cannot be parsed")
        await stop_flag.wait()

    return operator


def settled(watching: JobWatches, begun: list[list[str]], count: int) -> None:
    until(lambda: len(begun) >= count and all(part._stopped is not None for part in watching._parts))
    assert len(begun) == count and all(part.alive for part in watching._parts)


def test_another_namespace_begins_no_watch_of_the_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that takes away the rights of the operator in its namespace, and gives them back, deafens no other tenant."""
    begun: list[list[str]] = []
    monkeypatch.setattr(watch.kopf, "operator", waits(begun))
    monkeypatch.setattr(watch, "APART_SECONDS", 0.01)
    watching, every = JobWatches(Stores(), WorkQueue()), frozenset(f"n{number:02}" for number in range(12))
    for namespaces, count in ((every, 3), (every, 3), (every - {"n01"}, 4), (every, 5)):
        watching.follow(namespaces)
        settled(watching, begun, count)
        assert watching.watched == namespaces
    assert begun[3:] == [["n00", "n02", "n03", "n04"], ["n01", "n10", "n11"]]
    watching.close()
    assert not any(part.alive for part in watching._parts)


def test_namespaces_of_a_watch_that_has_failed_are_watched_anew_and_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(watch.kopf, "operator", waits(begun, n05="fails"))
    monkeypatch.setattr(watch, "APART_SECONDS", 0.01)
    watching, every = JobWatches(Stores(), WorkQueue()), frozenset(f"n{number:02}" for number in range(10))
    watching.follow(every)
    until(lambda: "the watches of n05, n06, n07, n08, n09 ended" in caplog.text)
    until(lambda: not all(part.alive for part in watching._parts))
    watching.follow(every)
    settled(watching, begun, 7)
    assert sorted(begun[2:]) == [["n05"], ["n06"], ["n07"], ["n08"], ["n09"]], "one of them is the reason"
    watching.close()


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
