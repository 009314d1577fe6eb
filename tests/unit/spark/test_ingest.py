"""Which helper a task tries first."""

from __future__ import annotations

from ferry.spark.ingest import in_turn

HELPERS = tuple((i, f"grpc+tcp://{i}") for i in ("0.0", "1.0", "1.1", "12.0"))


def tried(turn: int, worker: int | None) -> list[str]:
    return [instance for instance, _ in in_turn(HELPERS, turn, worker)]


def test_helpers_take_turns_where_tasks_are_beside_all_of_them() -> None:
    assert [tried(turn, None)[0] for turn in range(5)] == ["0.0", "1.0", "1.1", "12.0", "0.0"]
    assert sorted(tried(3, None)) == ["0.0", "1.0", "1.1", "12.0"]


def test_those_of_the_own_worker_come_first_and_take_turns() -> None:
    assert [tried(turn, 1)[:2] for turn in (0, 1)] == [["1.0", "1.1"], ["1.1", "1.0"]]
    assert sorted(tried(0, 1)[2:]) == ["0.0", "12.0"]


def test_a_worker_without_helpers_uses_any() -> None:
    assert [tried(turn, 2)[0] for turn in range(4)] == ["0.0", "1.0", "1.1", "12.0"]
    assert in_turn((), 0, 2) == []
