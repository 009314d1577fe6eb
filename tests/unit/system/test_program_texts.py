"""Each process of a run writes the text of a program below its own directory; tasks find the archive that Spark sends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import packed, sealed
from ferry.contract.user_code import where
from ferry.system import program_texts, user_module
from ferry.system.user_module import ProgramCopy

TEXT = "VALUE = 7\n\ndef fails():\n    raise ValueError('no')\n"
FILE = "configmap/rules/job.py"
SECRET = "s" * 16


def record(directory: Path, text: str = TEXT) -> ProgramRecord:
    folder = program_texts.written(directory / "driver", FILE, packed(text))
    there = folder.replace("driver", "instance")
    return ProgramRecord(2, (), (), file=FILE, folder=there, text=packed(text), seal=sealed(packed(text), SECRET))


def test_a_text_is_written_once_and_imported_under_its_hash(tmp_path: Path) -> None:
    one = record(tmp_path)
    for _ in range(2):
        program_texts.require(one, tmp_path / "instance", SECRET)
    loaded = user_module.load(*one.pipeline)
    assert loaded.VALUE == 7 and loaded.__name__ == f"ferry_pipeline_job_{one.hash}"
    assert [folder.name for folder in (tmp_path / "instance" / "programs").iterdir()] == [one.hash]


def test_a_text_without_the_seal_of_the_run_is_not_written(tmp_path: Path) -> None:
    one = record(tmp_path)
    forged = replace(one, text=packed("import os"))
    for bad, secret in ((forged, SECRET), (one, "other")):
        with pytest.raises(SpecRefused, match="program 2 was not sealed by the driver of this run"):
            program_texts.require(bad, tmp_path / "instance", secret)
    with pytest.raises(SpecRefused, match="has the folder"):
        program_texts.require(replace(one, folder="/elsewhere/programs/0123456789ab"), tmp_path / "instance", SECRET)
    assert not (tmp_path / "instance" / "programs" / "0123456789ab").exists()


def test_an_error_is_shown_with_the_statement_of_its_own_program(tmp_path: Path) -> None:
    older, newer = record(tmp_path), record(tmp_path, TEXT.replace("raise ValueError('no')", "return 'mended'"))
    loaded = []
    for one in (older, newer):
        program_texts.require(one, tmp_path / "instance", SECRET)
        loaded.append(user_module.load(*one.pipeline))
    assert loaded[1].fails() == "mended"
    with pytest.raises(ValueError) as failed:
        loaded[0].fails()
    assert where(failed.value) == "job.py:4 in fails: \"raise ValueError('no')\""


def test_another_process_may_write_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ProgramCopy.write_text(tmp_path / "one", FILE, TEXT.encode())
    rename, other = Path.rename, tmp_path / "other"

    def late(self: Path, target: Path) -> Path:
        shutil.copytree(folder, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert ProgramCopy.write_text(other, FILE, TEXT.encode()).name == folder.name
    assert [one.name for one in other.iterdir()] == [folder.name], "nothing half written is left"


def test_a_task_imports_a_program_from_the_archive(tmp_path: Path) -> None:
    folder = ProgramCopy.write_text(tmp_path / "programs", FILE, TEXT.encode())
    archive = ProgramCopy.of(folder).archive()
    sent = tmp_path / "files"
    sent.mkdir()
    archive.rename(sent / archive.name)
    script = (
        "import sys, importlib, traceback; from pathlib import Path; from ferry.system import user_module\n"
        "user_module.find_archives(lambda: Path(sys.argv[1]))\n"
        "module = importlib.import_module(sys.argv[2])\n"
        "try: module.fails()\n"
        "except ValueError: traceback.print_exc(file=sys.stdout)\n"
    )
    name = f"ferry_pipeline_job_{folder.name}"
    done = subprocess.run([sys.executable, "-c", script, str(sent), name], capture_output=True, text=True, cwd=tmp_path)
    assert f'File "{FILE}", line 4, in fails' in done.stdout and "raise ValueError('no')" in done.stdout, done.stderr
