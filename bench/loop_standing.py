"""How long one step blocks the loop of an instance while its state grows, moves to another instance and is removed.

The real data of two instances in one process: deltas are applied epoch by epoch, a snapshot of one half is sent and loaded
chunk by chunk, then this half is dropped, the rest fires, and in the end all state expires. Every step of a loop is
timed alone, by the clock and in processor time: on a busy machine the clock also counts other programs. Every piece that
another thread reads is timed, too, because the loop may wait for this thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.shared.instance_loop import OPERATORS, Clock, Loop
from ferry.contract import limits
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.names import InstanceId
from ferry.kernels.columns import empty
from ferry.kernels.schemas import state_schema
from ferry.protocol import instance as core

LEADER, LEARNER = InstanceId("0.0"), InstanceId("1.0")
VNODES = 1024
ALL_TIME = EpochTimes(limits.WATERMARK_NONE, limits.WATERMARK_END)
OF_AN_EPOCH = {"compute", "apply of an epoch"}
"""These take longer when the epoch has more records."""


def move(leader: Loop, learner: Loop, clock: Clock) -> None:
    half = tuple(range(VNODES // 2))
    leader.perform("begin of a snapshot", core.BeginSnapshot(LEARNER, 1, half, None))
    while leader.data.scans:
        clock("two chunks of a snapshot", lambda: leader.data.scans.pump(2))
        for chunk, body in leader.sent:
            learner.data.receive(chunk, None if body is None else memoryview(body))
            learner.perform("load of a chunk", core.LoadChunk(chunk))
        leader.sent.clear()
        for loop in (leader, learner):
            clock("upkeep", loop.data.work)
    leader.perform("drop", core.Drop(half))
    leader.rest()
    learner.rest()
    assert not leader.state.statistics()["bytes"][: VNODES // 2].any()
    fire(leader)
    for loop in (leader, learner):
        loop.perform("release of everything", core.Forget(1, (limits.WATERMARK_END,)))
        loop.rest()


def fire(loop: Loop) -> None:
    """The work of the epoch that ends the window: in the loop, and in readers under the lock of the state."""
    vnodes, nothing = np.arange(VNODES), empty(state_schema(loop.descriptor))
    loop.clock("count of what fires", lambda: loop.state.will_fire(nothing, ALL_TIME, vnodes))
    fired = iter(loop.state.fired(ALL_TIME, vnodes))
    while loop.clock("piece of what fires", lambda: next(fired, None)) is not None:
        pass


def measure(kind: str, size: int, directory: Path) -> Clock:
    # As an instance does before its loop begins.
    _measured(kind, 1 << 20, directory / "warm")
    gc.collect()
    gc.freeze()
    return _measured(kind, size, directory)


def _measured(kind: str, size: int, directory: Path) -> Clock:
    clock = Clock()
    leader, learner = (Loop(name, kind, directory / name, clock, VNODES) for name in (LEADER, LEARNER))
    leader.fill(size)
    move(leader, learner, clock)
    return clock


def main() -> int:
    """Measure and print; returns 1 if a step took longer than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=OPERATORS, default="join")
    parser.add_argument("--mib", type=int, nargs="+", default=[256, 2048], help="sizes of the state in MiB")
    parser.add_argument("--max-ms", type=float, default=200.0)
    parser.add_argument("--directory", type=Path, help="folder for the state; needs three times its size")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    records, worst = [], 0.0
    for mib in args.mib:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            clock = measure(args.kind, mib << 20, Path(directory))
        print(f"{args.kind}, {mib} MiB of state, load {os.getloadavg()[0]:.1f}")
        for step, times in sorted(clock.steps.items(), key=lambda item: max(item[1]), reverse=True):
            clocked, computed = np.array(times).T * 1000
            if step not in OF_AN_EPOCH:
                worst = max(worst, clocked.max())
            print(
                f"  {step:26} {len(times):7} times, {clocked.sum() / 1000:8.2f} s in all,"
                f" longest {clocked.max():7.1f} ms, processor time {computed.max():7.1f} ms"
            )
            for metric, value in (("longest", clocked.max()), ("longest, of the processor", computed.max())):
                about = {
                    "benchmark": "loop_standing",
                    "case": step,
                    "metric": metric,
                    "value": float(value),
                    "unit": "ms",
                }
                records.append({**about, "kind": args.kind, "mib": mib, "load1": os.getloadavg()[0]})
    if args.json:
        args.json.write_text(json.dumps(records, indent=1))
    print(f"longest step of the loop for a move or for upkeep: {worst:.1f} ms, allowed {args.max_ms:.0f}")
    return int(worst > args.max_ms)


if __name__ == "__main__":
    sys.exit(main())
