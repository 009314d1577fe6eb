"""Every message survives the wire, whatever its values; a damaged one is refused."""

from __future__ import annotations

import typing

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, Term
from ferry.contract.routing import Group, Table, Version

small = st.integers(0, 1 << 40)
instances = st.builds(lambda w, i: InstanceId(f"{w}.{i}"), st.integers(0, 300), st.integers(0, 9))
members = st.lists(instances, min_size=1, max_size=5, unique=True).map(tuple)
groups = st.builds(
    lambda term, members, in_sync: Group(term, members[:in_sync], members[in_sync:]),
    st.builds(Term, small, small),
    members,
    st.integers(1, 3),
)
st.register_type_strategy(int, st.integers(-(2**62), 2**62))
st.register_type_strategy(Step, st.builds(Step, small, st.integers(0, 9)))
st.register_type_strategy(Attempt, st.builds(Attempt, small, small))
st.register_type_strategy(Version, st.builds(Version, small, small))
st.register_type_strategy(CommitId, st.builds(CommitId, st.from_type(Step), st.from_type(Attempt)))
st.register_type_strategy(
    Table, st.builds(Table, st.from_type(Version), st.lists(groups, min_size=1, max_size=4).map(tuple), st.booleans())
)


@pytest.mark.parametrize("kind", m.KINDS.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[typing.Any], data: st.DataObject) -> None:
    hints = typing.get_type_hints(kind)
    values = {name: data.draw(st.from_type(hint)) for name, hint in hints.items()}
    message = kind(**values)
    assert m.decode(m.CODES[kind], m.encode(message)) == message


def test_codes_are_dense_and_unique() -> None:
    assert sorted(m.KINDS) == list(range(1, len(m.KINDS) + 1))
    assert len(m.CODES) == len(m.KINDS)


def test_an_unknown_kind_and_a_wrong_number_of_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown message kind 99"):
        m.decode(99, b"")
    with pytest.raises(ValueError, match="Ask has 1 fields, the peer sent 2"):
        m.decode(m.CODES[m.Ask], msgpack.packb([1, 2]))


def test_a_report_of_another_version_is_understood() -> None:
    """Fields come at the end: an older peer leaves them out, a newer one says more."""
    report = m.Report(InstanceId("1.0"), "life", (1,), (2,), (3,), 4, 5, "why", damage="its table", small_pages="none")
    values = msgpack.unpackb(m.encode(report))
    code = m.CODES[m.Report]
    assert m.decode(code, msgpack.packb(values[:5])) == m.Report(InstanceId("1.0"), "life", (1,), (2,), (3,))
    assert m.decode(code, msgpack.packb([*values, "more"])) == report
    with pytest.raises(ValueError, match="Report has 14 fields, the peer sent 4"):
        m.decode(code, msgpack.packb(values[:4]))
    assert m.decode(m.CODES[m.Pulse], msgpack.packb(["1.0", 7, "", 0, "more"])) == m.Pulse(InstanceId("1.0"), 7)


def test_what_says_nothing_new_is_read_by_an_older_peer() -> None:
    """Which ends the connection over a field that it does not know."""
    a = InstanceId("1.0")
    assert msgpack.unpackb(m.encode(m.Pulse(a, 7))) == ["1.0", 7]
    assert msgpack.unpackb(m.encode(m.Pulse(a, 7, "", 5))) == ["1.0", 7, "", 5]
    assert msgpack.unpackb(m.encode(m.Begins(3))) == [3]


def test_what_the_protocol_rests_on_is_never_cut() -> None:
    code = m.CODES[m.Committed]
    values = msgpack.unpackb(m.encode(m.Committed(InstanceId("1.0"), CommitId(Step(1, 0), Attempt(1, 1)))))
    for wrong in (values[:1], [*values, 0]):
        with pytest.raises(ValueError, match="Committed has 2 fields"):
            m.decode(code, msgpack.packb(wrong))
