"""What epochs commit adds up over operators, epochs and drivers, and is read as every release has written it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ferry.contract.names import Fragment, Step
from ferry.contract.notes import EpochCounts, EpochNotes, Receipt, dead_letters_name
from ferry.contract.watermarks import FlowClock

COMMITTED = [
    b'{"epoch":[15,2,0],"late":0,"spark":"packed-4","maxima":{"0":{"0":7,"1":9}},"rows":15,"malformed":2,"flush":false,"letters":["4-0-2-1-7"]}',
    b'{"epoch":[15,3,3],"late":3,"spark":"packed-4","maxima":{"0":{"0":7,"1":9},"1":{"0":6}},"rows":15,"malformed":3,"flush":false,"letters":["4-0-2-1-7","4-1-2-1-9"]}',
    b'{"epoch":[1,0,0],"late":5,"spark":"packed-5","maxima":{"0":{"0":7,"1":9},"1":{"0":6}},"rows":16,"malformed":3,"flush":true,"letters":[]}',
    b'{"epoch":[1,0,1],"late":6,"spark":"packed-5","maxima":{"0":{"0":7,"1":9},"1":{"0":6}},"rows":16,"malformed":3,"flush":true,"letters":[]}',
]
"""What release 0.1.0 commits with the steps of two epochs. Jobs that run have it in their files."""

KNOWN = EpochNotes(
    epoch=EpochCounts(15, 3, 3),
    late=3,
    spark="packed-4",
    maxima={0: {0: {"": FlowClock(7)}, 1: {"": FlowClock(9)}}, 1: {0: {"": FlowClock(6)}}},
    rows=15,
    malformed=3,
    letters=("4-0-2-1-7", "4-1-2-1-9"),
)


def test_two_epochs_of_two_operators_commit_what_the_release_before_did() -> None:
    notes = EpochNotes.load(b"").next_epoch(0, "packed-4")
    notes = notes.add(
        0, [Receipt(7, "0.0", 10, 2, {0: {"": 5}, 1: {"": 9}}), Receipt(8, None, 5, maxima={0: {"": 7}})], ["4-0-2-1-7"]
    )
    assert notes.dump() == COMMITTED[0]
    notes = notes.next_operator(3).add(1, [Receipt(9, "0.0", 0, 1, {0: {"": 6}})], ["4-1-2-1-9"])
    assert notes.dump() == COMMITTED[1]
    notes = notes.next_epoch(2, "packed-5").add(0, [Receipt(10, "0.0", 1, maxima={1: {"": 4}}, flush=True)], [])
    assert notes.dump() == COMMITTED[2]
    assert notes.next_operator(1).add(1, [Receipt(11)], []).dump() == COMMITTED[3]


@pytest.mark.parametrize("meta", COMMITTED)
def test_what_is_committed_can_be_read(meta: bytes) -> None:
    assert EpochNotes.load(meta).dump() == meta
    assert EpochNotes.load(COMMITTED[1]) == KNOWN


def test_what_other_releases_left_out_or_added_does_no_harm() -> None:
    assert EpochNotes.load(b"") == EpochNotes.load(b"{}") == EpochNotes()
    doc = json.loads(COMMITTED[1])
    del doc["spark"], doc["letters"]
    meta = json.dumps({**doc, "of_a_later_release": 1}).encode()
    assert EpochNotes.load(meta) == replace(KNOWN, spark=None, letters=())


def test_clocks_of_several_flows_are_committed_and_read() -> None:
    notes = EpochNotes().add(0, [Receipt(1, maxima={0: {"a": 5}, 1: {"": 8}}, flows={0: {"a": True, "b": False}})], [])
    notes = notes.add(1, [Receipt(2, maxima={0: {"": 3}})], [], 70, {0: 1000, 1: 500})
    assert json.loads(notes.dump())["maxima"] == {
        "0": {"0": {"a": [5, None], "b": [None, None]}, "1": 8},
        "1": {"0": {"": [3, 70]}, "1": {"": [None, 70]}},
    }
    assert EpochNotes.load(notes.dump()) == notes


def test_what_was_committed_of_one_flow_goes_on_with_a_timeout() -> None:
    notes = EpochNotes.load(COMMITTED[1]).add(0, [Receipt(1, maxima={1: {"": 4}})], [], 70, {0: 1000})
    assert notes.maxima[0] == {0: {"": FlowClock(7, 70)}, 1: {"": FlowClock(9)}}


def test_flows_of_an_input_that_is_not_read_any_more_are_forgotten() -> None:
    """Another program reads another source there: the last event time of a flow of the old one would hold the watermark back."""
    flows = {0: {"p0": False, "p1": False}}
    first = [Receipt(1, maxima={0: {"p0": 5, "p1": 6}, 1: {"": 7}}, flows=flows)]
    notes = EpochNotes().add(3, first, [], origins=("orders", "@1"))
    assert EpochNotes.load(notes.dump()) == notes
    same = notes.add(3, [Receipt(2)], [], origins=("orders", "@1"))
    assert same.maxima == notes.maxima
    other = notes.add(3, [Receipt(2, maxima={0: {"": 9}})], [], origins=("payments", "@1"))
    assert other.maxima[3][0] == {"": FlowClock(9)} and other.maxima[3][1] == notes.maxima[3][1]
    released = EpochNotes.load(COMMITTED[0]).add(0, [Receipt(2)], [], origins=("orders", "more"))
    assert released.maxima == EpochNotes.load(COMMITTED[0]).maxima, "notes of the release before name no origins"


def test_event_times_of_operators_that_never_come_back_are_forgotten() -> None:
    """Each altered operator, and each copy of a shadow, has an id of its own: epochs would carry all of them."""
    notes = EpochNotes()
    for number in range(5):
        notes = notes.add(number, [Receipt(1, maxima={0: {"": number}})], [], origins=("a",))
    later = notes.next_epoch(0, "", {0, 4})
    assert later.maxima == {n: notes.maxima[n] for n in (0, 4)} and later.origins.keys() == {0, 4}
    assert notes.next_epoch(0, "").maxima == notes.maxima


def test_notes_are_values() -> None:
    KNOWN.add(0, [Receipt(1, maxima={0: {"": 99}, 1: {"": 1}})], ["x"]).next_epoch(1, "y")
    assert KNOWN.dump() == COMMITTED[1]


def test_a_receipt_reaches_the_driver_as_it_was() -> None:
    maxima, flows = {0: {"": 5, "ü": 6}, 1: {"x": -9}}, {1: {"x": True, "y": False}}
    one = Receipt(3, "1.0", 10, 2, maxima, ("a", "ü"), True, "it broke", flows)
    for receipt in (one, Receipt()):
        assert Receipt.load(receipt.dump()) == receipt


def test_the_files_of_dead_letters_are_named_after_the_attempt_of_their_task() -> None:
    assert dead_letters_name(Fragment(Step(4, 1), 2, 3, 77)) == "4-1-2-3-77"


def test_ages_of_records_are_those_of_one_epoch_and_go_with_it() -> None:
    receipt = Receipt(7, "0.0", 10, ages={300: 9, 20: 1})
    assert Receipt.load(receipt.dump()) == receipt
    notes = EpochNotes().next_epoch(0, "packed").add(0, [receipt, Receipt(8, ages={300: 5})], [])
    notes = notes.next_operator(0).add(1, [Receipt(9, ages={7: 2})], [])
    assert notes.ages == {7: 2, 20: 1, 300: 14} and EpochNotes.load(notes.dump()) == notes
    assert notes.next_epoch(0, "packed").ages == {}
