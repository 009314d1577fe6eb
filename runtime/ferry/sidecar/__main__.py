"""`python -m ferry.sidecar RUN_JSON --worker K`: a sidecar's parent. It ends with an `ExitCode`."""

from __future__ import annotations

import argparse

from ferry import environment
from ferry.contract.settings import RunSettings
from ferry.sidecar import forks
from ferry.sidecar.ending import end_with
from ferry.sidecar.instance import begin


def main() -> int:
    """Parse arguments, run until told to stop."""
    parser = argparse.ArgumentParser(prog="ferry.sidecar")
    parser.add_argument("run_json")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--instances", type=int, default=1)
    args = parser.parse_args()
    settings = RunSettings.read(args.run_json)
    begin(settings, args.worker)
    forks.begin()
    from ferry.sidecar.parent import Parent

    return Parent(settings, args.run_json, args.worker, args.instances, environment.read()).run()


if __name__ == "__main__":
    end_with(main)
