"""A ticket opens what it was made for, where it was made for, until it ends; nothing else does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.errors import Refusal
from ferry.contract.names import Fragment, Step
from ferry.contract.tickets import (
    TICKET_BYTES_MAX,
    TICKET_SECONDS,
    Judge,
    ReadTicket,
    Right,
    derived,
    read_right,
    stage_right,
    stage_ticket,
)

SECRET, NOW = "a-secret-of-the-run", 1_800_000_000.5
ROOT = Right.root(SECRET)
ASK = ReadTicket(3, 17, 1, (3, 2), -(2**62), 2**62, (0, 5, 4095))
JUDGE = Judge(ROOT, "1.0", "life-b")


def to_read(**changes: Any) -> bytes:
    return read_right(ROOT, replace(ASK, **changes), "1.0", "life-b", NOW).dump()


def staging(task: int = 77, right: Right | None = None) -> bytes:
    return stage_ticket(right or stage_right(ROOT, Step(17, 1), 3, 2, NOW), task, "1.0", "life-b")


def sealed(*lines: Any) -> bytes:
    """What only somebody can make who knows the secret."""
    right = ROOT
    for line in lines:
        right = right.narrowed(line)
    return right.dump()


def test_a_ticket_says_what_it_was_made_for() -> None:
    assert JUDGE.read(to_read(), NOW) == ASK
    assert JUDGE.fragment(staging(), NOW) == Fragment(Step(17, 1), 3, 2, 77)


@pytest.mark.parametrize("kind", ["read", "fragment"])
@pytest.mark.parametrize(
    ("judge", "now", "why"),
    [
        (replace(JUDGE, instance="0.0"), NOW, "this is life life-b of 0.0"),
        (replace(JUDGE, life="life-c"), NOW, "this is life life-c"),
        (replace(JUDGE, root=Right.root("of another run")), NOW, "not of this run"),
        (JUDGE, NOW + TICKET_SECONDS + 60, "ended 60 s ago"),
    ],
    ids=["another instance", "another life", "another run", "later"],
)
def test_it_opens_nothing_elsewhere_or_later(kind: str, judge: Judge, now: float, why: str) -> None:
    ticket = to_read() if kind == "read" else staging()
    with pytest.raises(Refusal, match=why):
        getattr(judge, kind)(ticket, now)


def test_no_part_of_it_can_be_altered() -> None:
    for ticket, kind in ((to_read(), JUDGE.read), (staging(), JUDGE.fragment)):
        for place in range(len(ticket)):
            altered = bytearray(ticket)
            altered[place] ^= 1
            with pytest.raises(Refusal, match="not of this run, or was altered"):
                kind(bytes(altered), NOW)


def test_the_right_of_a_run_opens_no_other_run_and_reads_nothing() -> None:
    right = stage_right(ROOT, Step(17, 1), 3, 2, NOW)
    other = {**json.loads(right.lines[0]), "run": 3}
    forged = Right(right.seal, (json.dumps(other, separators=(",", ":")),))
    for ticket in (staging(right=forged), forged.dump(), b"", b"\n", right.seal.hex().encode(), b"\xff" * 64):
        for kind in (JUDGE.read, JUDGE.fragment):
            with pytest.raises(Refusal):
                kind(ticket, NOW)
    with pytest.raises(Refusal, match="not to read"):
        JUDGE.read(right.dump(), NOW)
    with pytest.raises(Refusal, match="of no task"):
        JUDGE.fragment(right.dump(), NOW)
    with pytest.raises(Refusal, match="of no task"):
        JUDGE.fragment(right.narrowed({"task": 1}).narrowed({"task": 2}).dump(), NOW)


def test_who_copied_a_ticket_cannot_make_another_of_it() -> None:
    *lines, seal = staging().decode().split("\n")
    copied = Right(bytes.fromhex(seal), tuple(lines))
    with pytest.raises(Refusal):
        JUDGE.fragment(stage_ticket(copied, 78, "1.0", "life-b"), NOW)
    with pytest.raises(Refusal):
        JUDGE.fragment(stage_ticket(Right(copied.seal, copied.lines[:1]), 78, "1.0", "life-b"), NOW)


@pytest.mark.parametrize("value", ["../../x", "7", 7.0, True, None, -1, 2**63, [7], {}])
def test_what_is_no_number_names_no_file(value: Any) -> None:
    right = json.loads(stage_right(ROOT, Step(17, 1), 3, 2, NOW).lines[0])
    narrowed = {"task": 77, "instance": "1.0", "life": "life-b"}
    assert JUDGE.fragment(sealed(right, narrowed), NOW)
    for name in ("epoch", "operator", "generation", "run"):
        with pytest.raises(Refusal, match=f"the ticket's {name} is"):
            JUDGE.fragment(sealed({**right, name: value}, narrowed), NOW)
    with pytest.raises(Refusal, match="the ticket's task is"):
        JUDGE.fragment(sealed(right, {**narrowed, "task": value}), NOW)
    read = json.loads(to_read().split(b"\n")[0])
    assert JUDGE.read(sealed(read), NOW)
    for name in ("generation", "epoch", "operator", "until"):
        with pytest.raises(Refusal, match=f"the ticket's {name} is"):
            JUDGE.read(sealed({**read, name: value}), NOW)
    for name in ("attempt", "vnodes"):
        for wrong in (value, [1, value, 3][: 2 if name == "attempt" else 3]):
            if wrong != [7]:
                with pytest.raises(Refusal, match=f"the ticket's {name} is"):
                    JUDGE.read(sealed({**read, name: wrong}), NOW)


def test_a_ticket_has_a_greatest_length() -> None:
    with pytest.raises(Refusal, match="bytes"):
        JUDGE.read(b"x" * (TICKET_BYTES_MAX + 1), NOW)
    every = tuple(range(1 << 15))
    assert JUDGE.read(to_read(vnodes=every), NOW).vnodes == every


def test_what_is_derived_differs_by_purpose_and_says_nothing_of_the_secret() -> None:
    found = {purpose: derived(SECRET, purpose) for purpose in ("spark", "control", "tickets")}
    assert len(set(found.values())) == 3
    for text in (*found.values(), repr(ROOT), repr(JUDGE), staging().decode()):
        for spelled in (SECRET, SECRET.encode().hex()):
            assert spelled not in text
    assert found["tickets"] not in repr(ROOT) + repr(JUDGE)


def test_the_clock_of_the_driver_may_be_ahead() -> None:
    skewed: Callable[[float], object] = lambda by: JUDGE.read(to_read(), NOW + by)  # noqa: E731
    assert skewed(-3600) == skewed(3600) == ASK
