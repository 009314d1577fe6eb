"""Workers come, go and return while only some vnodes per round may move: placements stay valid and come to rest.

After Kafka Streams' TaskAssignorConvergenceTest. A failure prints the seed and every round.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ferry_operator.placement.planner import Load, Placement, Slot, plan
from tests.unit.placement.placements import assert_valid, highest, reachable


class Harness:
    """A job whose plans are carried out `limit` vnodes per round; leaders that are gone are replaced at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.vnodes = self.random.choice([16, 64, 128])
        self.replicas = self.random.randint(0, 2)
        self.limit = self.random.randint(1, self.vnodes // 2)
        self.nodes = self.random.randint(1, 4)
        skew = self.random.choice([0.0, 1.0, 2.0])
        self.loads = [
            Load(self.random.random() ** skew * 10 + 0.1, self.random.random() * 100) for _ in range(self.vnodes)
        ]
        self.workers = {w: self._worker(w) for w in range(self.random.randint(1, 5))}
        self.gone: dict[int, list[Slot]] = {}
        self.placed: list[Placement] = list(plan(self.slots, self.loads, [None] * self.vnodes, self.replicas))
        self.history = [
            f"seed {seed}: {self.vnodes} vnodes, {self.replicas} replicas, {self.limit} moves per round, "
            f"skew {skew}, workers {list(self.workers)} on {self.nodes} nodes"
        ]

    @property
    def slots(self) -> list[Slot]:
        return [slot for slots in self.workers.values() for slot in slots]

    def _worker(self, worker: int) -> list[Slot]:
        instances, capacity = self.random.randint(1, 2), self.random.choice([1.0, 1.0, 2.0])
        return [Slot(f"{worker}.{i}", worker, f"node-{worker % self.nodes}", capacity) for i in range(instances)]

    def add(self) -> str:
        worker = max([*self.workers, *self.gone]) + 1
        self.workers[worker] = self._worker(worker)
        return f"add {worker}"

    def drop(self) -> str:
        if len(self.workers) == 1:
            return self.add()
        worker = self.random.choice(list(self.workers))
        self.gone[worker] = self.workers.pop(worker)
        return f"drop {worker}"

    def resurrect(self) -> str:
        if not self.gone:
            return self.add()
        worker = self.random.choice(list(self.gone))
        self.workers[worker] = self.gone.pop(worker)
        return f"resurrect {worker}"

    def change_load(self) -> str:
        vnode = self.random.randrange(self.vnodes)
        self.loads[vnode] = Load(self.loads[vnode].rate * self.random.choice([0.1, 3.0]), self.loads[vnode].bytes * 2)
        return f"vnode {vnode} now has {self.loads[vnode]}"

    def round(self) -> int:
        """Plan, and carry out what may be; how many vnodes still differ from the plan that was made."""
        planned = plan(self.slots, self.loads, self.placed, self.replicas)
        assert_valid(self.slots, planned, self.vnodes, self.replicas)
        alive = {slot.instance for slot in self.slots}
        differ = [v for v in range(self.vnodes) if self.placed[v] != planned[v]]
        # A group that lost a member is mended at once; what is moved for balance waits for its turn.
        broken = [v for v in differ if not alive.issuperset((self.placed[v].leader, *self.placed[v].replicas))]
        movable = [v for v in differ if v not in broken]
        self.random.shuffle(movable)
        for vnode in [*broken, *movable[: self.limit]]:
            self.placed[vnode] = planned[vnode]
        self.history.append(f"  {len(broken)} mended, {len(movable)} differ, of which {self.limit} may move")
        return len(movable)

    def settle(self) -> None:
        """Rounds until the plan is what is: as many as the limit asks for, and some for plans that change on the way."""
        bound = 2 * -(-self.vnodes // self.limit) + 4
        for _ in range(bound):
            if self.round() == 0:
                break
        else:
            raise AssertionError(f"no rest after {bound} rounds")
        assert_valid(self.slots, self.placed, self.vnodes, self.replicas)
        assert highest(self.slots, self.placed, self.loads) <= reachable(self.slots, self.loads)


def run(seed: int, events: int) -> None:
    harness = Harness(seed)
    choices: list[Callable[[], str]] = [harness.add, harness.drop, harness.resurrect, harness.change_load]
    try:
        for _ in range(events):
            harness.history.append(harness.random.choice(choices)())
            for _ in range(harness.random.randint(0, 2)):
                harness.round()
            if harness.random.random() < 0.5:
                harness.settle()
        harness.settle()
    except BaseException:
        print("\n".join(harness.history))
        raise


@pytest.mark.parametrize("seed", range(25))
def test_placements_converge(seed: int) -> None:
    run(seed, events=8)
