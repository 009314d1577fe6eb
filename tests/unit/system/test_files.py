"""A file is the one before or the new one, whatever happens while it is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ferry.system import files


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("private", [False, True])
def test_a_file_appears_whole(tmp_path: Path, durable: bool, private: bool) -> None:
    file = tmp_path / "a.json"
    for text in ("one", "two"):
        with files.replacing(file, durable, private) as new:
            new.write_text(text)
            assert new.name.startswith(".") and new.suffix == ".tmp", "what lists the folder passes it over"
            assert not file.exists() or file.read_text() == "one"
        assert file.read_text() == text and names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    with pytest.raises(type(error)), files.replacing(file) as new:
        new.write_text("ha")
        raise error
    assert file.read_text() == "before" and names(tmp_path) == ["a"]


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError), files.replacing(tmp_path / "a") as new:
        new.write_text("a folder is in the way")
    assert names(tmp_path) == ["a"]


def test_what_a_process_that_was_killed_has_left_is_overwritten(tmp_path: Path) -> None:
    left = tmp_path / ".a.tmp"
    left.write_text("half of what somebody else wrote, and readable by all")
    left.chmod(0o644)
    with files.replacing(tmp_path / "a", private=True) as new:
        new.write_text("mine")
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "mine"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"name {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    for durable in (True, False):
        with files.replacing(tmp_path / "a", durable) as new:
            new.write_text("12345")
    assert done == ["sync .a.tmp", "name a", "name a"]
    assert files.sync(tmp_path / "a") == 5 and files.sync(tmp_path) >= 0
    assert done[3:] == ["sync a", f"sync {tmp_path.name}"]
