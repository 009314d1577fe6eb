"""Parts of files that are given back: how much at a time, how often, and never of another file of the same name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ferry.store import hole_punching, mapped
from ferry.store.hole_punching import HolePuncher

PIECE = 64 * 1024


def test_who_asks_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4 * PIECE)
    goes, punch = threading.Event(), hole_punching.punch

    def slowly(descriptor: int, begin: int, end: int) -> None:
        goes.wait(20)
        punch(descriptor, begin, end)

    monkeypatch.setattr(hole_punching, "punch", slowly)
    some = HolePuncher()
    some.add([(file, 0, PIECE), (file, 2 * PIECE, 3 * PIECE)])
    assert some.give_back() and not some.give_back() and some.is_left
    file.unlink()
    file.write_bytes(b"y" * 4 * PIECE)
    goes.set()
    while some.is_left:
        assert not some.give_back(), "all of it fitted into one piece"
    assert file.read_bytes() == b"y" * 4 * PIECE, "what is new under that name is no garbage"


@pytest.mark.parametrize("plenty", [True, False])
def test_most_of_the_time_nothing_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plenty: bool) -> None:
    """Who looks at the file waits as long as the disk takes for one piece, and not for all of them; unless room is short."""
    now, rested = [100.0], []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            now[0] += 0.5
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            rested.append(seconds)

    monkeypatch.setattr(hole_punching, "time", Clock)
    monkeypatch.setattr(hole_punching, "REST_TIMES", 9)
    monkeypatch.setattr(hole_punching, "PLENTY_BYTES", 1 if plenty else 1 << 62)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4 * PIECE)
    some = HolePuncher()
    some.add([(file, 0, PIECE), (file, 2 * PIECE, 3 * PIECE)])
    assert some.give_back()
    mapped.DISK.submit(lambda: None).result()
    assert not some.give_back() and not some.is_left
    assert rested == ([4.5, 4.5] if plenty else [])
    assert file.stat().st_blocks * 512 == 2 * PIECE


def test_few_files_are_open_for_it_however_many_tables_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = threading.Event()
    monkeypatch.setattr(hole_punching, "punch", lambda *_: goes.wait(20))
    many = [HolePuncher() for _ in range(20)]
    for number, some in enumerate(many):
        file = tmp_path / str(number)
        file.write_bytes(b"x" * PIECE)
        some.add([(file, 0, PIECE)])
    assert sum(some.give_back() for some in many) == hole_punching.FILES
    goes.set()
    while any(some.is_left for some in many):
        for some in many:
            some.give_back()


def test_where_no_file_can_be_opened_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    file = tmp_path / "file"
    file.write_bytes(b"x" * 2 * PIECE)
    some = HolePuncher()
    some.add([(file, 0, PIECE)])
    with monkeypatch.context() as patch:
        patch.setattr(hole_punching.os, "open", refuse)
        for _ in range(2 * hole_punching.FILES):
            assert not some.give_back() and some.is_left
    assert some.give_back()
    mapped.DISK.submit(lambda: None).result()
    assert not some.give_back() and file.stat().st_blocks * 512 == PIECE


def test_neighbours_are_given_back_together_and_parts_of_pages_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that loses half of its virtual nodes leaves a thousand regions, of which most are neighbours, or small."""
    punched: list[tuple[int, int]] = []
    monkeypatch.setattr(hole_punching, "punch", lambda _, begin, end: punched.append((begin, end)))
    file, page = tmp_path / "file", mapped.PAGE_BYTES
    file.touch()
    some = HolePuncher()
    some.add((file, at, at + 384) for at in range(100, 100 + 384 * 100, 384))
    some.add(
        [(file, 20 * page, 20 * page + 384), (file, 30 * page + 1, 32 * page - 1), (file, 40 * page + 7, 42 * page)]
    )
    while some.is_left:
        some.give_back()
    assert punched == [(page, (100 + 384 * 100) // page * page), (41 * page, 42 * page)]
