"""The whole cluster in one thread: hosts, drivers, network, journal, Spark's logs and the sink, all from one seed."""

from __future__ import annotations

import copy
import heapq
from collections import deque
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Fragment, InstanceId, Step, Term, worker_of
from ferry.contract.plans import Plan
from ferry.contract.programs import Programs, first_program, program_at
from ferry.contract.results import NO_RESULT
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as dcore
from ferry.protocol import instance as icore
from ferry.protocol.rules import Rules
from ferry.protocol.story import short
from tests.sim import checks, data, faults
from tests.sim.driver import Driver
from tests.sim.events import Clock, Dice, Net
from tests.sim.host import Files, Host
from tests.sim.links import Story
from tests.sim.restores import Restores
from tests.sim.spark import Spark
from tests.sim.store import Store

HEALED = 1_200
"""From this time on no new fault occurs."""
PATIENCE = 25_000
"""Time that a healed world may take to finish."""

NEED_ROOM = ("LogDelta", "Apply", "LoadChunk")
"""Effects that fail on a full disk."""


class World(Restores):
    """One seed."""

    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        verbose: bool = False,
        off: tuple[str, ...] = (),
        scenario: faults.Scenario | None = None,
    ) -> None:
        """`off`: guards of the simulated driver and store that are removed, like rules; their names are attributes. `scenario`: in
        place of the scenario of the seed."""
        self.seed, self.rules, self.verbose = seed, rules or Rules(), verbose
        self.rnd = Dice(f"world/{seed}")
        self.code = Dice(f"code/{seed}")
        self.code_fails = self.code.choice((0.0, 0.0, 0.0, 0.0, 0.1, 0.3))
        """How often the user's code fails."""
        s = self.scenario = scenario or faults.draw(seed)
        self.vnodes, self.epochs = s.vnodes, s.epochs
        self.graphs = dict(enumerate((s.graph, *(graph for _, graph in s.deploys)), 1))
        """By number of the program."""
        nodes = {node.id: node for graph in self.graphs.values() for node in graph}
        self.timers = [i in nodes and nodes[i].timers for i in range(max(nodes) + 1)]
        """By id of the operator."""
        self.since: dict[int, int] = {}
        """By number: the first epoch of each program that is, or was, in force."""
        self.wanted = 1
        """The newest program that is to be deployed."""
        self.derived = set[int]()
        """Altered operators of all deploys."""
        self.programs = Dice(f"loads/{seed}")
        self.keys, self.splits, self.varied = s.keys, s.splits, s.varied
        self.settings = dcore.CoordinatorSettings(
            attempt_ms=s.attempt_ms, commit_ms=80, grace_ms=30 * (seed % 2), return_ms=3_000, start_ms=300,
            warm_ms=3_000, plan_ms=(300, 2_000, 1_800_000)[seed % 3], backoff_ms=100, backoff_max_ms=800, silence_ms=300 if s.pulses else 1 << 40, retry_ms=1_000,
            retry_max_ms=4_000, apart_ms=6_000, code_waits_ms=(20,) * 50,
            load_ms=2_000, load_again_ms=100,
        )  # fmt: skip
        self.clock = Clock()
        self.after = self.clock.after
        self.net = Net(self.clock, self.rnd, s.weather, self.deliver)
        self.story: Story = Loud() if verbose else deque(maxlen=64)
        self.counts: dict[str, int] = {}
        """Number of effects so far, by kind, for kinds with a fault in `planned`."""
        self.planned: dict[tuple[str, int], faults.Fault] = {}
        names = [f"{w}.{i}" for w in range(s.workers + s.spare) for i in range(s.per_worker)]
        self.hosts = {name: Host(self, name) for name in names}
        self.initial = self.first_table()
        self.journal: Table | None = None
        self.journal_up = True
        self.writer = ""
        self.sink: dict[int, tuple[int, tuple[list[Any], ...]]] = {}
        self.spark = Spark(s.epochs, self.rnd)
        self.stored, self.store = bool(s.disasters), Store(self)
        self.unbegun = sum(what != "file" for what, _ in s.disasters)
        self.compares_offsets = "compares_offsets" not in off
        """Whether a new driver makes Spark's log agree with the state."""
        self.keeps_tombs = "keeps_tombs" not in off
        self.takes_owed = "takes_owed" not in off
        """Whether a receipt counts only for a share that its loop owes."""
        self.scans_whole = "scans_whole" not in off
        """Whether a checkpoint waits for the scans that it contains."""
        self.collects_pinned_last = "collects_pinned_last" not in off
        """Whether a collection reads the pins after the manifests."""
        self.looks_after_pinning = "looks_after_pinning" not in off
        """Whether a restore looks for the manifest after it has set its pin."""
        self.rewinds = "rewinds" not in off
        """Whether a restore cuts Spark's log and the sinks at the checkpoint."""
        self.derives_chunks = "derives_chunks" not in off
        """Whether a learner derives the rows of altered operators from a snapshot that began before the table."""
        self.derives_late_deltas = "derives_late_deltas" not in off
        """Whether a learner derives them from a delta of the program before that comes after the table."""
        self.sends_altered_first = "sends_altered_first" not in off
        """Whether a snapshot has the rows of altered operators before the rows that a learner would derive them from."""
        self.drops_taken_back = "drops_taken_back" not in off
        """Whether derived rows go with a program that is taken back, before another try derives them again."""
        self.waits_out = "waits_out" not in off
        """Whether a copy without a snapshot waits until the earlier rows of its leader are final."""
        self.plans: dict[int, Plan] = {}
        self.desired: Plan | None = None
        self.drivers: dict[str, Driver] = {}
        self.driver: Driver | None = None
        self.done = ""
        self.apart = {}
        self.checks = checks.Checks(self)

    def first_table(self) -> Table:
        s = self.scenario

        def chain(v: int) -> tuple[InstanceId, ...]:
            index = v // s.workers % s.per_worker
            return tuple(InstanceId(f"{(v + k) % s.workers}.{index}") for k in range(1 + s.replicas))

        groups = tuple(Group(Term(0, 0), chain(v)) for v in range(s.vnodes))
        return Table(Version(0, 0), groups, initial=True, programs=first_program(len(self.scenario.graph)))

    # ---- running
    def run(self) -> str:
        """Run until the job is done, or has stopped for a good reason. Raises Violation or Livelock."""
        for name in self.hosts:
            there = worker_of(InstanceId(name)) < self.scenario.workers
            self.start(name) if there else self.after(self.rnd.randint(1, 300), self.start, name)
        self.new_driver()
        for f in self.scenario.faults:
            if f.place:
                self.planned[(f.place, f.count)] = f
                self.counts[f.place] = 0
            else:
                self.clock.at(f.time, self.strike, f, None)
        for number, time in enumerate(self.scenario.desired, 1):
            self.clock.at(time, self.desire, number)
        for number, (time, _) in enumerate(self.scenario.deploys, 2):
            self.clock.at(time, self.deploy, number)
        for what, time in self.scenario.disasters:
            self.clock.at(
                time, self.lose_file if what == "file" else self.disaster, *([] if what == "file" else [what])
            )
        self.clock.at(HEALED, self.heal)
        clock, heap = self.clock, self.clock.heap
        while not self.done:
            if heap and clock.now > HEALED + PATIENCE and self.no_helper():
                self.done = "apart"  # Only epochs without data end, and they reset the driver's deadlines.
                break
            if heap and clock.now > HEALED + PATIENCE and all(host.frozen for host in self.hosts.values()):
                self.done = "away"  # A driver that has begun again asks instances that stand still for longer.
                break
            if not heap or clock.now > HEALED + PATIENCE:
                raise checks.Livelock(
                    f"not finished at {clock.now} ms, spark {self.spark.ended() + 1} of {self.epochs}"
                )
            clock.now, _, do, args = heapq.heappop(heap)
            do(*args)
        if self.done == "finished":
            self.checks.end()
            self.look_at_the_store()
        return self.done

    def note(self, who: str, what: Any) -> None:
        self.story.append((self.clock.now, who, what))

    def heal(self) -> None:
        self.net.fair = True
        self.planned, self.counts = {}, {}
        self.journal_up = True

    def quiet(self) -> bool:
        return self.clock.now > max([0, *self.scenario.desired]) + 50 and not self.unbegun and not self.suspends

    def hold_back(self, epoch: int) -> bool:
        """Whether an epoch waits, so that faults occur in an idle job, too."""
        return epoch >= 3 and self.clock.now < epoch * 25

    def finish(self, epoch: int) -> None:
        self.done = "finished"

    # ---- faults
    def before(self, kind: str, who: Any) -> str:
        """Called before every effect; returns the fate of its process, or an empty text."""
        if kind in NEED_ROOM and isinstance(who, Host) and who.full_until > self.clock.now:
            self.to_driver(who, "", m.Failed(InstanceId(who.name), "its disk is full"))
            return "fails"
        if kind not in self.counts:
            return ""
        n = self.counts[kind] = self.counts[kind] + 1
        f = self.planned.pop((kind, n), None)
        if f is None:
            return ""
        return self.strike(f, who)

    def strike(self, f: faults.Fault, who: Any) -> str:
        fate = ""
        for what in (f.what, *f.also):
            self.note("fault", f"{what} {getattr(who, 'name', '')} {f.length} ms")
            fate = self.inflict(what, f, who) or fate
        return fate

    def mates(self, host: Host) -> list[Host]:
        """All instances of its worker."""
        return [h for h in self.hosts.values() if h.name.split(".")[0] == host.name.split(".")[0]]

    def inflict(self, what: str, f: faults.Fault, who: Any, length: int = 0) -> str:
        rnd = self.rnd
        host = who if isinstance(who, Host) else rnd.choice(list(self.hosts.values()))
        driver = who if isinstance(who, Driver) else self.driver
        if what in ("worker", "loseworker", "backup"):
            # The process that performs the effect comes last: the caller ends it.
            one = {"worker": "crash", "loseworker": "lose", "backup": "rollback"}[what]
            length = rnd.randint(20, 200)
            for mate in self.mates(host):
                if mate is not host:
                    self.inflict(one, f, mate, length)
            return self.inflict(one, f, host, length)
        if what in ("crash", "lose"):
            if not host.alive:
                return ""
            older = any(h.stale for h in self.hosts.values())
            if what == "lose" and self.may_lose(host) and (not older or self.noticed(host)):
                host.lost_at = self.clock.now
            self.after(f.length + 2, self.start, host.name)
            if host is who:
                return "torn"
            self.crash(host)
        elif what == "full":
            host.full_until = self.clock.now + f.length
        elif what == "slow":
            host.long_computes += 1
        elif what == "freeze" and host.alive:
            # A job that has not begun waits for its first workers without a limit.
            begun = self.journal is not None and not self.journal.initial
            host.stand(f.length if begun else min(f.length, 1500), frozen=True)
        elif what == "twin" and host.alive and host.ways is None and not host.with_earlier_life and self.may_lose(host):
            self.double(host, f.length)
        elif what == "forget" and (self.driver is None or not self.driver.alive):
            self.spark.forget()
        elif what == "apart":
            self.separate(*rnd.sample(sorted(self.hosts), 2))
        elif what == "rollback" and host.alive and self.may_lose(host):
            self.after(length or rnd.randint(20, 200), self.roll_back, host, copy.deepcopy(host.files))
        elif what in ("driver", "zombie") and driver is not None and driver.alive:
            if driver is self.driver:
                self.driver = None
                self.after(rnd.choice((1, 10, 60)), self.new_driver)
            if what == "driver":
                if driver is who:
                    return "dead"
                self.kill_driver(driver)
            elif rnd.random() < 0.5:
                for h in rnd.sample(list(self.hosts.values()), rnd.randint(0, len(self.hosts))):
                    self.sever(driver.name, h.name, f.length)
        elif what in ("partition", "suspect") and driver is not None:
            self.sever(driver.name, host.name, f.length if what == "partition" else 3)
        elif what == "cut":
            a, b = rnd.sample(sorted(self.hosts), 2)
            self.sever(a, b, f.length)
        elif what == "journal":
            self.journal_up = False
            if driver is not None:
                self.after(1, driver.take, dcore.JournalReachable(False))
            self.after(f.length, self.journal_back)
        return ""

    def roll_back(self, host: Host, files: Files) -> None:
        """Restart an instance with older files."""
        if host.alive and host.ways is None and self.may_lose(host) and self.noticed(host):
            self.crash(host)
            host.files, host.lost_at, host.stale = files, self.clock.now, True

    def noticed(self, host: Host) -> bool:
        """Whether Spark or another in-sync copy has the last epoch of the sink.

        If all files and Spark's log are equally old, no process can notice the loss. A learner may have newer state, but no new
        driver waits for its answer.
        """
        given = max(self.checks.emitted_label.values(), default=None)
        if given is None or given.step.epoch <= self.spark.ended():
            return True
        assert self.journal is not None
        in_sync = {i: True for x in self.journal.groups for i in x.in_sync if i != host.name}
        known = [self.hosts[i].files.saved.committed for i in in_sync]
        return any(commit_id is not None and commit_id >= given for commit_id in known)

    def may_lose(self, host: Host) -> bool:
        """Files are lost only if every virtual node has another living in-sync copy, unless the scenario allows it.

        The table that is being written to the journal counts, too: it may remove the other copy.
        """
        if self.scenario.losing or self.journal is None:
            return self.journal is not None
        tables = [x for x in (self.journal, *(d.core.journaling.writing for d in self.drivers.values())) if x]
        return all(
            any(i != host.name and self.hosts[i].alive and self.hosts[i].lost_at < 0 for i in x.in_sync)
            for table in tables
            for x in table.groups
            if host.name in x.in_sync
        )

    # ---- life and death
    def start(self, name: str) -> None:
        host = self.hosts[name]
        if host.alive:
            return
        self.note(name, "starts")
        for other in self.hosts.values():
            if other.alive:
                self.restore(name, other.name)
        host.start()
        for driver in list(self.drivers.values()):
            if driver.alive and host.alive:
                self.connect(driver, host)

    def crash(self, host: Host) -> None:
        if not host.alive:
            return
        if host.ways is not None:
            self.end_earlier(host)
            return
        host.alive = False
        self.net.held = {k: x for k, x in self.net.held.items() if k[0] != host.name}
        if host.lost_at == self.clock.now:
            if host.files.saved.committing is not None and self.rnd.random() < 0.8:
                host.files.log = {}  # Files of different ages: the commit record is the newest.
            else:
                host.files = Files()
        self.note(host.name, "is down")
        for other in (*self.hosts, *self.drivers):
            if other != host.name:
                self.sever(other, host.name, 1 << 40)
        if not any(entry[2] == self.start and entry[3] == (host.name,) for entry in self.clock.heap):
            self.after(50 << min(host.failures, 4), self.start, host.name)

    def new_driver(self) -> None:
        if self.driver is not None and self.driver.alive:
            return
        if self.begins_anew and self.journal is None:
            self.begin_anew()
        else:
            self.new_driver_now()

    def new_driver_now(self) -> None:
        name = f"driver{len(self.drivers)}"
        driver = Driver(self, name)
        self.drivers[name] = driver
        if not driver.alive:
            self.after(20, self.new_driver)
            return
        self.driver = driver
        for host in self.hosts.values():
            if host.alive:
                self.after(self.rnd.choice((0, 1, 5, 30, 200, 200)), self.connect, driver, host)

    def kill_driver(self, driver: Driver) -> None:
        if not driver.alive:
            return
        driver.alive = False
        self.note(driver.name, "is dead")
        for name in self.hosts:
            self.sever(driver.name, name, 1 << 40)
        if driver is self.driver:
            self.driver = None
            self.after(self.rnd.choice((1, 10, 60)), self.new_driver)

    def halted(self, driver: Driver, kind: str, reason: str) -> None:
        if kind == "superseded":
            known = [self.journal.version.generation] if self.journal is not None else []
            if max([*known, *(h.files.saved.generation for h in self.hosts.values())]) < driver.generation:
                raise checks.Violation(f"{driver.name} halts without a successor: {reason}")
            self.kill_driver(driver)
        elif kind == "failed" and self.journal is not None and self.journal.origin != driver.core.table.origin:
            self.kill_driver(driver)
        elif kind == "unrestorable" and self.store.lost:
            self.kill_driver(driver)
            self.done = kind
        elif kind in ("unavailable", "away") and self.store.manifests and self.no_copy() and self.somebody():
            self.swap(driver)
        elif kind in ("unavailable", "away", "lost-epoch", "failed") and (self.no_copy() or self.no_helper()):
            self.kill_driver(driver)
            if driver is self.driver or self.driver is None:
                self.done = kind
        elif driver is self.driver or kind == "failed":
            raise checks.Violation(f"{driver.name} halts: {kind}: {reason}")
        else:
            self.kill_driver(driver)

    def no_copy(self) -> bool:
        """Whether a virtual node has no in-sync member left that runs, is reachable, and has its files and free disk."""
        assert self.journal is not None
        return any(
            all(
                h.lost_at >= 0 or h.full_until > self.clock.now or h.frozen or not h.alive
                for h in map(self.hosts.get, x.in_sync)
                if h
            )
            for x in self.journal.groups
        )

    def somebody(self) -> bool:
        """Whether an instance could load a checkpoint."""
        return any((h.alive and not h.frozen) or h.lost_at >= 0 for h in self.hosts.values())

    def no_helper(self) -> bool:
        """Whether no instance reaches a member of every group, because some instances stay apart."""
        assert self.journal is not None
        there = [h.name for h in self.hosts.values() if h.alive]
        return bool(self.apart) and not any(
            all(any(i in there and frozenset((i, h)) not in self.apart for i in x.in_sync) for x in self.journal.groups)
            for h in there
        )

    # ---- the journal
    def journal_write(self, driver: Driver, effect: dcore.Journal) -> None:
        if (not driver.alive and self.rnd.random() < 0.5) or driver.run != self.run_number:
            return
        if not self.journal_up:
            if driver.alive:
                self.after(10, self.journal_write, driver, effect)
            return
        now = self.journal.version if self.journal else None
        if now == effect.expected:
            before, self.journal, self.writer = self.journal, effect.table, driver.name
            self.checks.journaled(before, effect.table)
        elif now != effect.table.version or self.writer != driver.name:
            assert now is not None
            self.after(self.rnd.randint(1, 5), driver.take, dcore.JournalRefused(str(now), self.journal))
            return
        self.after(self.rnd.randint(1, 5), driver.take, dcore.Journaled(effect.table.version))

    def journal_back(self) -> None:
        self.journal_up = True
        for driver in self.drivers.values():
            driver.take(dcore.JournalReachable(True))

    # ---- placements that the operator wants
    def desire(self, number: int) -> None:
        rnd = self.rnd
        if rnd.random() < 0.3 and self.desired is not None:
            placements = tuple(x.in_sync for x in self.initial.groups)  # A -> B -> A
        else:
            there = sorted({name.split(".")[0] for name in self.hosts})
            some = rnd.sample(there, rnd.randint(min(2, len(there)), len(there)))
            size = min(len(some), 1 + rnd.choice((0, 1, 1, 2)))
            per = self.scenario.per_worker
            placements = tuple(
                tuple(InstanceId(f"{w}.{rnd.randrange(per)}") for w in rnd.sample(some, size))
                for _ in range(self.vnodes)
            )
        if self.desired is not None and faults.hurries(self.seed, number):
            self.desired = Plan(number, self.desired.placements)
        else:
            self.desired = faults.plan(self.seed, number, placements, self.scenario.batch)
        self.plans[number] = self.desired
        if self.driver is not None:
            self.driver.take(self.desired)

    # ---- programs
    def deploy(self, number: int = 0) -> None:
        """Deploy a program; without a number: what is wanted and not in force, for a new driver."""
        self.wanted = max(self.wanted, number)
        driver, newest = self.driver, 1 if self.journal is None else self.journal.programs[-1].number
        if driver is None or not driver.ready or newest >= self.wanted:
            return
        ids = tuple(node.id for node in self.graphs[self.wanted])
        at = self.spark.ended() + self.programs.choice((0, 0, 0, 1, 2, 4))
        ran = {n for n, result in enumerate(driver.core.commits.results) if result != NO_RESULT}
        ran |= {n for program in driver.core.table.programs for n in program.operators}
        altered = data.derivations(self.graphs[self.wanted], ran)
        # Another id has the name of an operator whose state was derived for a program that was taken back.
        if {*ids} & (self.derived - ran - {after for after, _ in altered}):
            return
        self.derived |= {after for after, _ in altered}
        driver.take(dcore.Deploy(self.wanted, ids, b"", at, altered, newest))

    def deployed(self, driver: Driver, effect: dcore.Deployed) -> None:
        """A program is in force, or refused: then it is deployed again, or given up."""
        if not effect.refused:
            if self.journal is None or self.since.get(effect.number) is None:
                self.checks.fail(f"{effect} is not in the journal")
            if self.programs.random() < 0.4:
                self.after(self.programs.randint(0, 25), driver.take, dcore.Withdraw(effect.number))
        elif effect.number == self.wanted and driver is self.driver:
            if self.programs.random() < 0.8:
                self.after(50, self.deploy)

    def graph_at(self, epoch: int) -> data.Graph:
        """The operators of an epoch."""
        return self.graphs[max((n for n, since in self.since.items() if since <= epoch), default=1)]

    def node_of(self, programs: Programs, step: Step) -> data.Node:
        """The operator of a step, for an instance that knows these programs."""
        return self.graphs[program_at(programs, step.epoch).number][step.operator]

    def ordinal(self, step: Step) -> int:
        """Number of steps before this one."""
        return sum(len(self.graph_at(epoch)) for epoch in range(step.epoch)) + step.operator

    def staged_event(self, fragment: Fragment) -> icore.Staged:
        return icore.Staged(fragment)


class Loud(Story):
    """Prints each event when it happens."""

    def append(self, line: tuple[int, str, Any]) -> None:
        time, who, what = line
        if type(what) is not icore.Tick:
            print(f"{time:6} {who:9} {short(what)}")
