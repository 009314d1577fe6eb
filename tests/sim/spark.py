"""Spark's checkpoint of the query: the blocks of the source in each epoch, and the epochs that have ended. It can lose its end.

The source is an endless sequence of blocks. When Spark plans an epoch, it decides how many blocks the epoch has, which
depends on the moment: an epoch that is planned again has other blocks. Each driver reads this checkpoint.
"""

from __future__ import annotations

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId
from tests.sim.events import Dice

Range = tuple[int, int]
"""First block, and the block after the last."""


class Spark:
    """The checkpoint folder, not the process."""

    def __init__(self, epochs: int, rnd: Dice) -> None:
        self.epochs, self.rnd = epochs, rnd
        self.offsets: dict[int, Range] = {}
        self.commits: dict[int, bool] = {}

    def ended(self) -> int:
        """The last epoch that has ended, as far as Spark knows."""
        return max(max(self.commits, default=-1), max(self.offsets, default=-1) - 1)

    def plan(self, epoch: int, start: int | None) -> Range:
        """The blocks of the epoch, planned now unless they were before. The driver of the epoch before knows `start`."""
        if epoch not in self.offsets:
            if start is None:
                start = self.offsets[max(self.offsets)][1] if self.offsets else 0
            self.offsets[epoch] = (start, start + (self.rnd.randint(1, 2) if epoch < self.epochs else 0))
        return self.offsets[epoch]

    def forget(self) -> None:
        """Lose the newest files."""
        for _ in range(self.rnd.randint(1, 2)):
            newest = max([*self.offsets, *self.commits], default=-1)
            self.commits.pop(newest, None)
            if self.rnd.random() < 0.7:
                self.offsets.pop(newest, None)

    def settle(self, committed: CommitId | None, final: bool, meta: bytes) -> None:
        """Make the logs agree with the committed state, as `ferry.driver.checkpoint` does, before Spark looks at them."""
        if committed is None:
            return
        epoch = committed.step.epoch
        start, end = covered(meta)
        if epoch and epoch - 1 not in self.offsets:
            self.offsets[epoch - 1] = (start, start)  # Its first block does not matter any more.
        # If the plan of this epoch was lost, a zombie may have planned the epoch again.
        if epoch not in self.commits or epoch not in self.offsets:
            self.offsets[epoch] = (start, end)
        again = self.ended() < epoch and not final
        if epoch - again >= 0:
            self.commits[epoch - again] = True


def covered(meta: bytes) -> Range:
    """The blocks of the epoch that committed these notes."""
    start, end, *_ = meta.split()
    return int(start), int(end)


def greatest(meta: bytes, operators: int) -> list[int]:
    """Greatest event time of the source, by the operator that read it."""
    return [int(time) for time in meta.split()[2:]] if meta else [WATERMARK_NONE] * operators


def notes(covers: Range, seen: list[int]) -> bytes:
    """The notes that an epoch commits with its steps."""
    return " ".join(map(str, (*covers, *seen))).encode()
