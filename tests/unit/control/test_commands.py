"""Actions as text, and `--at`."""

from __future__ import annotations

import pytest

from ferry.contract.errors import SpecRefused
from ferry_operator.control.commands import Schedule, join_at, parse_all, parse_at, parse_command
from ferry_operator.job.size import Size


@pytest.mark.parametrize(
    "text",
    [
        "workers=4",
        "instances=2",
        "kill-worker=1",
        "kill-instance=1.0",
        "kill-driver",
        "move=3:2.1",
        "move=3:2.1@window",
        "drain=0",
    ],
)
def test_an_action_is_read_and_written(text: str) -> None:
    assert str(parse_command(text)) == text
    assert str(parse_at(f"epoch=12 {text}")) == f"epoch=12:begin {text}"
    assert str(parse_at(f" epoch=12:commit  {text} ")) == f"epoch=12:commit {text}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epoch=1", "must be 'epoch=E"),
        ("workers=4", "must be 'epoch=E"),
        ("epoch=-1 workers=4", "must be 'epoch=E"),
        ("epoch=1:lunch workers=4", "no stage is called 'lunch'; stages are begin, ingest"),
        ("epoch=1 workers", "no action"),
        ("epoch=1 workers=many", "no action"),
        ("epoch=1 kill-driver=1", "no action"),
        ("epoch=1 move=3", "no action"),
        ("epoch=1 move=3:2.1@end", "no action"),
        ("epoch=1 move=3:2", "no action"),
        ("epoch=1 kill-instance=1", "no action"),
        ("epoch=1 dance=1", "no action; |actions are workers=N"),
    ],
)
def test_what_is_no_action_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(SpecRefused) as refusal:
        parse_at(text)
    assert any(part in str(refusal.value) for part in why.split("|"))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["epoch=1 kill-worker=2"], "the workers are 0 to 1"),
        (["epoch=1 drain=2"], "the workers are 0 to 1"),
        (["epoch=1 workers=0"], "1 to 256 workers"),
        (["epoch=1 instances=65"], "1 to 64 instances"),
        (["epoch=1 move=8:0.0"], "the virtual nodes are 0 to 7"),
        (["epoch=1 move=7:0.1"], "the instances are 0.0 to 1.0"),
        (["epoch=1 kill-instance=3.0", "epoch=0 workers=3"], "the instances are 0.0 to 2.0"),
    ],
)
def test_an_action_on_what_the_job_never_has_is_refused(texts: list[str], why: str) -> None:
    with pytest.raises(SpecRefused, match=why):
        parse_all(texts, Size(2, 1), virtual_nodes=8)


def test_an_action_may_name_what_another_one_makes() -> None:
    assert len(parse_all(["epoch=1 workers=3", "epoch=2 instances=2", "epoch=3 move=7:2.1"], Size(2, 1), 8)) == 3


@pytest.mark.parametrize(
    ("argv", "joined"),
    [
        (["--at", "epoch=1", "workers=4", "job.yaml"], ["--at", "epoch=1 workers=4", "job.yaml"]),
        (["--at", "epoch=1:emit", "kill-driver"], ["--at", "epoch=1:emit kill-driver"]),
        (["--at=epoch=1", "drain=0"], ["--at=epoch=1 drain=0"]),
        (["--at", "epoch=1 workers=4", "job.yaml"], ["--at", "epoch=1 workers=4", "job.yaml"]),
        (["--at", "epoch=1", "job.yaml"], ["--at", "epoch=1", "job.yaml"]),
        (["--set", "workers=4", "workers=4"], ["--set", "workers=4", "workers=4"]),
        (["--set", "epoch=1", "workers=4"], ["--set", "epoch=1", "workers=4"]),
    ],
)
def test_two_words_after_at_are_one_value(argv: list[str], joined: list[str]) -> None:
    assert join_at(argv) == joined


def test_an_action_is_handed_out_once_and_the_driver_dies_last() -> None:
    texts = [
        "epoch=3 kill-driver",
        "epoch=3 workers=4",
        "epoch=2:emit drain=0",
        "epoch=2:ingest drain=0",
        "epoch=9 drain=1",
    ]
    schedule = Schedule(parse_all(texts, Size(2, 1), 8))
    assert schedule.stops() == ((2, "ingest"), (2, "emit"), (3, "begin"), (9, "begin"))
    assert [str(c) for c in schedule.due(3, "begin")] == ["workers=4", "kill-driver"]
    assert schedule.due(3, "begin") == []
    assert [str(t) for t in schedule.left()] == [
        "epoch=2:emit drain=0",
        "epoch=2:ingest drain=0",
        "epoch=9:begin drain=1",
    ]
