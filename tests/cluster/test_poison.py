"""Records that kill the tasks that read them, and functions that raise: found, named, and no reason to begin again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PIPELINE = Path(__file__).parent / "pipelines" / "poison.py"


def job(folder: Path, users: list[str], spec: str, args: str = "") -> Path:
    (folder / "in").mkdir()
    lines = [json.dumps({"user": user, "ts": ts}) for ts, user in enumerate(users, 1)]
    (folder / "in" / "orders.json").write_text("\n".join(lines) + "\n")
    file = folder / "job.yaml"
    file.write_text(
        "apiVersion: ferry.dev/v1alpha1\nkind: StreamJob\nmetadata:\n  name: poison\nspec:\n  workers: 1\n"
        f"  pipeline:\n    file: {PIPELINE}\n    args: {{input: {folder / 'in'}{args}}}\n"
        f"  state: {{virtualNodes: 4, replicas: 0}}\n{spec}"
    )
    return file


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_records_that_kill_their_tasks_are_set_aside_and_no_other_is_lost(mode: str, tmp_path: Path) -> None:
    users = [f"u{n % 3}" for n in range(300)]
    users[7], users[250] = "poison", "leaves"
    file = job(tmp_path, users, f"  epoch: {{mode: {mode}}}\n  deadLetter: {{onCrash: set-aside}}\n")
    result = runner.run(file, tmp_path)
    assert result.code == 0 and not result.left, result.story()
    rows = [row for one in result.output.glob("counts/epoch=*/*.parquet") for row in pq.read_table(one).to_pylist()]
    assert sorted((row["user"], row["n"]) for row in rows) == [("u0", 100), ("u1", 98), ("u2", 100)]
    letters = [line for one in result.output.glob("_dead-letter/epoch=*/*") for line in one.read_text().splitlines()]
    assert sorted(json.loads(json.loads(line)["record"])["user"] for line in letters) == ["leaves", "poison"]
    assert result.summary["malformed"] == 2 and not result.kinds("lost"), result.story()
    assert any("orders.json" in one["text"] for one in result.kinds("degraded")), result.story()


def test_an_exception_of_a_function_ends_the_job_with_its_line(tmp_path: Path) -> None:
    result = runner.run(job(tmp_path, ["a", "b", "c"], "", ", raises: true"), tmp_path)
    assert result.code == 1 and not result.left, result.story()
    (said,) = result.kinds("degraded")
    for text in (said["text"], result.summary["reason"]):
        assert "ZeroDivisionError: integer division or modulo by zero (poison.py:" in text, result.story()
        assert "price in map_batches on source 'orders'" in text, result.story()
    assert not [one for one in result.kinds("action") if "restart" in one["text"]], result.story()


def test_a_row_that_kills_the_driver_is_named_by_the_next_one(tmp_path: Path) -> None:
    """Behind an operator, where few rows pass through functions in the driver itself."""
    result = runner.run(job(tmp_path, ["a", "poison", "poison", "c"], "", ", behind: true"), tmp_path)
    assert result.code == 1 and not result.left, result.story()
    assert len([one for one in result.kinds("action") if "restart driver" in one["text"]]) == 1, result.story()
    assert 'dies of row {"user":"poison","n":2} of operator \'counts\', 3 times' in result.summary["reason"]
    assert "mend decode (poison.py:" in result.summary["reason"] and not result.kinds("lost"), result.story()
