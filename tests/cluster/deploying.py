"""Random deploys and rollbacks of one job, with moves, scalings, kills and restores; `tests.cluster.fuzz` runs them.

What must hold: the job ends well; its output is what the programs of its epochs write, as the timeline names them; a bad
program is refused or taken back; and a good one is in force in the end.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import threading
import time
import urllib.error
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferry.contract.errors import FerryError, Unreachable
from ferry_operator.local import program as copies
from ferry_operator.local.deploys import LocalDeploys
from tests.cluster import runner
from tests.cluster.program_oracle import Oracle
from tests.cluster.programs import FAILING, Program, programs_of
from tests.patience import PATIENCE

SETTLED = ("in force", "over", "refused")
STEP_SECONDS = 120.0
STAGES = ("begin", "ingest", "prepare", "commit", "emit", "sink")


@dataclass(frozen=True)
class Step:
    """One change of the program, and what happens meanwhile."""

    kind: str
    """deploy, rollback (to the program before), withdraw (a rollback while a deploy is under way), shadow, keep"""
    program: int = 0
    at: int = 0
    """not before this epoch"""
    action: str = ""
    """driver, or the name of a worker or an instance: killed; workers=N; move=VNODE:INSTANCE; checkpoint;
    state: all workers and their files go, and the job begins again with its newest checkpoint"""
    after: float = 0.0
    """seconds from the request to the action"""
    beside: int = 0
    """epochs of a shadow, or seconds for which the program before is kept"""
    back: bool = False
    """roll back to the kept program"""

    def __str__(self) -> str:
        what = f"deploy {self.program}" if self.kind != "rollback" else "rollback"
        what += f" at {self.at}" * bool(self.at) + " and withdraw" * (self.kind == "withdraw")
        what += f" --{self.kind} {self.beside}" * bool(self.beside) + " and roll back" * self.back
        return what + f" [{self.action} +{self.after:.1f} s]" * bool(self.action)


@dataclass
class Case:
    """One random job."""

    seed: int
    pace: int
    seconds: int
    """0: without an end, the job is stopped"""
    programs: list[Program]
    steps: list[Step]
    sets: list[str]
    kills: list[str]
    """of the driver, at a stage of an epoch"""
    lost_after: int | None
    """all is lost after this step, and the job goes on from a checkpoint"""

    def command(self) -> str:
        """In one line."""
        words = [f"deploys: {self.pace} records/s for {self.seconds or 'ever'} s"]
        words += [f"--set {one}" for one in self.sets] + [f"--at '{one}'" for one in self.kills]
        words += [f"({', '.join(map(str, self.steps))})"]
        words += [f"lost after step {self.lost_after}"] * (self.lost_after is not None)
        return " ".join(words) + "".join(f"\n    {n}: {one}" for n, one in enumerate(self.programs))


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"deploys {seed}")
    count = draw.randint(4, 7)
    programs = programs_of(draw, count + 1)
    workers, vnodes = draw.choice([1, 2, 2, 3]), draw.choice([4, 16, 32])
    lost_after = draw.randrange(1, count - 1) if draw.random() < 0.25 else None
    gone_at = draw.randint(2, count) if lost_after is None and draw.random() < 0.25 else None
    sets = [f"workers={workers}", f"state.replicas={draw.choice([0, 1, 1])}", f"state.virtualNodes={vnodes}", "cores=1"]
    sets += [
        f"instancesPerWorker={draw.choice([1, 1, 1, 2])}",
        f"epoch.mode={draw.choice(['auto', 'auto', 'micro-batch'])}",
    ]
    if draw.random() < 0.5 or lost_after is not None:
        sets.append(f"epoch.interval={draw.choice(['100ms', '300ms', '1s'])}")
    if draw.random() < 0.3:
        sets.append("failure.timeout=1200ms")
    if draw.random() < 0.2 and lost_after is None:
        sets.append("driver.standby=true")
    steps, kills = [], []
    for number in range(1, count + 1):
        kind = draw.choices(["deploy", "rollback", "withdraw", "shadow", "keep"], [8, 2, 1, 3, 3])[0]
        beside = draw.randint(3, 15) if kind in ("shadow", "keep") else 0
        at, action = 0, draw.choice(_actions(draw, workers, vnodes)) if draw.random() < 0.6 else ""
        if kind == "deploy" and draw.random() < 0.25:
            at, action = 8 * number + draw.randint(0, 8), ""
            kills += [f"epoch={at}:{draw.choice(STAGES)} kill-driver"] * (draw.random() < 0.7)
        if number == gone_at:
            at, action = 0, "state"
        after, back = draw.choice([0.0, draw.uniform(0, 1), draw.uniform(0, 5)]), kind == "keep" and draw.random() < 0.6
        if number == gone_at and beside:  # Most often while both programs run.
            after = draw.uniform(2, 12)
        steps.append(Step(kind, number, at, action, after, beside, back))
    seconds = draw.choice([0, 0, 30, 60]) if lost_after is None else 0
    return Case(seed, draw.choice([300, 1500, 4000]), seconds, programs, steps, sets, kills, lost_after)


def _actions(draw: random.Random, workers: int, vnodes: int) -> list[str]:
    one = f"{draw.randrange(workers)}"
    return [
        "driver", "driver", one, f"{one}.0", f"workers={draw.randint(1, 3)}", f"move={draw.randrange(vnodes)}:{one}.0",
        "checkpoint",
    ]  # fmt: skip


@dataclass
class Play:
    """A case that is played: the first run, and the run that goes on from a checkpoint."""

    case: Case
    base: Path
    running: runner.Running = field(init=False)
    files: list[Path] = field(default_factory=list)
    known: dict[Any, Program] = field(default_factory=dict)
    """by folder and arguments"""
    numbers: dict[int, Program] = field(default_factory=dict)
    """of this run"""
    both: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Of a program that runs beside another one: the number of that one, and whether that one is written."""
    since: dict[int, Program] = field(default_factory=dict)
    """by first epoch, of runs before this one"""
    not_written: dict[int, Program] = field(default_factory=dict)
    """The same, of programs that ran beside these and were not written."""
    restored: int | None = None
    """the last epoch of the checkpoint that it went on from"""
    wrong: list[str] = field(default_factory=list)

    @property
    def deploys(self) -> LocalDeploys:
        """The port to the run. Raises Unreachable while there is none."""
        if (directory := self.running.directory) is None:
            raise Unreachable("no run yet")
        return LocalDeploys(directory)

    def start(self, program: int, more: list[str]) -> None:
        """Begin a run with a program."""
        one, file = self.case.programs[program], self.base / "job.yaml"
        spec = {"pipeline": {"file": str(self.files[program]), "args": {"pace": self.case.pace, "plus": one.plus}}}
        file.write_text(
            json.dumps(
                {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "numbers"}, "spec": spec}
            )
        )
        events = self.case.pace * self.case.seconds or None
        kills = [] if more and "restoreFrom" in more[-1] else self.case.kills
        self.running = runner.start(file, self.base, events, [*self.case.sets, *more], kills)
        self.running.await_epoch(2)
        self.numbers = {}

    def over(self) -> bool:
        """Whether the run has ended."""
        return self.running.process.poll() is not None

    def programs(self) -> list[dict[str, Any]]:
        """The programs that the driver lists, as soon as it answers; empty: the run has ended."""
        while not self.over():
            with suppress(FerryError):
                found = self.deploys.programs()
                for one in found:
                    if one["folder"] is None:
                        continue  # Of a restored checkpoint, whose other program had the text.
                    key = (Path(one["folder"]).name, one["arguments"]["plus"])
                    self.numbers[one["number"]] = self.known[key]
                    self.both.pop(one["number"], None)  # Of a deploy that its driver forgot.
                    if (other := one["beside"]) is not None:
                        self.both[one["number"]] = other["program"], other["shadow"] > 0
                return found
            time.sleep(0.3)
        return []

    def request(self, step: Step) -> int | None:
        """The number of the program that will be in force; None: there is none to go back to, or the run has ended."""
        until = time.monotonic() + PATIENCE * STEP_SECONDS
        while not self.over():
            try:
                if step.kind == "rollback":
                    return self.deploys.rollback(None)
                file, program = self.files[step.program], self.case.programs[step.program]
                if (directory := self.running.directory) is None:
                    raise Unreachable("the run ends")
                folder = copies.copy(None, str(file), directory)
                arguments = {"pace": self.case.pace, "plus": program.plus}
                return self.deploys.deploy(
                    {
                        "module": None,
                        "file": str(file),
                        "folder": folder,
                        "arguments": arguments,
                        "at": step.at,
                        **({step.kind: step.beside} if step.beside else {}),
                    }
                )
            except FerryError as error:
                if "no program was in force" in str(error):
                    return None
                assert time.monotonic() < until, f"{step}: {error}"
            time.sleep(0.3)
        return None

    def step(self, step: Step, is_last: bool) -> None:
        """One change of the program, until it is in force or refused. `is_last`: of a run of which all is lost: a program
        that runs beside another one is not awaited."""
        acting, asked_at = threading.Timer(step.after, self._act, [step.action]), time.time()
        number = self.request(step)
        acting.start()
        if number is None:
            acting.join()
            time.sleep(1.0)
            self.programs()
            return
        if step.kind == "withdraw":
            time.sleep(min(step.after, 1.0))
            self.request(Step("rollback"))
        until, state = time.monotonic() + PATIENCE * STEP_SECONDS, ""
        record: dict[str, Any] | None = None
        while not self.over():
            found = self.programs()
            record = next((one for one in found if one["number"] == number), None)
            if step.kind != "rollback" and step.kind != "withdraw" and record is not None:
                asked = self.case.programs[step.program]  # The next driver may use the number of a forgotten deploy.
                record = record if self.numbers[number] is asked else None
            state = record["state"] if record is not None else "forgotten" if found else ""
            if record is not None and state == "in force" and self._has_to_fail(step) and not record["failed"]:
                state = "failing"
            if state in SETTLED or (state == "forgotten" and self._has_new_driver(asked_at)):
                break
            if is_last and state == "shadow":
                acting.join()
                time.sleep(step.after)
                return
            if time.monotonic() > until:
                self.wrong.append(f"{step}: program {number} is {state!r} after {STEP_SECONDS:g} s")
                return
            time.sleep(0.2)
        acting.join()
        if step.kind == "keep" and state == "in force":
            if is_last:
                time.sleep(step.after)
                return
            self._keep(step, number)
        if step.kind in ("deploy", "shadow", "keep") and not self.over():
            bad = self.case.programs[step.program].bad
            if state == "forgotten":
                return  # the driver died before it had journaled the request
            if step.at and not bad and record is not None and (record["since"] or step.at) < step.at:
                self.wrong.append(f"{step}: in force from epoch {record['since']} on")
            if bad and state != "refused" and not (self._has_to_fail(step) and record and record["failed"]):
                self.wrong.append(f"{step}: the bad program {number} is {state}")
            reason = (record or {}).get("refused", "")
            if step.beside and ("still runs operators of" in reason or "open windows would not be written" in reason):
                return
            if "which runs beside another one: deploy it later" in reason:
                return  # A restore has led back to a program that runs beside another one.
            began_again = any(record["kind"] == "restore" for record in self.running.records())
            if began_again and "the job has lost its state" in reason and reason.endswith("deploy it again"):
                return  # It goes on with one of two programs first.
            if not bad and state == "refused":
                self.wrong.append(f"{step}: the good program {number} is refused: {(record or {}).get('refused')}")

    def _has_to_fail(self, step: Step) -> bool:
        """Whether code of a shadow fails: that is no refusal, but ends the shadow."""
        return step.kind == "shadow" and self.case.programs[step.program].bad in FAILING

    def _keep(self, step: Step, number: int) -> None:
        """Roll back to the kept program, or wait until it is not kept any more."""
        if step.back:
            time.sleep(step.beside / 4)
            if (back := self.request(Step("rollback"))) is not None and number in self.both:
                self.numbers.setdefault(back, self.numbers[self.both[number][0]])
        until = time.monotonic() + PATIENCE * STEP_SECONDS
        while not self.over():
            if any(one["number"] > number and one["state"] == "in force" for one in self.programs()):
                return
            if time.monotonic() > until:
                self.wrong.append(f"{step}: no program follows program {number} within {STEP_SECONDS:g} s")
                return
            time.sleep(0.3)

    def _has_new_driver(self, since: float) -> bool:
        return any(record["kind"] == "ready" and record["t"] > since for record in self.running.records())

    def _act(self, action: str) -> None:
        with suppress(urllib.error.HTTPError, OSError, StopIteration, ValueError):
            if action == "state":
                self._lose_state()
            elif action == "checkpoint":
                runner.ask(self.running, "POST", "/checkpoint", {})
            elif action.startswith("workers="):
                runner.ask(self.running, "PATCH", "/spec", {"workers": int(action[8:])})
            elif action.startswith("move="):
                vnode, instance = action[5:].split(":")
                runner.ask(self.running, "POST", "/move", {"vnodes": [int(vnode)], "instance": instance})
            elif action:
                runner.ask(self.running, "POST", "/kill", {"what": action})

    def _lose_state(self) -> None:
        self.running.await_that(lambda: bool(runner.manifests(self.base / "store")), "checkpoint", 60)
        assert self.running.directory is not None
        for folder in sorted(self.running.directory.glob("workers/*")):
            with suppress(AssertionError):
                self.running.signal(f"worker-{folder.name}", signal.SIGKILL)
        for folder in self.running.directory.glob("workers/*/*"):
            shutil.rmtree(folder, ignore_errors=True)

    def epochs(self, records: list[dict[str, Any]]) -> dict[int, Program]:
        """Programs by their first epoch, by the timeline of this run and of the run before it."""
        since, there = dict(self.since), in_force(records)
        for number, epoch in sorted(there.items()):
            # A number that was not seen yet: the driver has gone on without retired operators, with the same text.
            seen = max(n for n in self.numbers if n == number or (n < number and n in (1, *there)))
            alone = f"program {number} goes on alone"
            is_new = seen < number and any(alone in r["text"] for r in records if r["kind"] == "shadow")
            since[epoch] = self.numbers[seen if is_new else self._of(seen, True)]
        return since

    def _of(self, number: int, written: bool) -> int:
        """The program that is written, or not written, while this program runs."""
        other, writes = self.both.get(number, (number, True))
        return other if writes == written else number

    def silent(self, records: list[dict[str, Any]]) -> dict[int, Program]:
        """By first epoch: the programs that run beside others and are not written."""
        there = ((number, epoch) for number, epoch in in_force(records).items() if number in self.both)
        return self.not_written | {epoch: self.numbers[self._of(number, False)] for number, epoch in there}

    def lacks_windows(self, result: runner.Result) -> bool:
        """Whether the restore was refused because the program lacks an operator with open windows."""
        assert self.restored is not None
        named = re.search(r"has open windows of (.*), and this pipeline does not", result.story(25))
        last = self.since[max(self.since)]
        before = {use.name for one in self.since.values() for use in one.uses if use.kind == "windows"}
        lost = set(re.findall(r"'(\w+)'", named[1])) if named else set()
        return bool(lost) and lost <= before - {use.name for use in last.uses}

    def lose(self) -> None:
        """All processes and files of the run at once, in the middle of epochs; it goes on from its newest checkpoint."""
        store = self.base / "store"
        self.running.await_that(lambda: bool(runner.manifests(store)), "checkpoint", 60)
        self.programs()
        records = self.running.records()
        since, silent = self.epochs(records), self.silent(records)
        runner.lose_everything(self.running)
        number = runner.manifests(store)[-1]
        (manifest,) = (one for one in store.glob("*/manifests/*.json") if int(one.name.split("-")[0]) == number)
        epoch = json.loads(manifest.read_text())["commit_id"][0][0]
        last = max(one for one in since if one <= epoch)
        program = since[last]
        self.since, self.restored = {one: at for one, at in since.items() if one <= epoch}, epoch
        self.not_written, self.both = {one: at for one, at in silent.items() if one <= epoch}, {}
        if last in silent:  # Of two programs only the written one goes on.
            self.since[epoch + 1] = program
        print(f"seed {self.case.seed}: lost, goes on from checkpoint {number} of epoch {epoch}", flush=True)
        self.start(self.case.programs.index(program), [f"state.checkpoint.location={store}", f"restoreFrom={number}"])


def in_force(records: list[dict[str, Any]]) -> dict[int, int]:
    """First epoch by number of a program, but for programs that were taken back, or are after a restore."""
    out: dict[int, int] = {}
    for record in records:
        if record["kind"] == "deployed" and (
            found := re.search(r"program (\d+).* from epoch (\d+) on", record["text"])
        ):
            out[int(found[1])] = int(found[2])
        elif record["kind"] == "taken-back" and (found := re.match(r"program (\d+):", record["text"])):
            out.pop(int(found[1]), None)
        elif record["kind"] == "restore" and (found := re.search(r"checkpoint \d+ of epoch (\d+)", record["text"])):
            out = {number: epoch for number, epoch in out.items() if epoch <= int(found[1])}
    return out


def check(case: Case, base: Path) -> str | None:
    """Run a case; what is wrong, or None."""
    play = Play(case, base)
    for number, program in enumerate(case.programs):
        play.files.append(program.write(base / "programs" / f"größe {number}"))
        folder = copies.copy(None, str(play.files[-1]), base / "copies")
        play.known[(Path(folder).name, program.plus)] = program
    play.since = {0: case.programs[0]}
    location = f"state.checkpoint.location={base / 'store'}"
    restores = case.lost_after is not None or any(step.action == "state" for step in case.steps)
    play.start(0, [location, "state.checkpoint.every=2s"] if restores else [])
    try:
        for number, step in enumerate(case.steps):
            if play.over():
                break
            play.step(step, number == case.lost_after)
            if number == case.lost_after and not play.over():
                play.lose()
        _run_on(play)
        _end(play)
    except BaseException:
        runner.end(play.running)
        raise
    result = runner.finish(play.running)
    if play.restored is not None and result.code == 2 and play.lacks_windows(result):
        return None
    wrong = play.wrong
    wrong += [f"exit code {result.code}"] * (result.code != 0) + [f"left behind: {result.left}"] * bool(result.left)
    since = play.epochs(result.records)
    for record in result.kinds("restore"):
        play.restored = int(record["text"].partition(" of epoch ")[2].split(",")[0])
    wrong += Oracle(result.output, since, play.restored, play.silent(result.records)).wrong()
    told = {epoch: case.programs.index(one) for epoch, one in sorted(since.items())}
    shutil.rmtree(base / "copies", ignore_errors=True)
    return f"{'; '.join(wrong)}\nprograms by epoch {told}\n{result.story(25)}" if wrong else None


def _run_on(play: Play) -> None:
    """A few more epochs, which fire windows."""
    records = play.running.records()
    last = max((r["epoch"] for r in records if r["kind"] == "epoch"), default=0)
    with suppress(TimeoutError):
        play.running.await_epoch(last + 5, 60)
    play.programs()


def _end(play: Play) -> None:
    """Stop a run that would not end by itself."""
    until = time.monotonic() + 60
    while not play.case.seconds and not play.over() and time.monotonic() < until:
        with suppress(urllib.error.HTTPError, OSError, StopIteration, ValueError):
            runner.stop(play.running)
            return
        time.sleep(0.5)
