"""Dead letters of accepted tasks become visible with their epoch, those of others go; together they have a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferry.driver.dead_letters import DeadLetters


def found(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*") if p.is_file()}


def test_those_that_came_with_receipts_are_published_with_their_epoch(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path)
    letters.keep(5, {"5-0-2-3-77": ["a", "b"], "5-0-2-3-78": []})
    letters.keep(6, {"6-0-2-4-80": ["of the next epoch"]})
    (tmp_path / ".epoch=5" / "5-0-2-3-79.jsonl").write_text("of a task that was tried again")
    for _ in range(2):
        letters.publish(5, ["5-0-2-3-77", "5-0-2-3-78"])
        assert found(tmp_path) == {
            "epoch=5/5-0-2-3-77.jsonl": "a\nb\n",
            ".epoch=6/6-0-2-4-80.jsonl": "of the next epoch\n",
        }
    letters.keep(5, {"5-0-2-3-99": ["of a task that came late"]})
    letters.publish(5, ["5-0-2-3-77"])
    letters.publish(6, [])
    assert found(tmp_path) == {"epoch=5/5-0-2-3-77.jsonl": "a\nb\n"}
    assert [p.name for p in tmp_path.iterdir()] == ["epoch=5"]


def test_an_epoch_without_any_looks_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = DeadLetters(tmp_path)
    for listing in ("iterdir", "glob"):
        monkeypatch.setattr(Path, listing, lambda path, *_: pytest.fail(f"{path} is listed"))
    letters.publish(7, [])


def test_the_oldest_go_first_also_those_of_the_driver_before(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x" * 1000)
    for epoch in (9, 10, 11):
        letters = DeadLetters(tmp_path, bytes_max=250)
        letters.keep(epoch, {f"{epoch}-0": ["x" * 99]})
        letters.publish(epoch, [f"{epoch}-0"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch=10", "epoch=11", "mine.txt"]
    letters.keep(12, {"12-0": ["x" * 999]})
    letters.publish(12, ["12-0"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch=12", "mine.txt"], "the newest stays, whatever it has"
