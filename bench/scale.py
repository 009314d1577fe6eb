"""`make bench-scale`: what grows with the number of workers and virtual nodes, with the keys of a state, and with time.

`epoch`: what an epoch costs the driver and an instance, by simulated workers and virtual nodes. `growth`: how long an
instance's loop stands at a time while its state grows. `endurance`: memory, descriptors and threads of a real job
with fifty epochs a second.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench.parts.scale import endurance
from bench.shared.ferry_job import RESULTS
from bench.shared.results import Results

METHOD = """\
endurance: NBQ5 at a pace on 2 workers with 1 replica, continuous epochs; /proc of all processes of the run every 5 s."""

PARTS = {"endurance": endurance.measure}


def main() -> int:
    """Parse arguments and measure; 1 when something is not as it should be."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("parts", nargs="*", help=f"which of {', '.join(PARTS)}; all when none is named")
    p.add_argument("--json", type=Path, default=RESULTS / "scale.json", help="records; pictures are put beside it")
    p.add_argument("--minutes", type=float, default=60.0, help="endurance: how long; Ctrl-C ends it before")
    p.add_argument("--interval", default="20ms", help="endurance: of epochs")
    p.add_argument("--rate", type=int, default=2_000, help="endurance: arrivals a second")
    p.add_argument("--vnodes", type=int, default=16, help="endurance: virtual nodes of the job")
    p.add_argument("--quick", action="store_true", help="small and once: to see that it works, not to measure")
    a = p.parse_args()
    if unknown := set(a.parts) - set(PARTS):
        p.error(f"no part is called {', '.join(sorted(unknown))}")
    if a.quick:
        a.minutes = 0.5
    # Also where a shell has set it aside, as it does for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console, results = Console(highlight=False), Results("scale", METHOD)
    good = [PARTS[part](a, console, results) for part in a.parts or PARTS]
    results.write(a.json)
    console.print(f"records: {a.json}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
