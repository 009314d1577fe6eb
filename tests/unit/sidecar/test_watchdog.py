"""Who hangs and who is only slow: the loop's turns, the user's code and the processor decide, no clock on the wall."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ferry.contract import limits
from ferry.contract.names import Attempt, CommitId, Step
from ferry.sidecar.signs import Computing, EndedLife, Signs, look, read_end, write_end
from ferry.sidecar.watchdog import Watchdog

AT = CommitId(Step(14, 2), Attempt(3, 4))


class Life:
    """An instance, its processor time, and its parent's clock."""

    def __init__(self, directory: Path) -> None:
        self.cpu, self.now = 0.0, 1000.0
        self.signs = Signs()
        self.signs.begin(directory / "alive")
        self.watchdog = Watchdog(directory / "alive", lambda: self.cpu)

    def goes_on(self, seconds: float, cpu_share: float = 0.0, turns: bool = False) -> bool:
        """Whether it hangs at any look meanwhile."""
        hangs = False
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.cpu += 0.5 * cpu_share
            if turns:
                self.signs.turns()
            hangs |= self.watchdog.hangs(self.now)
        return hangs


def test_a_loop_that_does_not_come_round_hangs_after_a_while(tmp_path: Path) -> None:
    life = Life(tmp_path)
    assert not life.goes_on(500, turns=True)
    assert not life.goes_on(limits.HANG_SECONDS - 1, 0.005)
    assert life.goes_on(2, 0.005)


def test_one_that_has_not_begun_or_is_at_its_end_does_not_hang(tmp_path: Path) -> None:
    watchdog = Watchdog(tmp_path / "alive", lambda: 0.0)
    assert not any(watchdog.hangs(float(now)) for now in range(1000))
    (tmp_path / "alive").touch()
    assert not any(watchdog.hangs(float(now)) for now in range(1000, 2000))


@pytest.mark.parametrize("cpu_share", [0.0, 1.0])
def test_the_code_of_the_user_has_the_time_it_needs_asleep_or_at_work(tmp_path: Path, cpu_share: float) -> None:
    life = Life(tmp_path)
    with life.signs.computes(Computing(AT, "operator 'w' in epoch 14", users=True)):
        assert not life.goes_on(1000, cpu_share)
    assert not life.goes_on(limits.HANG_SECONDS - 1)
    assert life.goes_on(2), "and what comes after it has not"


def test_a_long_computation_uses_the_processor_and_is_no_hang(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with life.signs.computes(Computing(AT, "operator 'n' in epoch 14", users=False)):
        assert not life.goes_on(1000, 0.1)
        assert life.goes_on(2.1 * limits.HANG_SECONDS, 0.005)


def test_the_parent_speaks_for_one_in_the_users_code_unless_it_is_stopped(tmp_path: Path) -> None:
    """Code that holds the interpreter's lock keeps every thread of the instance from saying that it lives."""
    life, stopped = Life(tmp_path), [False]
    life.watchdog = Watchdog(tmp_path / "alive", lambda: life.cpu, lambda: stopped[0])
    with life.signs.computes(Computing(AT, "operator 'w' in epoch 14", users=True)):
        assert not life.goes_on(0.5) and life.watchdog.in_code(life.now) is None, "it says so itself"
        assert not life.goes_on(1000)
        assert life.watchdog.in_code(life.now) == ("operator 'w' in epoch 14", 1_000_000)
        stopped[0] = True
        assert life.watchdog.in_code(life.now) is None
        stopped[0] = False
        (generation, number), next_step = AT.attempt, AT.step
        with life.signs.computes(
            Computing(CommitId(next_step, Attempt(generation, number + 1)), "the next", users=True)
        ):
            assert not life.goes_on(2)
            assert life.watchdog.in_code(life.now) == ("the next", 1500)
    assert not life.goes_on(0.5) and life.watchdog.in_code(life.now) is None
    with life.signs.computes(Computing(AT, "operator 'n' in epoch 14", users=False)):
        assert not life.goes_on(5, 1.0) and life.watchdog.in_code(life.now) is None, "Ferry's own code says so itself"


def test_steps_of_the_wall_clock_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    assert not life.goes_on(1)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not life.goes_on(1)


def test_a_parent_that_stood_still_itself_counts_no_time(tmp_path: Path) -> None:
    """As when the whole machine was suspended, or all processes of the job were stopped."""
    life = Life(tmp_path)
    assert not life.goes_on(1)
    life.now += 3600
    assert not life.watchdog.hangs(life.now)


def test_what_is_computed_can_be_read_while_it_lasts_and_after_a_sudden_end(tmp_path: Path) -> None:
    life = Life(tmp_path)
    seen = look(tmp_path / "alive")
    assert seen is not None and seen.computing is None and life.signs.computes_for() == ("", 0)
    computing = Computing(AT, "operator 'ä' in epoch 14" + "x" * 2000, users=True)
    with life.signs.computes(computing):
        seen = look(tmp_path / "alive")
        assert life.signs.computes_for()[0] == computing.what
    assert seen is not None and seen.computing is not None
    assert seen.computing.commit_id == AT and seen.computing.users
    assert computing.what.startswith(seen.computing.what) and len(seen.computing.what) > 500
    seen = look(tmp_path / "alive")
    assert seen is not None and seen.computing is None


def test_how_a_life_ended_is_kept_for_the_next_one(tmp_path: Path) -> None:
    assert read_end(tmp_path) is None
    life = Life(tmp_path)
    write_end(tmp_path, 3)
    assert read_end(tmp_path) == EndedLife(3, None)
    with life.signs.computes(Computing(AT, "operator 'w' in epoch 14", users=True)):
        write_end(tmp_path, -11)
    assert read_end(tmp_path) == EndedLife(-11, Computing(AT, "operator 'w' in epoch 14", True))
    (tmp_path / "ended").write_text("{")
    assert read_end(tmp_path) is None
