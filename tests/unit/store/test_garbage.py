"""Parts of files that are given back: how much at a time, how often, and never of another file of the same name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ferry.store import garbage, mapped
from ferry.store.garbage import Garbage

PIECE = 64 * 1024


def test_who_asks_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4 * PIECE)
    goes, punch = threading.Event(), garbage.punch

    def slowly(descriptor: int, ranges: list[tuple[int, int]]) -> float:
        goes.wait(20)
        return punch(descriptor, ranges)

    monkeypatch.setattr(garbage, "punch", slowly)
    some = Garbage()
    some.add([(file, 0, PIECE), (file, 2 * PIECE, 3 * PIECE)])
    assert some.give_back() and not some.give_back() and some.is_left
    file.unlink()
    file.write_bytes(b"y" * 4 * PIECE)
    goes.set()
    while some.is_left:
        assert not some.give_back(), "all of it fitted into one piece"
    assert file.read_bytes() == b"y" * 4 * PIECE, "what is new under that name is nobody's garbage"


def test_most_of_the_time_nothing_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PUNCH_BYTES", PIECE)
    now, took = [100.0], [0.5]
    monkeypatch.setattr(garbage.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(garbage, "punch", lambda descriptor, ranges: took[0])
    (tmp_path / "file").touch()
    some = Garbage()
    some.add([(tmp_path / "file", 0, 2 * PIECE)])
    assert some.give_back()
    mapped.DISK.submit(lambda: None).result()
    assert not some.give_back(), "it has ended, and now rests"
    now[0] += 0.5 * garbage.REST_TIMES - 0.01
    assert not some.give_back() and some.is_left
    now[0] += 0.02
    assert some.give_back()
