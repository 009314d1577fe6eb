"""What an epoch costs in messages, bytes, chains, files and collections: counted, for a creep that no clock would notice.

A number that has to grow here is a decision: say in the commit what it buys.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.parts.scale.driver import Driver
from bench.parts.scale.instance import NAME, Member
from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.names import Attempt, Fragment, InstanceId, Step
from ferry.contract.routing import Version
from ferry.contract.status import Status
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import initial_table
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.coordinator.status import status_of
from ferry.protocol import instance as i
from ferry.protocol.io import Tick
from tests.unit.protocol.table_top import Top
from tests.unit.sidecar.leaders import OPERATORS, Cluster, fragments, opened

# ---- the driver
DRIVER_CALLS, MEMBER_CALLS = 160, 80
"""Of functions, for each worker: so much of Python an epoch is, with what the stand-ins do."""

SIZES = [(10, 64), (100, 1024), (400, 8192), (1000, 32768)]


@pytest.mark.parametrize(("workers", "vnodes"), SIZES)
def test_an_epoch_grows_with_the_workers_and_with_nothing_else(workers: int, vnodes: int) -> None:
    driver = Driver(workers, vnodes, NAME)
    driver.tell(Tick(0))
    member = Member(driver)
    driver.epoch(0)
    member.measure()
    _, sent, messages = driver.measure(lambda: driver.epoch(1))
    assert messages == 4 * workers, "Prepare and Commit; Prepared and Committed"
    # Who helps is a bit for each worker, for a member waits for all of them; of fragments each gets its own.
    assert sent / workers < 100 + workers / 8
    _, sent, messages = member.measure()
    assert member.machine.saved.committed == driver.machine.commits.committed
    # Every helper tells every leader that its part is there, and what: whoever computes has to hear from all of them.
    chains = min(limits.SETS_OF_REPLICAS, vnodes // workers)
    assert member.logged == 2 * chains, "its own, and those that it copies"
    assert messages <= 2 * workers + 2 * chains + 4, "Partials both ways; deltas; Prepare, Prepared, Commit, Committed"
    assert sent < 100 + 20 * workers + chains * (60 + 3 * vnodes // workers)


def calls_of(act: Callable[[], Any]) -> int:
    """How many functions are called, and generators asked: steps of loops that no clock would notice."""
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(("workers", "vnodes"), [(100, 1024), (1000, 1024)])
def test_no_message_of_an_epoch_looks_at_all_workers(workers: int, vnodes: int) -> None:
    """Else an epoch would take time by the square of their number, in the driver or in each of the instances."""
    driver = Driver(workers, vnodes, NAME)
    driver.tell(Tick(0))
    member = Member(driver)
    driver.epoch(0)
    driver.epoch(1)
    member.measure()
    assert calls_of(lambda: driver.epoch(2)) < DRIVER_CALLS * workers
    assert calls_of(member.measure) < MEMBER_CALLS * workers


def test_an_epoch_that_changes_no_group_looks_at_none() -> None:
    """The table of groups is judged once; each epoch of the driver looked at all virtual nodes."""
    calls = []
    for vnodes in (1024, 32768):
        driver = Driver(100, vnodes)
        driver.tell(Tick(0))
        driver.epoch(0)
        driver.epoch(1)
        calls.append(calls_of(partial(driver.epoch, 2)))
    assert calls[1] < 1.2 * calls[0]


STATUS_CALLS, STATUS_CALLS_EACH = 450, 6
"""Of a driver, and for each worker, in a status whose reader has the long lists; it is asked ten times a second."""


@pytest.mark.parametrize(("workers", "vnodes"), SIZES)
def test_a_status_is_as_long_as_what_changed(workers: int, vnodes: int, tmp_path: Path) -> None:
    driver, metrics, moves = Driver(workers, vnodes, NAME), DriverMetrics("job", str(tmp_path)), MoveMetrics()
    driver.tell(Tick(0))
    whole = status_of(metrics, driver.machine, moves)
    assert len(whole.groups) == len(whole.load.vnodes) == vnodes
    answers = list[dict[str, Any]]()

    def look() -> None:
        answers.append(status_of(metrics, driver.machine, moves, known=whole.lists).to_wire())

    calls = calls_of(look)
    while answers[-1]["load"]["vnodes"]:  # the loads are those of a second, which has just ended
        whole = status_of(metrics, driver.machine, moves)
        calls = calls_of(look)
    assert calls < STATUS_CALLS + STATUS_CALLS_EACH * workers
    wire = json.dumps(answers[-1])
    assert len(wire) < 2_500 + 12 * workers, "the names of the living instances are in it"
    brief = Status.from_wire(json.loads(wire))
    completed = brief.completed(whole)
    assert (completed.groups, completed.load.vnodes) == (whole.groups, whole.load.vnodes)


# ---- the protocol
def story(workers: int, replicas: int, vnodes: int = 64) -> list[Any]:
    """All that is done in one epoch, by a coordinator and real instances without data."""
    settings: Any = SimpleNamespace(workers=workers, instances_per_worker=1, replicas=replicas, virtual_nodes=vnodes)
    groups = [group.in_sync for group in initial_table(settings).groups]
    top = Top(groups, tuple(InstanceId(f"{w}.0") for w in range(workers)))
    top.epoch(0)
    top.done.clear()
    top.epoch(1)
    return top.done


@pytest.mark.parametrize(
    ("workers", "replicas", "chains"),
    [(2, 0, 1), (2, 1, 1), (3, 1, 2), (6, 1, 3), (6, 2, 3), (12, 2, 3)],
)
def test_a_leader_logs_and_sends_a_few_chains_whatever_the_virtual_nodes(
    workers: int, replicas: int, chains: int
) -> None:
    done = story(workers, replicas)
    logged = Counter(who for who, effect in pairs(done) if isinstance(effect, i.LogDelta))
    assert {*logged.values()} == {chains * (replicas + 1)}, "its own, and those that it copies"
    assert logged == Counter(
        who for who, effect in pairs(story(workers, replicas, 1024)) if isinstance(effect, i.LogDelta)
    )
    saved = Counter(who for who, effect in pairs(done) if isinstance(effect, i.Save))
    assert max(saved.values()) <= 4, "what was released, what it is about to apply, what it has applied"
    told = Counter(type(message).__name__ for who, message in pairs(done) if isinstance(message, m.Prepare | m.Commit))
    assert told == {"Prepare": workers, "Commit": workers}


def pairs(done: list[Any]) -> Iterator[tuple[InstanceId, Any]]:
    """Who got or did what."""
    return (one for one in done if isinstance(one, tuple))


# ---- an instance
SHARE_CALLS, PART_CALLS = 16, 4
"""For each leader that a helper has rows for; for each helper that a leader hears."""


@pytest.mark.parametrize(("workers", "vnodes"), [(10, 64), (100, 8192), (1000, 32768)])
def test_data_is_cut_and_merged_with_few_calls_for_each_peer(workers: int, vnodes: int, tmp_path: Path) -> None:
    """With 4,000 records. A helper gathers the rows of all leaders once, and a leader counts the records of all helpers once."""
    sent = list[Any]()
    data = opened(tmp_path, 0, vnodes)
    data.attempt._send = lambda send, body: sent.append((send.to, body))
    names = [InstanceId(f"{worker}.0") for worker in range(workers)]
    led = [tuple(range(number, vnodes, workers)) for number in range(workers)]
    step = Step(0, 0)
    prepare: Any = SimpleNamespace(step=step, attempt=Attempt(1, 1), low=0, high=0, is_void=False)
    fragment = Fragment(step, 1, 1, 0)
    data.staging.add(fragment, fragments(OPERATORS[0], [(7 * k, 5, k) for k in range(4000)], 0))
    contribute = i.Contribute(prepare, (fragment,), tuple(zip(names, led, strict=True)))
    compute = i.Compute(prepare, tuple(names), (((names[0],), led[0]),))
    for _ in range(2):  # the first time loads kernels
        sent.clear()
        calls = [calls_of(lambda: data.attempt.contribute(contribute))]
        assert [to for to, _ in sent] == names
        own = dict(sent)[names[0]]
        for helper in names:
            data.attempt.receive_partials(m.Partials(step, prepare.attempt, helper), own)
        calls.append(calls_of(lambda: sent.append(data.attempt.compute(compute))))
    assert calls[0] < 400 + SHARE_CALLS * workers and calls[1] < 800 + PART_CALLS * workers
    (chain,) = sent[-1].chains
    assert chain[:2] == ((names[0],), led[0])
    delta = m.Delta(step, prepare.attempt, Version(1, 0), names[0], *chain)
    rows = data.attempt.delta_batch(delta)
    assert rows.column("n").to_pylist() == [workers] * rows.num_rows and rows.num_rows > 0


def _epochs(path: Path) -> tuple[Counter[str], int]:
    """Of ten epochs, in a process of its own: files opened to be written, by directory, and objects in cycles."""
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[1] and set("wax+") & set(str(arguments[1])):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    cluster = Cluster(path, 1, 8)
    cluster.lead([0] * 8)
    cluster.all[0].archive = None
    rows = [(k, 5, k) for k in range(13)]

    def run(many: int) -> int:
        """Runs so many. Objects of this process that only a collection could free since."""
        gc.collect()
        gc.disable()
        opened.clear()
        for _ in range(many):
            cluster.run(rows, 3)
            cluster.final()
        return gc.collect()

    run(3)
    # What a first time leaves behind comes now and then, what an epoch leaves comes each time.
    cycles = min(run(10) for _ in range(3))
    return Counter(Path(name).parent.name for name in opened), cycles


def test_an_epoch_opens_few_files_and_leaves_nothing_to_collect(tmp_path: Path) -> None:
    """Five operators, of which each writes its log (the commit record is always open); nothing is a cycle of references.

    In this process threads that other tests left behind would be counted, too.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        names, cycles = alone.submit(_epochs, tmp_path).result()
    assert names == {"log": 10 * len(OPERATORS)}
    assert cycles <= 10, "one in an epoch at most"
