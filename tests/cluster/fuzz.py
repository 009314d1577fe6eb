"""Random jobs with random faults against the oracle: `python -m tests.cluster.fuzz --seeds N --from S`.

Every case has to end with exit code 0, the oracle's rows, and no process left: whatever is killed here comes back to its
own files, so no schedule may lose state. A failure prints its seed and keeps all files of the run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import runner

STAGES = ("begin", "ingest", "prepare", "commit", "emit", "sink")


@dataclass(frozen=True)
class Case:
    """One random run."""

    seed: int
    workload: str
    events: int
    args: dict[str, Any]
    sets: tuple[str, ...]
    at: tuple[str, ...]

    def command(self) -> str:
        """As a user would type it."""
        words = [f"ferry run examples/{self.workload}.yaml --events {self.events}"]
        words += [f"--set {one}" for one in (*runner.sets_of(self.args), *self.sets)]
        words += [f"--at '{one}'" for one in self.at]
        return " ".join(words)


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"cluster {seed}")
    workload = draw.choice(["nbq5", "nbq5", "nb7", "nbq8", "nbq8", "ysb", "q5"])
    epochs = draw.randint(6, 12)
    events = epochs * draw.choice([20_000, 40_000, 60_000])
    args: dict[str, Any] = {"seed": draw.randint(1, 1000)}
    if draw.random() < 0.5:
        args["rate"] = draw.choice([200, 1000, 5000])
    if draw.random() < 0.5:
        args["group"] = draw.choice([100, 1000])
    if draw.random() < 0.4:
        args["delay_prob"] = draw.choice([0.01, 0.2])
    if draw.random() < 0.5:
        args["keys"] = draw.choice(["uniform", "zipf", "pareto"])
        args["domain"] = draw.choice([10, 1000, 100_000])
    if workload == "nbq8":
        args["window_ms"] = draw.choice([20_000, 60_000, 43_200_000])
        args["proportions"] = draw.choice(["1,3,46", "10,30,10"])
    if workload == "q5":
        args["slide_ms"] = draw.choice([5_000, 20_000])
    workers, instances = draw.choice([1, 2, 2, 3]), draw.choice([1, 1, 1, 2])
    replicas, vnodes = draw.choice([0, 1, 1, 1, 2]), draw.choice([4, 16, 64, 256])
    sets = [
        f"workers={workers}", f"instancesPerWorker={instances}", f"state.replicas={replicas}",
        f"state.virtualNodes={vnodes}", f"epoch.maxRows={events // epochs}",
    ]  # fmt: skip
    if draw.random() < 0.4:
        sets += ["handover.strategy=" + draw.choice(["fluid", "batched"]), f"handover.batch={draw.choice([1, 4, 16])}"]
    if draw.random() < 0.3:
        sets.append("handover.bandwidth=" + draw.choice(["256Ki", "4Mi"]))
    if draw.random() < 0.3:
        sets.append("failure.timeout=1200ms")
    if draw.random() < 0.2:
        sets.append("state.memory=16Mi")
    if draw.random() < 0.3:
        sets.append("epoch.interval=" + draw.choice(["500ms", "1s"]))
    at = _schedule(draw, epochs, workers, instances, vnodes)
    return Case(seed, workload, events, args, tuple(sets), tuple(at))


def _schedule(draw: random.Random, epochs: int, workers: int, instances: int, vnodes: int) -> list[str]:
    """Actions in order of epochs, each naming only what will be there."""
    at = []
    for epoch in sorted(draw.randint(0, epochs) for _ in range(draw.randint(1, 6))):
        kind = draw.choices(
            ["workers", "instances", "kill-worker", "kill-instance", "kill-driver", "move", "drain"],
            [3, 1, 3, 4, 2, 2, 1],
        )[0]
        one = f"{draw.randrange(workers)}.{draw.randrange(instances)}"
        value = {
            "workers": f"={draw.randint(1, 4)}", "instances": f"={draw.randint(1, 2)}",
            "kill-worker": f"={draw.randrange(workers)}", "kill-instance": f"={one}", "kill-driver": "",
            "move": f"={draw.randrange(vnodes)}:{one}", "drain": f"={draw.randrange(workers)}",
        }[kind]  # fmt: skip
        if kind == "workers":
            workers = int(value[1:])
        elif kind == "instances":
            instances = int(value[1:])
        at.append(f"epoch={epoch}:{draw.choice(STAGES)} {kind}{value}")
    return at


def check(case: Case, base: Path) -> str | None:
    """Run a case; what is wrong, or None."""
    sets = [*runner.sets_of(case.args), *case.sets]
    result = runner.run(case.workload, base, case.events, sets, case.at)
    wrong = []
    if result.code != 0:
        wrong.append(f"exit code {result.code}")
    if result.left:
        wrong.append(f"left behind: {result.left}")
    missing, extra = runner.difference(case.workload, case.events, case.args, result.output, base)
    if missing or extra:
        wrong.append(f"missing {len(missing)} {missing[:3]}, unexpected {len(extra)} {extra[:3]}")
    if result.code == 0 and result.summary.get("rows", -1) < 0:
        wrong.append("no summary")
    return f"{'; '.join(wrong)}\n{result.story(25)}" if wrong else None


def main() -> int:
    """Run the seeds one after another."""
    parser = argparse.ArgumentParser(prog="tests.cluster.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--directory", type=Path, default=None, help="where the files of failed runs are kept")
    asked = parser.parse_args()
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="ferry-fuzz-"))
    failed = []
    for seed in range(asked.first, asked.first + asked.seeds):
        case, base = case_of(seed), directory / str(seed)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        print(f"seed {seed}: {case.command()}", flush=True)
        try:
            wrong = check(case, base)
        except Exception:
            wrong = traceback.format_exc()
        if wrong is None:
            shutil.rmtree(base)
            print(f"seed {seed}: right", flush=True)
            continue
        failed.append(seed)
        print(f"seed {seed}: WRONG: {wrong}\nfiles: {base}", flush=True)
        print(f"again: python -m tests.cluster.fuzz --seeds 1 --from {seed}", flush=True)
    print(f"{asked.seeds - len(failed)} of {asked.seeds} right" + (f"; wrong: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
