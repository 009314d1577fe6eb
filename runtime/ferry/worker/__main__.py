"""`python -m ferry.worker RUN_JSON --worker K`: offer task slots to the driver that the registry names, until
SIGTERM."""

from __future__ import annotations

import argparse
import sys

from ferry import environment
from ferry.contract.settings import RunSettings
from ferry.system import logs
from ferry.worker.follower import Follower


def main() -> int:
    """Parse arguments, run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="ferry.worker")
    parser.add_argument("run_json")
    parser.add_argument("--worker", type=int, required=True)
    args = parser.parse_args()
    settings = RunSettings.read(args.run_json)
    logs.begin(f"%(asctime)s {settings.run} w{args.worker} %(levelname)s %(message)s")
    return Follower(settings, args.worker, environment.read()).run()


if __name__ == "__main__":
    sys.exit(main())
