"""What executors print comes out line by line, whatever becomes of the files that it is written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferry.worker import tail
from ferry.worker.tail import LogTail


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """The directory of one executor."""
    made = tmp_path / "work" / "app-1" / "7"
    made.mkdir(parents=True)
    return made


def tailed(executor: Path) -> tuple[LogTail, list[str]]:
    said: list[str] = []
    return LogTail(executor.parent.parent, said.append), said


def test_lines_come_once_and_whole(executor: Path) -> None:
    one, said = tailed(executor)
    one.look()
    with (executor / "stdout").open("wb", buffering=0) as out, (executor / "stderr").open("wb", buffering=0) as errors:
        out.write(b"hello\nwor")
        errors.write("caf\u00e9 \u2013 ".encode() + b"\xff\n")
        one.look()
        assert said == ["executor 7 stdout: hello", "executor 7 stderr: caf\u00e9 \u2013 \ufffd"]
        out.write(b"ld\n")
        one.look()
        one.look()
    assert said[2:] == ["executor 7 stdout: world"]


def test_a_file_that_got_another_name_is_read_to_its_end(executor: Path) -> None:
    one, said = tailed(executor)
    (executor / "stderr").write_bytes(b"before\n")
    one.look()
    with (executor / "stderr").open("ab") as errors:
        errors.write(b"last words")
    (executor / "stderr").rename(executor / "stderr--1")
    (executor / "stderr").write_bytes(b"after\n")
    one.look()
    (executor / "stderr--1").unlink()
    one.look()
    assert sorted(said) == [f"executor 7 stderr: {line}" for line in ("after", "before", "last words")]
    assert len(one._files) == 1, "what is gone is not held"


def test_the_end_passes_on_all_that_is_left(executor: Path) -> None:
    one, said = tailed(executor)
    (executor / "stderr").write_bytes(b"".join(b"line %d\n" % i for i in range(50_000)) + b"no end")
    one.look()
    assert len(said) < 50_000, "one look takes a bounded part"
    one.close()
    assert said[-2:] == ["executor 7 stderr: line 49999", "executor 7 stderr: no end"] and len(said) == 50_001
    assert not one._files


def test_a_line_without_an_end_is_passed_on_in_parts(executor: Path) -> None:
    one, said = tailed(executor)
    (executor / "stdout").write_bytes(b"x" * (3 * tail.LINE_BYTES))
    one.look()
    assert len(said) == 3 and all(len(line) <= tail.LINE_BYTES + 20 for line in said)
    assert one._files and all(not file.rest for file in one._files.values())
