"""What the coordinator's loop is given, what it sends, and what it says when it stops."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.errors import Bug, Exhausted, Superseded
from ferry.contract.names import InstanceId, Term, worker_of
from ferry.contract.programs import first_program
from ferry.contract.routing import Group, Table, Version
from ferry.coordinator import loop
from ferry.driver.coordinator_orders import next_order
from ferry.driver.errors import Stopped
from ferry.protocol import coordinator as core
from ferry.protocol.io import Tick
from ferry.protocol.story import Story


def fragment_of_a_loop(tmp_path: Any, step: Any) -> loop.Loop:
    one = loop.Loop.__new__(loop.Loop)
    one._inbox, one.orders = queue.SimpleQueue(), queue.SimpleQueue()
    one.ending = threading.Event()
    one.settings = SimpleNamespace(directory=str(tmp_path))  # type: ignore[assignment]
    one.machine = SimpleNamespace(step=step, start=list, story=Story())  # type: ignore[assignment]
    one.move_metrics = SimpleNamespace(damages=tuple)  # type: ignore[assignment]
    return one


def test_a_broken_invariant_is_logged_with_what_came_before(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = fragment_of_a_loop(tmp_path, None)
    settings: Any = SimpleNamespace(workers=1, instances_per_worker=1, replicas=0, virtual_nodes=2)
    one.machine = core.Coordinator(core.CoordinatorSettings(), loop.initial_table(settings), None)
    monkeypatch.setattr(one, "_journal", SimpleNamespace(write=lambda effect: None), raising=False)
    one.post(core.JournalReachable(False))
    one.post(m.Ask(2))
    one._run()
    assert one.orders.get_nowait() == core.Halt("bug", "Bug: the coordinator cannot take Ask(generation=2)")
    last = [caplog.text.count(word) for word in ("Journal(table=", "JournalReachable(up=False)", "Ask(g2)")]
    assert last == [1, 1, 1], "what it has done and was told, once"


@pytest.mark.parametrize("error", [Bug("two leaders"), OSError(28, "No space left on device")])
def test_an_effect_that_fails_is_logged_with_what_came_before(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def step(event: Any) -> list[core.Effect]:
        group = Group(Term(1, 0), (InstanceId("0.0"),))
        return [core.Journal(Table(Version(1, 0), (group,)), None)]

    def write(effect: core.Journal) -> None:
        raise error

    one = fragment_of_a_loop(tmp_path, step)
    one._journal = SimpleNamespace(write=write)  # type: ignore[assignment]
    one._run()
    assert one.orders.get_nowait() == core.Halt("bug", f"{type(error).__name__}: {error}")
    assert "Journal(table=" in caplog.text


def test_it_is_known_for_how_long_the_loop_has_stood(tmp_path: Any) -> None:
    stood: list[float] = []

    def step(event: Any) -> list[core.Effect]:
        if isinstance(event, m.Ask):
            raise Bug("the end")
        if isinstance(event, core.EpochBegun):
            stood.append(one.seconds_since_pass())
        return []

    one = fragment_of_a_loop(tmp_path, step)
    one._round_at = time.monotonic() - 100
    for event in (core.EpochBegun(5), core.EpochBegun(6), m.Ask(2)):
        one.post(event)
    one._run()
    before, after = stood
    assert before >= 100 and after < 50, "an event that was handled is a round"


def test_a_halt_is_logged_with_what_came_before(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = fragment_of_a_loop(tmp_path, None)
    one.machine.story.add_event(1, core.JournalReachable(False))
    assert core.Halt("unavailable", "no copy").text == "unavailable: no copy"
    assert core.Halt("user-code", "user code: x").text == "user code: x", "once"
    one._perform([core.Halt("unavailable", "no copy")])
    assert one.orders.get_nowait() == core.Halt("unavailable", "no copy")
    assert "JournalReachable(up=False)" in caplog.text


def test_copies_that_were_given_up_as_damaged_are_the_cause_of_a_halt(tmp_path: Any) -> None:
    one = fragment_of_a_loop(tmp_path, None)
    damage = SimpleNamespace(text="0.0: inventory: it is empty; it began anew, and its copies are made from others")
    one.move_metrics = SimpleNamespace(damages=lambda: (damage,))  # type: ignore[assignment]
    one._perform([core.Halt("unavailable", "no copy"), core.Halt("bug", "x")])
    assert one.orders.get_nowait() == core.Halt("unavailable", "0.0: inventory: it is empty: no copy")
    assert one.orders.get_nowait() == core.Halt("bug", "x")


def test_the_machine_gets_the_bounds_of_the_run() -> None:
    settings: Any = SimpleNamespace(
        timeout_ms=2000, return_deadline_ms=50_000,
        workers=2, instances_per_worker=1, replicas=1, virtual_nodes=4, run="r", secret="s",
    )  # fmt: skip
    kept: Any = SimpleNamespace(read=lambda: None)
    one = loop.Loop(settings, kept, kept, 2, lambda epoch, stage: None, ended=7)
    one._endpoint.close()
    assert one.machine.driver.settings == core.CoordinatorSettings(
        silence_ms=8_000, grace_ms=200, return_ms=50_000, ended=7
    )
    assert one.machine.table.programs == first_program(2)


def test_the_loop_goes_round_while_what_is_outside_is_put_back(tmp_path: Any) -> None:
    """A sink that is away for long must not make it stand; and nothing goes on before all is back."""
    heard: list[core.Event] = []
    away = threading.Event()

    def step(event: Any) -> list[core.Effect]:
        heard.append(event)
        if isinstance(event, core.JournalReachable):
            away.set()
        if isinstance(event, core.Journaled):
            raise Bug("the end")
        return []

    one = fragment_of_a_loop(tmp_path, step)
    journaling = SimpleNamespace(table=SimpleNamespace(restoring=True))
    one.machine = SimpleNamespace(  # type: ignore[assignment]
        step=step, start=list, story=Story(), phase=core.Phase.JOURNAL, journaling=journaling
    )
    one._is_rewound, one._rewind = False, lambda loop: away.wait(10)
    claimed, later = core.Journaled(Version(3, 0)), core.JournalReachable(True)
    one.post(claimed)
    one.post(later)
    one._run()
    assert [event for event in heard if not isinstance(event, Tick)] == [later, claimed]


@pytest.mark.parametrize(
    ("error", "kind"), [(Superseded("by 9"), "refused"), (Exhausted("disk"), "failed"), (OSError("disk"), "bug")]
)
def test_what_cannot_be_put_back_ends_the_job(tmp_path: Any, error: Exception, kind: str) -> None:
    one = fragment_of_a_loop(tmp_path, None)

    def rewind(of: loop.Loop) -> bool:
        raise error

    one._rewind = rewind
    one._rewind_sinks(core.Journaled(Version(3, 0)))
    order = one.orders.get_nowait()
    assert isinstance(order, core.Halt) and order.kind == kind and one.ending.is_set() and one._inbox.empty()


def test_whoever_waits_for_an_order_hears_of_a_stop(tmp_path: Any) -> None:
    one = fragment_of_a_loop(tmp_path, None)
    one._rewind = lambda loop: False
    one._rewind_sinks(core.Journaled(Version(3, 0)))
    assert one._inbox.empty() and one.orders.empty(), "the job ends as it is"
    one.stop()
    with pytest.raises(Stopped):
        next_order(one)


def test_what_is_sent_goes_through_the_multicast() -> None:
    one: Any = loop.Loop.__new__(loop.Loop)
    posted: list[Any] = []
    one._endpoint = SimpleNamespace(channel=lambda peer: {"0.0": "a channel"}.get(peer))
    one._multicast = SimpleNamespace(post=lambda *about: posted.append(about))
    one.machine = SimpleNamespace(generation=3)
    for to in ("0.0", "1.0"):
        one._send(core.Send(InstanceId(to), m.Ask(3)))
    assert posted == [("a channel", "0.0", 3, m.Ask(3))], "to who is there"


@pytest.mark.parametrize(("workers", "per_worker", "replicas"), [(1, 2, 1), (2, 1, 1), (6, 1, 1), (6, 2, 2), (8, 1, 3)])
def test_the_first_table_is_even_apart_and_has_few_chains(workers: int, per_worker: int, replicas: int) -> None:
    vnodes = 16 * workers * per_worker
    settings: Any = SimpleNamespace(
        workers=workers, instances_per_worker=per_worker, replicas=replicas, virtual_nodes=vnodes
    )
    groups = [group.in_sync for group in loop.initial_table(settings).groups]
    copies = min(replicas, workers - 1)
    assert all(len({worker_of(i) for i in members}) == len(members) == copies + 1 for members in groups)
    held = Counter(i for members in groups for i in members)
    assert set(held.values()) == {16 * (copies + 1)} and len(held) == workers * per_worker
    chains = Counter(members[0] for members in {*groups})
    several = min(limits.SETS_OF_REPLICAS, max(workers - 1, 1))
    assert all(min(2, several) <= n <= several for n in chains.values())
