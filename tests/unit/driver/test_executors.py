"""Executors count when they are warm, and lose their tasks when their worker is silent."""

from __future__ import annotations

import threading
from pathlib import Path

from ferry.driver.executors import Executors


class FakeBackend:
    """Executor 'a' runs beside worker 0, and so on."""

    cores = 2

    def __init__(self) -> None:
        self.present = set[str]()
        self.removed: list[str] = []

    def executors(self) -> frozenset[str]:
        return frozenset(self.present)

    def worker_of(self, executor: str) -> int | None:
        return None if executor == "?" else ord(executor) - ord("a")

    def remove(self, executor: str) -> None:
        self.removed.append(executor)
        self.present.discard(executor)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.backend, self.file = FakeBackend(), directory / "slots"
        self.warmed: list[int] = []
        self.may = threading.Event()
        self.executors = Executors(self.backend, self.file, self.warm_up)  # type: ignore[arg-type]

    def warm_up(self, slots: int) -> None:
        self.warmed.append(slots)
        assert self.may.wait(10)

    def settle(self) -> None:
        """Look until nobody is being warmed up."""
        while True:
            self.executors.look()
            if (thread := self.executors._warming) is None:
                return
            thread.join(10)

    def slots(self) -> str | None:
        return self.file.read_text() if self.file.exists() else None


def test_slots_count_when_they_are_warm(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.settle()
    assert rig.slots() is None and rig.warmed == []
    rig.backend.present = {"a"}
    rig.executors.look()
    rig.backend.present = {"a", "b"}
    rig.executors.look()
    assert rig.slots() is None, "cold"
    rig.may.set()
    rig.settle()
    assert (rig.slots(), rig.warmed) == ("4", [2, 4])
    rig.backend.present = {"b"}
    rig.settle()
    assert (rig.slots(), rig.warmed) == ("2", [2, 4]), "nobody new"


def test_executors_that_cannot_be_warmed_up_work_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def fail(slots: int) -> None:
        raise RuntimeError("cancelled")

    rig.executors._warm_up = fail
    rig.backend.present = {"a"}
    rig.settle()
    assert rig.slots() == "2"


def test_those_of_a_silent_worker_are_given_up_and_no_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {"a", "b", "c", "?"}
    rig.settle()
    rig.executors.silent(1)
    rig.settle()
    assert (rig.backend.removed, rig.slots()) == (["b"], "6")
    rig.backend.present.add("b")
    rig.settle()
    assert rig.backend.removed == ["b"], "it came back"
