"""Random jobs with random faults against the oracle: `python -m tests.cluster.fuzz --seeds N --from S`.

Every case has to end with exit code 0, the oracle's rows, and no process left: whatever is killed here comes back to its
own files, so no schedule may lose state. A failure prints its seed and keeps all files of the run.

Some lose everything at once, and begin again with each of their checkpoints; with `--lost` all do. Others have hostile input
and hostile code (`tests.cluster.hostile`); with `--hostile` all have. Others change their program while they run
(`tests.cluster.deploying`); with `--deploys` all do.

With `--minutes M`, cases are begun for so long, two at a time; without `--from`, they begin where the commit says.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import moving
from tests.cluster import deploying, graph, hostile, runner
from tests.cluster.queries import DISORDERED, JOBS, KEYED, UNIQUE_IDS, Query, workload_of
from tests.cluster.wires import Wires

GRAPH = "graph"
DRAWN = {**JOBS, GRAPH: Query(share=3, keys=UNIQUE_IDS, sinks=graph.NAMES)}
"""The papers' queries, and operators in a graph that none of them has."""

STAGES = ("begin", "ingest", "prepare", "commit", "emit", "sink")


@dataclass(frozen=True)
class Disturbance:
    """What no schedule of `ferry run` can do, begun when an epoch has ended."""

    epoch: int
    kind: str
    """cut (a wire between two instances), stand (an instance stands still), full (a worker's disk), sink (it refuses)"""
    what: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        lasting = "for good" if math.isinf(self.seconds) else f"for {self.seconds:g} s"
        return " ".join([f"epoch={self.epoch}", self.kind, *self.what, lasting])


@dataclass(frozen=True)
class Loss:
    """All processes and their files go, and the job begins again with each checkpoint that is there, the newest first."""

    epoch: int
    seconds: float
    """After this epoch has ended."""
    every: str
    sizes: tuple[tuple[str, ...], ...]
    """Of the runs that begin with a checkpoint."""

    def __str__(self) -> str:
        return f"epoch={self.epoch} +{self.seconds:.1f} s all is lost, a checkpoint every {self.every}"


@dataclass(frozen=True)
class Case:
    """One random run."""

    seed: int
    query: str
    events: int
    args: dict[str, Any]
    sets: tuple[str, ...]
    at: tuple[str, ...]
    disturbances: tuple[Disturbance, ...]
    loss: Loss | None = None

    def command(self) -> str:
        """As a user would type it."""
        file = "tests/cluster/pipelines/graph.py" if self.query == GRAPH else f"examples/{self.query}.yaml"
        words = [f"ferry run {file} --events {self.events}"]
        words += [f"--set {one}" for one in (*runner.sets_of(self.args), *self.sets)]
        words += [f"--at '{one}'" for one in self.at]
        words += [f"({one})" for one in (*self.disturbances, *([self.loss] if self.loss else []))]
        return " ".join(words)


def case_of(seed: int, lost: bool = False) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"cluster {seed}")
    name = draw.choices([*DRAWN], [query.share for query in DRAWN.values()])[0]
    query, workload = DRAWN[name], "nexmark" if name == GRAPH else workload_of(name)
    epochs = draw.randint(6, 12)
    events = epochs * draw.choice([20_000, 40_000, 60_000])
    args: dict[str, Any] = {"seed": draw.randint(1, 1000)}
    if draw.random() < 0.5:
        args["rate"] = draw.choice(query.rates)
    if workload in DISORDERED and draw.random() < 0.5:
        args["group"] = draw.choice([100, 1000])
    if workload in DISORDERED and draw.random() < 0.4:
        args["delay_prob"] = draw.choice([0.01, 0.2])
    if workload in KEYED and draw.random() < 0.5:
        args["keys"] = draw.choice(query.keys)
        args["domain"] = draw.choice([query.least_domain, 1000, 100_000])
    args |= {argument: draw.choice(values) for argument, values in query.args.items()}
    workers, instances = draw.choice([1, 2, 2, 3]), draw.choice([1, 1, 1, 2])
    replicas, vnodes = draw.choice([0, 1, 1, 1, 2]), draw.choice([4, 16, 64, 256])
    sets = [
        f"workers={workers}", f"instancesPerWorker={instances}", f"state.replicas={replicas}",
        f"state.virtualNodes={vnodes}", f"epoch.maxRows={events // epochs}",
    ]  # fmt: skip
    if draw.random() < 0.4:
        strategy = draw.choice(["fluid", "batched", "optimized"])
        sets += [f"handover.strategy={strategy}", f"handover.batch={draw.choice([1, 4, 16])}"]
        sets += ["handover.switchovers=2"] * (draw.random() < 0.3)
    if draw.random() < 0.25:
        sets.append("handover.warm=false")
    if draw.random() < 0.3:
        sets.append("handover.bandwidth=" + draw.choice(["256Ki", "4Mi"]))
    if draw.random() < 0.3:
        sets.append("failure.timeout=1200ms")
    if draw.random() < 0.2:
        sets.append("state.memory=16Mi")
    if draw.random() < 0.3:
        sets.append("epoch.interval=" + draw.choice(["500ms", "1s"]))
    at = _schedule(draw, epochs, workers, instances, vnodes)
    disturbances = _disturbances(draw, epochs, workers, replicas)
    if disturbances:
        sets.append("epoch.interval=1s")
    loss = _loss(random.Random(f"loss {seed}"), epochs, disturbances, lost)
    if loss:
        sets.append("epoch.interval=1s")
    sets.append("epoch.mode=" + random.Random(f"mode {seed}").choice(["auto", "micro-batch"]))
    return Case(seed, name, events, args, tuple(sets), tuple(at), tuple(disturbances), loss)


def _loss(draw: random.Random, epochs: int, disturbances: list[Disturbance], lost: bool) -> Loss | None:
    """Not where a folder of the state is a disk of its own."""
    if not (lost or draw.random() < 0.15) or any(one.kind == "full" for one in disturbances):
        return None
    sizes = []
    for _ in range(2):
        workers, instances = draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
        replicas = draw.choice([0, 1, 2])
        sizes.append((f"workers={workers}", f"instancesPerWorker={instances}", f"state.replicas={replicas}"))
    return Loss(draw.randrange(2, epochs - 1), draw.uniform(0, 2), draw.choice(["1s", "2s"]), tuple(sizes))


def _disturbances(draw: random.Random, epochs: int, workers: int, replicas: int) -> list[Disturbance]:
    """At most one of a kind. A cut for good only where a third instance reaches both, and each has a copy elsewhere."""
    found = []
    for kind in draw.choices(["cut", "stand", "full", "sink", ""], [2, 2, 1, 2, 3], k=2):
        what: tuple[str, ...] = ()
        seconds = float(draw.choice([3, 10, 25]))
        if kind == "cut":
            if workers < 2:
                continue
            what = tuple(f"{k}.0" for k in draw.sample(range(workers), 2))
            seconds = math.inf if workers > 2 and replicas and draw.random() < 0.5 else seconds
        elif kind == "stand":
            what = (f"{draw.randrange(workers)}.0",)
        elif kind == "full":
            if os.geteuid() != 0:
                continue
            what = (str(draw.randrange(workers)),)
        if kind and kind not in {t.kind for t in found}:
            found.append(Disturbance(draw.randrange(epochs), kind, what, seconds))
    return sorted(found, key=lambda t: t.epoch)


class Disturbances:
    """Makes the disturbances of one run."""

    def __init__(self, case: Case, base: Path, wires: Wires) -> None:
        self.case, self.base, self.wires = case, base, wires

    def __call__(self, running: runner.Running) -> None:
        """Until the last one is over, or the run."""
        for disturbance in self.case.disturbances:
            with contextlib.suppress(TimeoutError):
                running.await_epoch(disturbance.epoch)
                getattr(self, f"_{disturbance.kind}")(running, disturbance)

    def _wait(self, running: runner.Running, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(seconds)

    def _cut(self, running: runner.Running, disturbance: Disturbance) -> None:
        self.wires.cut(*disturbance.what)
        if not math.isinf(disturbance.seconds):
            self._wait(running, disturbance.seconds)
            self.wires.heal()

    def _stand(self, running: runner.Running, disturbance: Disturbance) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError):  # it was just killed, or its worker released
            pid = running.instance(disturbance.what[0])
            os.kill(pid, signal.SIGSTOP)
            self._wait(running, disturbance.seconds)
            os.kill(pid, signal.SIGCONT)

    def _full(self, running: runner.Running, disturbance: Disturbance) -> None:
        ballast = runner.fill(self.base / "state" / "workers" / disturbance.what[0])
        self._wait(running, disturbance.seconds)
        ballast.unlink(missing_ok=True)  # its worker may have been released meanwhile

    def _sink(self, running: runner.Running, disturbance: Disturbance) -> None:
        """Where the folder of the sink was, something else stands in the way."""
        folder = running.output / (DRAWN[self.case.query].sinks or (self.case.query,))[0]
        aside = running.output / ".aside"
        with contextlib.suppress(FileNotFoundError):
            aside.write_text("in the way")
            runner.swap(folder, aside)
            self._wait(running, disturbance.seconds)
            runner.swap(folder, aside)


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
    wires = Wires()
    with contextlib.ExitStack() as stack:
        stack.callback(wires.close)
        full = [t.what[0] for t in case.disturbances if t.kind == "full"]
        for worker in full:
            stack.enter_context(runner.disk(base / "state" / "workers" / worker, "1g"))
        sets += [f"state.directory={base / 'state'}"] if full else []
        meanwhile = Disturbances(case, base, wires)
        job = graph.job(base, case.args) if case.query == GRAPH else case.query
        if case.loss is not None:
            return _lost(case, case.loss, job, base, sets, wires)
        result = runner.run(job, base, case.events, sets, case.at, meanwhile, wires=wires)
    return _wrong(case, base, result)


def _lost(case: Case, loss: Loss, job: Path | str, base: Path, sets: list[str], wires: Wires) -> str | None:
    """Run, lose everything, and begin again with what there is; what is wrong, or None."""
    location = base / "store"
    sets = [*sets, f"state.checkpoint.location={location}"]
    file = job if isinstance(job, Path) else runner.ROOT / "examples" / f"{job}.yaml"
    first = [*sets, f"state.checkpoint.every={loss.every}", "state.checkpoint.keep=2"]
    running = runner.start(file, base, case.events, first, case.at, wires)
    with ThreadPoolExecutor(1) as pool:  # a disturbance ends with the run, and may still be there when it does
        disturbed = pool.submit(Disturbances(case, base, wires), running)
        try:
            running.await_epoch(loss.epoch, runner.TIMEOUT_SECONDS)
            time.sleep(loss.seconds)
            if running.process.poll() is not None:
                print(f"seed {case.seed}: it had ended before all was lost", flush=True)
                return _wrong(case, base, runner.finish(running))
        finally:
            runner.lose_everything(running)
    disturbed.result()
    wires.heal()
    found = runner.manifests(location)
    print(f"seed {case.seed}: lost, with checkpoints {found}", flush=True)
    for number, size in zip(reversed(found), loss.sizes, strict=False):
        again = [*sets, *size, f"restoreFrom={number}", "state.checkpoint.keep=100", "epoch.interval=0s"]
        if wrong := _wrong(case, base, runner.run(job, base, case.events, again, wires=wires)):
            return f"from checkpoint {number} with {size}: {wrong}"
        shutil.rmtree(base / "home")
    return None


def _wrong(case: Case, base: Path, result: runner.Result) -> str | None:
    wrong = []
    if result.code != 0:
        wrong.append(f"exit code {result.code}")
    if result.left:
        wrong.append(f"left behind: {result.left}")
    if case.query == GRAPH:
        missing, extra = graph.difference(case.events, case.args, result.output, base)
    else:
        missing, extra = runner.difference(case.query, case.events, case.args, result.output, base)
    if missing or extra:
        wrong.append(f"missing {len(missing)} {missing[:3]}, unexpected {len(extra)} {extra[:3]}")
    if result.code == 0 and result.summary.get("rows", -1) < 0:
        wrong.append("no summary")
    return f"{'; '.join(wrong)}\n{result.story(25)}" if wrong else None


def attempt(seed: int, directory: Path, kind: str = "") -> bool:
    """Run the case of a seed; tells about it, and whether it was right. `kind`: an option's name; empty: as the seed says."""
    drawn = kind or random.Random(f"kind {seed}").choice(["", "", "hostile", "deploys"])
    others = {"hostile": hostile.case_of, "deploys": deploying.case_of}
    case: Any = others[drawn](seed) if drawn in others else case_of(seed, drawn == "lost")
    base = directory / str(seed)
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    print(f"seed {seed}: {case.command()}", flush=True)
    began = time.monotonic()
    try:
        wrong = {"hostile": hostile.check, "deploys": deploying.check}.get(drawn, check)(case, base)
    except Exception:
        wrong = traceback.format_exc()
    if wrong is None:
        shutil.rmtree(base)
        print(f"seed {seed}: right, {time.monotonic() - began:.0f} s", flush=True)
        return True
    print(f"seed {seed}: WRONG: {wrong}\nfiles: {base}", flush=True)
    print(f"again: python -m tests.cluster.fuzz --seeds 1 --from {seed}{f' --{kind}' if kind else ''}", flush=True)
    return False


def main() -> int:
    """Run the seeds, and say which ones were not right."""
    parser = argparse.ArgumentParser(prog="tests.cluster.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=None, help="begin cases for so long, two at a time")
    parser.add_argument("--from", type=int, default=None, dest="first", help="the first seed; else the commit says it")
    parser.add_argument("--directory", type=Path, default=None, help="where the files of failed runs are kept")
    parser.add_argument("--lost", action="store_true", help="every case loses everything, and begins again")
    parser.add_argument("--hostile", action="store_true", help="every case has hostile input and hostile code")
    parser.add_argument("--deploys", action="store_true", help="every case changes its program while it runs")
    parser.add_argument("--at-once", type=int, default=None, help="cases at the same time; 2 with --minutes, else 1")
    asked = parser.parse_args()
    kind = "lost" if asked.lost else "hostile" if asked.hostile else "deploys" if asked.deploys else ""
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="ferry-fuzz-"))
    first = moving.first_seed() if asked.first is None else asked.first
    print(f"seeds from {first}", flush=True)
    until = time.monotonic() + 60 * asked.minutes if asked.minutes else math.inf
    seeds = itertools.count(first) if asked.minutes else iter(range(first, first + asked.seeds))
    done: dict[int, bool] = {}

    def work() -> None:
        while time.monotonic() < until and (seed := next(seeds, None)) is not None:
            done[seed] = attempt(seed, directory, kind)

    at_once = asked.at_once or (2 if asked.minutes else 1)
    with ThreadPoolExecutor(at_once) as pool:
        for one in [pool.submit(work) for _ in range(at_once)]:
            one.result()
    failed = sorted(seed for seed, right in done.items() if not right)
    print(f"{len(done) - len(failed)} of {len(done)} right" + (f"; wrong: {failed}" if failed else ""))
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
