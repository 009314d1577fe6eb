"""A program to deploy is built in a child process of the driver: a refusal names the statement that did not come back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.errors import SpecRefused
from ferry.driver import program_check
from tests.unit.local.test_check import endless


def refused(folder: Path, text: str) -> str:
    (folder / "broken.py").write_text(text)
    settings, program = SimpleNamespace(output=None, events=None), SimpleNamespace(plan=SimpleNamespace(sources={}))
    record = ProgramRecord(2, (), (), file=str(folder / "broken.py"))
    with pytest.raises(SpecRefused) as told:
        program_check.compared(record, cast(Any, settings), cast(Any, program), Catalogue((), ()), ())
    return str(told.value)


def test_a_signal_is_told_with_its_statement(tmp_path: Path) -> None:
    text = refused(tmp_path, "import ctypes\n\nctypes.string_at(0)\n")
    assert "Segmentation fault (broken.py:3 in <module>)" in text, text


def test_a_program_that_does_not_return_is_told_with_its_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = refused(tmp_path, endless(tmp_path, monkeypatch, program_check.CHECK_SECONDS))
    assert "have not returned within 60 s (broken.py:" in text and "in sources" in text, text
