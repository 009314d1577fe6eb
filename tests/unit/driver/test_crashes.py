"""Drivers that die in the user's code, one after the other."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from ferry.contract.errors import Final
from ferry.driver.crashes import NAME, CrashesInCode
from ferry.spark.attempts import DEATHS_MAX


def dies(directory: Path, code: str, epoch: int) -> None:
    """What a killed process leaves behind."""
    with CrashesInCode(directory).within(code, epoch):
        left = (directory / NAME).read_bytes()
    (directory / NAME).write_bytes(left)


def test_code_in_which_driver_after_driver_dies_is_named_and_not_called_again(tmp_path: Path) -> None:
    for _ in range(DEATHS_MAX):
        dies(tmp_path, "price (job.py:3)", 5)
    with pytest.raises(Final, match=rf"dies in price \(job.py:3\), {DEATHS_MAX} times"):
        dies(tmp_path, "price (job.py:3)", 5)
    with CrashesInCode(tmp_path).within("price (job.py:3)", 5):  # of a program that was mended
        pass


def test_deaths_in_other_code_or_of_another_epoch_do_not_count(tmp_path: Path) -> None:
    for epoch in range(10):
        dies(tmp_path, "price", epoch)
    for _ in range(DEATHS_MAX - 1):
        with CrashesInCode(tmp_path).within("price", 10):
            pass
        dies(tmp_path, "sink", 10)
    with CrashesInCode(tmp_path).within("sink", 10):
        pass
    dies(tmp_path, "sink", 10)


def test_a_call_that_ends_is_no_death(tmp_path: Path) -> None:
    for _ in range(10):
        with suppress(ValueError), CrashesInCode(tmp_path).within("price", 5):
            raise ValueError
    assert not (tmp_path / NAME).exists()


def test_a_file_that_is_damaged_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[")
    with CrashesInCode(tmp_path).within("price", 5):
        pass
