"""Ferry's side: `ferry deploy`, also while processes are killed, and moves; or suspended and run again.

Every life of a job has its own directory, and all have one store of checkpoints.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from bench.parts.reprogram import exact, programs
from bench.parts.reprogram.case import MIGRATE, NBQ5, PROGRAMS, SMQ, Act, Bench, Refused, Reprogrammed, acted, keys_of
from bench.shared import bigstate
from bench.shared.ferry_job import FERRY, FerryJob, Record, RunFailed, environment, job_document
from bench.shared.ferry_paced import ORIGIN, TARGET, last_switched, latencies
from ferry.contract.errors import FerryError
from ferry.contract.latency import LatencyHistogram
from ferry_operator.local.deploys import LocalDeploys

DEPLOY, RESTART, KILLED = "ferry", "ferry-restart", "ferry-killed"
TITLES = {DEPLOY: "Ferry", RESTART: "Ferry, restart", KILLED: "Ferry, killed"}
END = "in force"
KILLS = (
    ("worker", "checking"), ("driver", "checking"), ("worker", "loading"), ("driver", "loading"),
    ("worker", END), ("driver", END),
)  # fmt: skip
"""The process that is killed in each act, in turns, and the phase of the deploy."""
NAME = "reprogram"
LOST = "deploy it again"
"""A part of the message of `ferry deploy` when the driver died before it had journaled the program."""

REFUSED = 2
"""Exit code of a program that cannot be deployed, or run."""

FILL_SECONDS, DEPLOY_SECONDS = 1800.0, 900.0


def measure(bench: Bench, query: str, act: str, *, system: str) -> Reprogrammed:
    """Run it through all its acts, then count what came out."""
    with ExitStack() as stack:
        return Lives(bench, query, act, system, stack).measure()


class Lives:
    """A job; a restart begins another life of it."""

    def __init__(self, bench: Bench, query: str, act: str, system: str, stack: ExitStack) -> None:
        self.bench, self.a, self.query, self.act, self.system, self.stack = bench, bench.a, query, act, system, stack
        self.work = bench.work / system
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        self.programs, self.keys = PROGRAMS[query, act], keys_of(query, bench.a.size)
        self.lives: list[FerryJob] = []
        self.changes: list[exact.Change] = []
        self.phases: list[str] = []

    def measure(self) -> Reprogrammed:
        """All of it."""
        self._begin(self.programs[0])
        if self.keys:
            self.run.wait_for(lambda: self._rows() > self.keys + self.a.rate, "all keys", FILL_SECONDS)
        self.run.wait_for(lambda: bool(latencies(self.run.records)), "the first latencies")
        many = (
            len(KILLS) + 1 if self.system == KILLED and not self.a.quick else None
        )  # The last program has the column.
        begin, acts, end = acted(self.bench, self._wait, self._acted, many)
        self._suspend()
        records = [record for life in self.lives for record in life.records]
        outputs = sorted(r["end"] for r in records if r["kind"] == "epoch" and r["rows"] and r["end"] <= end)
        steps = [(r["t"], LatencyHistogram(dict(r["counts"]))) for r in latencies(records)]
        checked = "; ".join([self._checked(records), *([f"killed: {', '.join(self.phases)}"] if self.phases else [])])
        return Reprogrammed(TITLES[self.system], self.query, self.act, begin, end, acts, outputs, steps, checked)

    @property
    def run(self) -> FerryJob:
        """The present life."""
        return self.lives[-1]

    def _begin(self, program: str, *sets: str) -> FerryJob:
        file = self._file(program)
        document = job_document(
            NAME, {"file": str(file), "args": programs.arguments(self.query, self.a.rate, self.keys)}, workers=2,
            cores=self.a.cores,
            state={
                "virtualNodes": self.a.vnodes, "replicas": 1,
                "checkpoint": {"location": str(self.work / "store"), "every": self.a.checkpoint},
            },
            epoch={
                "mode": "continuous", "interval": self.a.interval,
                "maxRows": max(self.a.rate * 2, bigstate.FILL_ROWS if self.keys else 20_000),
            },
        )  # fmt: skip
        life = FerryJob(document, self.work / f"life-{len(self.lives)}", sets=sets)
        self.lives.append(life)
        return self.stack.enter_context(life)

    def _file(self, program: str) -> Path:
        file = self.work / f"{program}.py"
        file.write_text(programs.text(program))
        return file

    def _rows(self) -> int:
        return sum(e["rows"] for e in self.run.epochs())

    def _wait(self, until: float) -> None:
        self.run.wait_for(lambda: time.time() >= until, "the end of a pause", 3600)

    def _acted(self, number: int) -> Act:
        program = self.programs[1 - number % 2]
        if self.system == RESTART:
            return self._restart(program)
        if self.system == KILLED:
            return self._killed(program, number)
        if self.act == MIGRATE:
            return self._migrate(*((ORIGIN, TARGET) if number % 2 == 0 else (TARGET, ORIGIN)))
        return self._deploy(program)

    def _deploy(self, program: str, meanwhile: Callable[[], None] = lambda: None) -> Act:
        """`meanwhile` is called until the command has ended."""
        file, asked = self._file(program), time.time()
        command = [*FERRY, "deploy", NAME, str(file), "--json", "--wait", str(DEPLOY_SECONDS)]
        more = {"FERRY_HOME": str(self.run.home)}

        def is_over() -> bool:
            meanwhile()
            return process.poll() is not None

        with subprocess.Popen(
            command, env={**environment(), **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            self.run.wait_for(is_over, "the end of `ferry deploy`", DEPLOY_SECONDS + 60)
            text = process.stdout.read() if process.stdout is not None else ""
        if process.returncode == REFUSED:
            raise Refused(text.strip())
        if process.returncode and LOST in text:
            return replace(self._deploy(program), asked=asked)
        if process.returncode:
            raise RunFailed(f"`ferry deploy` ended with {process.returncode}: {text[-2000:]}")
        since = int(json.loads(text[text.index("{") :])["since"])
        return self._changed(program, asked, since)

    def _killed(self, program: str, number: int) -> Act:
        """Kill a process in a phase of the deploy. If the phase was too short to be seen, kill at its end."""
        what, wanted = KILLS[number % len(KILLS)]
        programs_of, seen = LocalDeploys(self.run.directory), list[str]()

        def kill(phase: str) -> None:
            seen.append(phase)
            self.run.kill("1" if what == "worker" else what)

        def look() -> None:
            if not seen and wanted != END:
                with suppress(FerryError):
                    if (phase := programs_of.programs()[0]["state"]) == wanted:
                        kill(phase)

        act = self._deploy(program, look)
        if not seen:
            kill(END)
        self.phases.append(f"{what} {seen[0]}")
        self._settled()
        return act

    def _settled(self) -> None:
        def is_settled() -> bool:
            status = self.run.status()
            return status is not None and bool(status["settled"])

        self.run.wait_for(is_settled, "the end of the repair", 600)

    def _changed(self, program: str, asked: float, since: int) -> Act:
        """The program is in force when its first epoch that has records ends."""

        def first() -> Record | None:
            return next((e for e in self.run.epochs() if e["epoch"] >= since and e["rows"]), None)

        self.run.wait_for(lambda: first() is not None, f"epoch {since}", 300)
        found = first()
        assert found is not None
        self.changes.append(exact.Change(since, program))
        return Act(asked, float(found["end"]))

    def _migrate(self, origin: str, target: str) -> Act:
        vnodes, asked = [v for v, (there, _) in enumerate(self.run.groups()) if there[0] == origin], time.time()
        moving = vnodes[: max(1, len(vnodes) // 2)]
        self.run.ask("POST", "/move", {"vnodes": moving, "instance": target})
        deadline = time.monotonic() + 300
        while any(self.run.groups()[v][0][0] != target for v in moving):
            if time.monotonic() > deadline:
                raise RunFailed(f"{len(moving)} virtual nodes did not come to {target}\n{self.run.log_end()}")
            self._wait(time.time() + 0.1)
        self._wait(time.time() + 0.1)  # Until the timeline has the last switch.
        return Act(asked, last_switched(self.run, asked))

    def _restart(self, program: str) -> Act:
        asked = time.time()
        self._suspend()
        last = max((e["epoch"] for e in self.run.epochs()), default=0)
        shutil.rmtree(self.run.directory / "workers", ignore_errors=True)
        run = self._begin(program, "restoreFrom=latest")
        try:
            run.wait_for(lambda: any(e["epoch"] > last and e["rows"] for e in run.epochs()), "output after a restart")
        except RunFailed as failed:
            if run.process.poll() == REFUSED:
                raise Refused(run.log_end()) from failed
            raise
        return self._changed(program, asked, last + 1)

    def _suspend(self) -> None:
        self.run.ask("POST", "/suspend", {})
        deadline = time.monotonic() + 600
        while self.run.process.poll() is None:
            self.run.poll()
            if time.monotonic() > deadline:
                raise RunFailed(f"the job is not suspended\n{self.run.log_end()}")
            time.sleep(0.01)
        self.run.poll()

    def _checked(self, records: list[Record]) -> str:
        wanted = exact.spans(records, self.programs[0], self.changes)
        if self.query == SMQ:
            return exact.numbers([life.output / "numbers" for life in self.lives], wanted)
        count = exact.counts if self.query == NBQ5 else exact.pairs
        return count(self.work / "store", NAME, self.keys, wanted, killed=self.system == KILLED)
