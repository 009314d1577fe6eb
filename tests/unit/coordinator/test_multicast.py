"""Each receiver gets what concerns it, and nothing is encoded twice for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Refusal
from ferry.contract.names import Attempt, CommitId, Fragment, InstanceId, Step, Term, driver_name
from ferry.contract.results import StepResult
from ferry.contract.routing import Group, Table, Version
from ferry.coordinator import multicast
from ferry.coordinator.multicast import Multicast
from ferry.sidecar.drivers import Drivers

NAMES = tuple(InstanceId(f"{w}.0") for w in range(20))
STEP, ATTEMPT = Step(3, 0), Attempt(2, 7)
PEER = driver_name(2, "aa")


class Wire:
    """A channel that keeps what is posted."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.said: list[m.Message] = []

    def post(self, lane: int, kind: int, generation: int, head: bytes) -> None:
        self.heads.append(head)
        self.said.append(m.decode(kind, head))


def table(number: int, vnodes: int = 200) -> Table:
    chains = [(NAMES[v % 20], NAMES[(v + 1) % 20]) for v in range(vnodes)]
    return Table(Version(2, number), tuple(Group(Term(2, number), chain) for chain in chains))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[m.Message]:
    """What is encoded."""
    seen: list[m.Message] = []
    real = m.encode

    def encode(message: m.Message) -> bytes:
        seen.append(message)
        return real(message)

    monkeypatch.setattr(multicast.m, "encode", encode)
    return seen


def test_a_helper_gets_its_own_fragments_and_everybody_the_names_of_all_helpers() -> None:
    winners = tuple((name, tuple(Fragment(STEP, 2, 5, t) for t in range(4))) for name in NAMES[:10])
    prepare = m.Prepare(STEP, ATTEMPT, Version(2, 1), winners, 10, 20)
    out = Multicast()
    for name in NAMES:
        wire = Wire()
        out.post(wire, name, 2, prepare)  # type: ignore[arg-type]
        own = tuple((helper, fragments if helper == name else ()) for helper, fragments in winners)
        assert wire.said == [replace(prepare, winners=own)]


def test_a_table_is_sent_as_what_has_changed(encoded: list[m.Message]) -> None:
    first, second = table(1), table(2)
    groups = list(first.groups)
    groups[7] = Group(Term(2, 2), (NAMES[3],), (NAMES[4],))
    second = first.with_groups(Version(2, 2), groups)
    out, wires, drivers = Multicast(), [Wire() for _ in range(3)], [Drivers() for _ in range(3)]
    for version in (first, second, second):
        for name, wire in zip(NAMES, wires, strict=False):
            out.post(wire, name, 2, m.Install(version))  # type: ignore[arg-type]
    assert [type(message) for message in encoded] == [m.Install, m.Amend, m.Amend], "once, however many get it"
    for wire, mine in zip(wires, drivers, strict=True):
        mine.opened(PEER)
        assert [mine.installs(PEER, said).table for said in wire.said] == [first, second, second]  # type: ignore[arg-type]
        assert len(wire.heads[1]) < 40 and len(wire.heads[2]) < 20
    fresh = Wire()
    out.post(fresh, NAMES[0], 2, m.Install(second))  # type: ignore[arg-type]
    assert fresh.said == [m.Install(second)], "another connection knows of nothing"


def test_a_table_is_sent_whole_when_other_copies_take_no_snapshot(encoded: list[m.Message]) -> None:
    first, out, wire = table(1), Multicast(), Wire()
    second = replace(table(2), at_window=((7, NAMES[4]),))
    for version in (first, second, replace(second, version=Version(2, 3))):
        out.post(wire, NAMES[0], 2, m.Install(version))  # type: ignore[arg-type]
    assert [type(message) for message in wire.said] == [m.Install, m.Install, m.Amend]


def test_a_change_of_a_table_that_is_not_here_is_refused() -> None:
    drivers = Drivers()
    drivers.opened(PEER)
    amend = m.Amend(Version(2, 1), Version(2, 2), False, ())
    with pytest.raises(Refusal, match="here is none"):
        drivers.installs(PEER, amend)
    drivers.installs(PEER, m.Install(table(1)))
    assert drivers.installs(PEER, amend).table.version == Version(2, 2)
    with pytest.raises(Refusal, match="number=2"):
        drivers.installs(PEER, amend)
    drivers.closed(PEER)
    drivers.opened(PEER)
    with pytest.raises(Refusal, match="here is none"):
        drivers.installs(PEER, replace(amend, base=Version(2, 2)))


def test_what_all_get_is_encoded_once(encoded: list[m.Message]) -> None:
    out, wire, commit = (
        Multicast(),
        Wire(),
        m.Commit(CommitId(STEP, ATTEMPT), 2, (StepResult(ATTEMPT, 0, 10),), b"notes"),
    )
    for name in NAMES:
        out.post(wire, name, 2, commit)  # type: ignore[arg-type]
    assert encoded == [commit] and wire.said == [commit] * len(NAMES)


def test_where_the_table_is_known_helpers_are_bits_of_its_names() -> None:
    """Whoever gets it has what the coordinator said, as far as it concerns him; also of helpers that hold nothing."""
    helpers = sorted((*NAMES[3:17], InstanceId("400.0"), InstanceId("30.1")))
    winners = tuple((name, tuple(Fragment(STEP, 2, 5, t) for t in range(4))) for name in helpers)
    prepare = m.Prepare(STEP, ATTEMPT, Version(2, 1), winners, 10, 20)
    out, sizes = Multicast(), []
    for name in (*NAMES, InstanceId("400.0"), InstanceId("77.0")):
        wire, drivers = Wire(), Drivers()
        drivers.opened(PEER)
        out.post(wire, name, 2, m.Install(table(1)))  # type: ignore[arg-type]
        out.post(wire, name, 2, prepare)  # type: ignore[arg-type]
        install, brief = wire.said
        assert isinstance(install, m.Install) and isinstance(brief, m.BriefPrepare)
        with pytest.raises(Refusal, match="here is none"):
            drivers.prepares(PEER, brief)
        drivers.installs(PEER, install)
        own = tuple((helper, fragments if helper == name else ()) for helper, fragments in winners)
        assert drivers.prepares(PEER, brief) == replace(prepare, winners=own)
        assert m.encode(brief) == wire.heads[1]
        sizes.append(len(wire.heads[1]) - 8 * len(brief.own))
        drivers.installs(PEER, m.Amend(Version(2, 1), Version(2, 2), False, ()))
        with pytest.raises(Refusal, match="number=2"):
            drivers.prepares(PEER, brief)
    assert max(sizes) < 80


def test_helpers_in_another_order_or_under_another_table_are_named() -> None:
    out, wire = Multicast(), Wire()
    out.post(wire, NAMES[0], 2, m.Install(table(1)))  # type: ignore[arg-type]
    for names, version in ((NAMES[2::-1], Version(2, 1)), (NAMES[:3], Version(2, 2))):
        prepare = m.Prepare(STEP, ATTEMPT, version, tuple((name, ()) for name in names), 10, 20)
        out.post(wire, NAMES[0], 2, prepare)  # type: ignore[arg-type]
        assert wire.said[-1] == prepare
