"""The share of its time that an instance gives to snapshots."""

from __future__ import annotations

from ferry.sidecar import delay_control
from ferry.sidecar.delay_control import LEAST_SHARE, QUIET_EVERY, DelayControl

CHUNK = 1 / 1024  # exact, as sums of it are


class Instance:
    """Epochs back to back, and chunks of about a millisecond whenever they may be sent."""

    def __init__(self) -> None:
        self.control, self.now, self.epoch = DelayControl(), 100.0, 0

    def run(self, epochs: int, seconds: float, slower: float = 0.0, sends: bool = True) -> float:
        """So many epochs of `seconds`, and of `slower` more for each second that is sent. What share of the time was sent."""
        began, sent = self.now, 0.0
        for _ in range(epochs):
            self.epoch += 1
            self.control.begins(self.epoch, self.now)
            end = self.now + seconds
            while self.now < end:
                if sends and self.control.may_send(self.now):
                    self.control.sent(self.now, self.now + CHUNK)
                    sent += CHUNK
                    end += CHUNK * slower
                self.now += CHUNK
            self.control.committed(self.epoch, self.now)
        return sent / (self.now - began)


def test_what_stands_in_nobodys_way_gets_all_the_time_but_for_the_epochs_left_alone() -> None:
    one = Instance()
    one.run(40, 0.02, sends=False)
    one.run(60, 0.02)
    assert one.control.share == 1.0
    assert 0.85 < one.run(10 * QUIET_EVERY, 0.02) < 1 - 0.9 / QUIET_EVERY


def test_epochs_that_take_longer_for_it_make_it_slower_and_never_stop_it() -> None:
    one = Instance()
    one.run(40, 0.02, sends=False)
    one.run(60, 0.02, slower=0.8)
    assert 0.2 < one.run(200, 0.02, slower=0.8) < 0.7, "as much as makes epochs half as long again"
    one.run(50, 0.02)
    assert one.control.share == 1.0, "and all again when it does not matter any more"
    one.run(14, 2.0)
    assert one.control.share == LEAST_SHARE, "however long they take"


def test_what_is_usual_does_not_age() -> None:
    one = Instance()
    one.run(40, 0.01, sends=False)
    one.run(15, 0.06)
    assert one.control.share < 0.4
    one.run(10 * QUIET_EVERY, 0.06)
    assert one.control.share == 1.0, "the job has more to do now, with or without a move"


def test_no_epoch_is_left_alone_for_ever() -> None:
    one = DelayControl()
    one.begins(QUIET_EVERY, 5.0)
    assert not one.may_send(5.1) and one.may_send(5.0 + delay_control.QUIET_SECONDS)
    one.committed(QUIET_EVERY, 5.05)
    assert one.may_send(5.1), "its end is known"
    one.committed(3, 6.0)
    assert DelayControl().may_send(0.0), "nothing has begun"
