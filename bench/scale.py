"""`make bench-scale`: costs that grow with the number of workers and virtual nodes, with the keys of a state, and with time.

`epoch`: the cost of an epoch for the driver and an instance, by simulated workers and virtual nodes. `table`: the size of
a routing table, and the time of a change. `growth`: how long one step blocks the loop of an instance while its state
grows. `endurance`: memory, descriptors and threads of a real job with fifty epochs a second.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench.parts.scale import endurance, epoch, growth, table
from bench.shared.ferry_job import RESULTS
from bench.shared.results import Results

METHOD = """\
epoch: real Coordinator, real state machine of one instance, real wire formats, no network and no data; one instance a \
worker, 1 replica, two fragments a helper; processor time of the steps, of encoding and of decoding messages. table: 2 \
replicas, one worker lost: the table as the journal has it, the change that is sent to members, and the processor time \
to write and read it, to index it, and to plan new placements for random loads. growth: the real state of one instance \
takes epochs of 50,000 new keys each, integers, and then does all upkeep; each step of its loop is timed alone, by the \
clock (which also counts other programs on the machine) and in processor time. No log, no replicas. Results: the \
longest step of any kind in each tenth of the keys. endurance: NBQ5 at a fixed rate on 2 workers with 1 replica, \
continuous epochs; /proc of all processes of the run every 5 s."""

PARTS = {"epoch": epoch.measure, "table": table.measure, "growth": growth.measure, "endurance": endurance.measure}


def main() -> int:
    """Parse arguments and measure; returns 1 if a result breaks its limit."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("parts", nargs="*", help=f"parts to measure: {', '.join(PARTS)}; all by default")
    p.add_argument("--json", type=Path, default=RESULTS / "scale.json", help="records; pictures are put beside it")
    p.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[10, 100, 400, 1000],
        help="epoch, table: numbers of simulated workers",
    )
    p.add_argument(
        "--table", type=int, nargs="+", default=[64, 1024, 8192, 32768], help="epoch, table: numbers of virtual nodes"
    )
    p.add_argument("--epochs", type=int, default=3, help="epoch: number of measured epochs")
    p.add_argument("--minutes", type=float, default=60.0, help="endurance: duration; Ctrl-C ends it early")
    p.add_argument("--interval", default="20ms", help="endurance: shortest interval of epochs")
    p.add_argument("--rate", type=int, default=2_000, help="endurance: arrivals a second")
    p.add_argument("--vnodes", type=int, default=16, help="growth, endurance: virtual nodes of the job")
    p.add_argument(
        "--keys", type=float, default=50e6, help="growth: final number of keys; each needs 200 bytes of disk"
    )
    p.add_argument("--kind", choices=growth.KINDS, default="unbounded", help="growth: integer or text keys")
    p.add_argument("--max-ms", type=float, default=200.0, help="growth: longest allowed time of a step")
    p.add_argument("--directory", type=Path, help="growth: folder for the state")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if unknown := set(a.parts) - set(PARTS):
        p.error(f"no part is called {', '.join(sorted(unknown))}")
    if a.quick:
        a.workers, a.table, a.minutes, a.keys = [10, 40], [64, 256], 0.5, 500_000
    # Also where a shell has set it aside, as it does for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console, results = Console(highlight=False), Results("scale", METHOD)
    good = [PARTS[part](a, console, results) for part in a.parts or PARTS]
    results.write(a.json)
    console.print(f"records: {a.json}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
