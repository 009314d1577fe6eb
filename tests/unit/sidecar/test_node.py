"""What the loop of an instance takes, and what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.channel.base import Lane, Message
from ferry.contract import messages as m
from ferry.contract.catalogue import first_catalogue
from ferry.contract.errors import Exhausted, Unreachable
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.contract.run_directory import SYNCING
from ferry.protocol import instance as core
from ferry.sidecar import ALIVE, node
from ferry.sidecar.data import BeginsAnew
from ferry.sidecar.delay_control import DelayControl
from ferry.sidecar.inbox import Inbox
from ferry.sidecar.programs import ProgramLoader
from ferry.sidecar.signs import Computing, EndedLife, Signs

ME = InstanceId("0.0")


@pytest.mark.parametrize(
    "error", [Exhausted("the disk is full"), OSError(28, "No space left on device"), KeyError("x")]
)
def test_whatever_ends_an_instance_is_told_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    sent: list[Any] = []
    one = node.Node.__new__(node.Node)
    one.me, one._machine = ME, core.Instance(ME, core.InstanceRecord())
    one._machine.story.add_event(7, m.Ask(3))

    def loop() -> None:
        raise error

    monkeypatch.setattr(node, "LAST_WORDS_SECONDS", 0.0)
    monkeypatch.setattr(one, "_loop", loop)
    monkeypatch.setattr(one, "_send", lambda send, body: sent.append(send))
    assert one._live() == 3
    assert sent == [core.Send(core.DRIVER, m.Failed(ME, f"{type(error).__name__}: {error}"))]
    assert "7 Ask(g3)" in caplog.text, "the story is logged with the error"


def test_a_prepare_that_a_later_one_outdoes_is_not_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one, taken = node.Node.__new__(node.Node), []
    one._inbox = Inbox()
    one._newest = Attempt(0, 0)
    monkeypatch.setattr(one, "_data", SimpleNamespace(receive=lambda event, body: taken.append(event)), raising=False)
    monkeypatch.setattr(one, "_machine", SimpleNamespace(step=lambda event: []), raising=False)
    prepares = [m.Prepare(Step(1, 0), Attempt(2, n), Version(2, 1), (), 0, 0) for n in (1, 2, 3)]
    for prepare in (prepares[0], prepares[2], prepares[1]):
        one._on_message(Message("driver", Lane.DELTA, m.CODES[m.Prepare], 2, m.encode(prepare), b""))
    zombie = m.Prepare(Step(1, 0), Attempt(1, 9), Version(1, 1), (), 0, 0)
    one._on_message(Message("driver", Lane.DELTA, m.CODES[m.Prepare], 1, m.encode(zombie), b""))
    while (item := one._inbox.take(0)) is not None:
        one._handle(item.event, item.body)
    assert taken == [prepares[2], zombie], "an older driver has to be told that it is superseded"


@pytest.mark.parametrize(
    ("published", "ends"), [("the same", False), ("mended", True), ("deployed", False), (None, False), ("away", False)]
)
def test_an_instance_begins_anew_when_the_driver_has_another_program(
    monkeypatch: pytest.MonkeyPatch, published: str | None, ends: bool
) -> None:
    """All state is kept; where nobody can be asked it goes on."""
    one, taken = node.Node.__new__(node.Node), []

    def catalogue() -> Any:
        if published == "away":
            raise Unreachable("Redis is away")
        numbered = {"the same": ("same",), "mended": ("mended",), "deployed": ("same", "another")}.get(str(published))
        if numbered is None:
            return None
        return SimpleNamespace(programs=[SimpleNamespace(number=n, descriptors=d) for n, d in enumerate(numbered, 1)])

    one.me = ME
    registry: Any = SimpleNamespace(catalogue=catalogue)
    data: Any = SimpleNamespace(receive=lambda event, body: None, programs={1: "same"})
    monkeypatch.setattr(one, "_data", data, raising=False)
    nothing: Any = None
    programs = ProgramLoader(ME, nothing, nothing, registry, data, nothing)
    monkeypatch.setattr(one, "_programs", programs, raising=False)
    machine = SimpleNamespace(step=lambda event: taken.append(event) or [], saved=core.InstanceRecord(generation=3))
    monkeypatch.setattr(one, "_machine", machine, raising=False)
    one._handle(m.Ask(3), None)
    if ends:
        with pytest.raises(BeginsAnew, match="the program has changed"):
            one._handle(m.Ask(4), None)
    else:
        one._handle(m.Ask(4), None)
    assert taken == [m.Ask(3)] + [m.Ask(4)] * (not ends)


def test_an_instance_whose_files_are_damaged_says_so_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []

    def damaged(*_: Any) -> None:
        raise BeginsAnew("0.0: its state is damaged")

    monkeypatch.setattr("ferry.sidecar.node.signal.signal", lambda *_: None)
    monkeypatch.setattr("ferry.sidecar.node.Data", damaged)
    monkeypatch.setattr("ferry.sidecar.node.tell", told.append)
    one: Any = node.Node.__new__(node.Node)
    one._wait_for_catalogue = lambda: first_catalogue([])
    monkeypatch.setattr("ferry.sidecar.node.load_classes", lambda settings, descriptors: None)
    one._chosen, one.settings, one.me, one.dir, one._signs = SimpleNamespace(lend_bytes=0), None, "0.0", None, None
    assert one.run() == 1 and str(told[0]) == "0.0: its state is damaged"


@pytest.mark.parametrize(("users", "code", "how"), [(True, -11, "SIGSEGV"), (True, 3, "exit code 3"), (False, -11, "")])
def test_a_life_that_died_in_the_users_code_is_told_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, users: bool, code: int, how: str
) -> None:
    one, sent = node.Node.__new__(node.Node), []
    commit_id = CommitId(Step(14, 2), Attempt(3, 4))
    one.me, one._end_before = ME, EndedLife(code, Computing(commit_id, "operator 'w' in epoch 14", users))
    monkeypatch.setattr(one, "_programs", SimpleNamespace(require_same_code=lambda: None), raising=False)
    monkeypatch.setattr(one, "_data", SimpleNamespace(receive=lambda event, body: None), raising=False)
    machine = SimpleNamespace(step=lambda event: [], saved=core.InstanceRecord())
    monkeypatch.setattr(one, "_machine", machine, raising=False)
    monkeypatch.setattr(one, "_send", lambda send, body: sent.append(send.message))
    for generation in (4, 5):
        one._handle(m.Ask(generation), None)
    text = f"user code: it ended the process of instance 0.0 ({how}), operator 'w' in epoch 14"
    assert sent == [m.CodeFailed(ME, *commit_id, text)] * users


def test_a_loop_without_messages_works_on_its_files(tmp_path: Path) -> None:
    """And rests as long as it worked."""
    one, worked = node.Node.__new__(node.Node), list[float]()
    one._inbox, one.dir, one._delay_control, one._signs = Inbox(), tmp_path, DelayControl(), Signs()
    scans = SimpleNamespace(pump=lambda chunks: False)

    def work() -> bool:
        worked.append(time.monotonic())
        time.sleep(0.02)
        return True

    one._data = SimpleNamespace(scans=scans, archive=None, work=work)  # type: ignore[assignment]
    one._programs = SimpleNamespace(derive=lambda: False, derived=lambda: None)  # type: ignore[assignment]
    one._machine = SimpleNamespace(step=lambda event: [])  # type: ignore[assignment]
    one._may_end, one._report = lambda: len(worked) == 3, lambda busy_ms: None  # type: ignore[method-assign]
    one._loop()
    assert (tmp_path / ALIVE).exists()
    assert all(later - sooner >= 0.04 for sooner, later in pairwise(worked))


def test_a_message_that_can_never_be_sent_is_told_to_the_driver() -> None:
    one = node.Node.__new__(node.Node)
    one._inbox = Inbox()
    one._on_refused("1.0", "it is larger than any may be")
    item = one._inbox.take(0)
    assert item is not None
    told = core.Instance(ME, core.InstanceRecord()).step(item.event)
    assert told == [core.Send(core.DRIVER, m.Unsendable(ME, "1.0", "it is larger than any may be"))]


@pytest.mark.parametrize("hears", [False, True])
def test_signs_of_life_do_not_wait_for_the_loop(monkeypatch: pytest.MonkeyPatch, hears: bool) -> None:
    """They tell of the user's code, but not to a driver of an older release."""
    one, sent = node.Node.__new__(node.Node), []
    one.me, one.settings = ME, SimpleNamespace(heartbeat_ms=500)  # type: ignore[assignment]
    one._idle_at, one._signs, one._hears_code = 100.0, Signs(), hears
    monkeypatch.setattr(one._signs, "computes_for", lambda: ("operator 'w'", 40), raising=False)
    code = ("operator 'w'", 40) if hears else ()

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        now[0] += 3.0
        if len(sent) == 2:
            raise SystemExit

    now = [100.5]
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(one, "_send", lambda send, body: sent.append(send.message))
    with pytest.raises(SystemExit):
        one._pulse()
    assert sent == [m.Pulse(ME, 0, *code), m.Pulse(ME, 3500, *code)]


def test_the_driver_says_whether_it_hears_of_the_users_code() -> None:
    one = node.Node.__new__(node.Node)
    one._delay_control, one._begun = DelayControl(), 0
    for begins, hears in ((m.Begins(1, hears_code=True), True), (m.Begins(2), False)):
        one._on_message(SimpleNamespace(kind=m.CODES[m.Begins], head=m.encode(begins)))  # type: ignore[arg-type]
        assert one._hears_code == hears


def ending(directory: Path, lasting: bool, seal: Callable[[], None]) -> tuple[node.Node, list[str]]:
    """A node whose loop ends at once, and what it does then."""
    one, done = node.Node.__new__(node.Node), list[str]()
    one.me, one.dir = ME, directory
    one.settings = SimpleNamespace(lasting=lasting)  # type: ignore[assignment]
    one._loop = (directory / ALIVE).touch  # type: ignore[method-assign]
    one._peers = SimpleNamespace(leave=lambda: done.append("leave"))  # type: ignore[assignment]

    def said(what: str) -> None:
        done.append(what if (directory / SYNCING).exists() and not (directory / ALIVE).exists() else "unsaid")

    def sealed() -> None:
        said("seal")
        seal()

    one._endpoint = SimpleNamespace(close=lambda: said("close"))  # type: ignore[assignment]

    one._data = SimpleNamespace(seal=sealed)  # type: ignore[assignment]
    return one, done


def test_an_instance_is_gone_for_the_others_before_it_waits_for_the_disk(tmp_path: Path) -> None:
    one, done = ending(tmp_path, True, lambda: None)
    assert one._live() == 0 and done == ["leave", "close", "seal"]


def test_files_that_nobody_will_look_for_are_not_synced(tmp_path: Path) -> None:
    one, done = ending(tmp_path, False, lambda: None)
    assert one._live() == 0 and done == ["leave"]


def test_a_disk_that_fails_at_the_end_is_said_and_no_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    one, done = ending(tmp_path, True, fail)
    assert one._live() == 0 and done[-1] == "seal"
    assert "no copy after a reboot" in caplog.text
