"""Dead letters of accepted tasks become visible, those of others go; and which failures of Spark pass by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferry.driver.publisher import Publisher, is_passing


def test_dead_letters_that_came_with_receipts_are_published_with_their_epoch(tmp_path: Path) -> None:
    publisher = object.__new__(Publisher)
    publisher._dead_letter = tmp_path / "letters"
    publisher.keep_dead_letters({"5-0-2-3-77": ["a", "b"], "5-0-2-3-78": []})
    (tmp_path / "letters" / ".5-0-2-3-79.jsonl").write_text("of a task that was tried again")
    (tmp_path / "letters" / ".6-0-2-4-80.jsonl").write_text("of the next epoch")
    publisher._publish_dead_letters(5, ["5-0-2-3-77", "5-0-2-3-78"])
    found = {p.name: p.read_text() for p in (tmp_path / "letters").iterdir()}
    assert found == {"5-0-2-3-77.jsonl": "a\nb\n", ".6-0-2-4-80.jsonl": "of the next epoch"}


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("pyarrow._flight.FlightUnavailableError: failed to connect", True),
        ("Job 61 cancelled as part of cancellation of all jobs", True),
        ("Task 0 in stage 5.0 failed 16 times: ExecutorLostFailure (executor 1 exited)", True),
        ("org.apache.spark.shuffle.FetchFailedException", True),
        ("ZeroDivisionError: division by zero", False),
    ],
)
def test_a_lost_instance_or_executor_passes_and_an_error_of_the_user_does_not(text: str, passing: bool) -> None:
    assert is_passing(RuntimeError(text)) is passing
