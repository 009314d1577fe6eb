"""The coordinator's loop: events in, effects out, on one thread.

The driver's epoch function takes its work (ingest, emit, ready, halt) from `orders`.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ferry.channel.base import Lane, Message
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.errors import FerryError, Refusal
from ferry.contract.names import InstanceId, Term, driver_name
from ferry.contract.programs import first_program
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import RunSettings
from ferry.contract.timeline import append_record
from ferry.coordinator.journal import JournalWriter
from ferry.coordinator.members import Members
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.coordinator.multicast import Multicast
from ferry.protocol import coordinator as core
from ferry.protocol.io import Tick
from ferry.registry import JobRegistry, JournalStore

log = logging.getLogger("ferry.coordinator")

TICK_SECONDS = 0.05

FLUSH_SECONDS = 0.2
"""Time for sending the driver's last messages."""

Order = core.StartIngest | core.Emit | core.Ready | core.Halt | None
Hook = Callable[[int, str], None]
Begin = Callable[[Table | None, Table], tuple[Table, m.Commit | None]]
Rewind = Callable[["Loop"], bool]


class Loop:
    """Runs one Coordinator. `hook(epoch, stage)` is called right after Prepare and Commit were sent."""

    def __init__(
        self,
        settings: RunSettings,
        registry: JobRegistry,
        journal: JournalStore,
        operators: int,
        hook: Hook,
        ended: int = -1,
        begin: Begin = lambda journaled, initial: (initial, None),
        rewind: Rewind = lambda loop: True,
    ) -> None:
        """`begin(journaled, initial)` returns the first table of a new job and, if the table has an origin, its first
        commit. `rewind(loop)` is called, on a thread, once the journal holds that table of this driver: no older driver can
        write any more. It returns False when the job is to stop."""
        self.settings = settings
        self.registry = registry
        self.bandwidth = -1
        """bytes a second of copies, sent to instances with the next epoch; -1: unset"""
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._hook = hook
        self._rewind = rewind
        self._is_rewound = False
        self._inbox: queue.SimpleQueue[core.Event] = queue.SimpleQueue()
        self._journal = JournalWriter(journal)
        self.members = Members(settings.timeout_ms, registry, self.post)
        journaled = self._journal.read()
        initial, restore = begin(journaled, initial_table(settings, operators))
        patience = core.CoordinatorSettings(
            grace_ms=int(limits.GRACE_SECONDS * 1000),
            return_ms=settings.return_deadline_ms,
            silence_ms=limits.STANDSTILL_TIMEOUTS * settings.timeout_ms,
            ended=ended,
        )
        self.machine = core.Coordinator(patience, initial, journaled, restore=restore)
        # A unique name: the connections of a zombie must not replace the connections of the driver that took over.
        name = driver_name(self.machine.generation, secrets.token_hex(4))
        self._endpoint = TcpEndpoint(
            name, settings.run, settings.secret.encode(), self._on_message, self.members.opened, self.members.closed
        )
        self._multicast = Multicast()
        self.move_metrics = MoveMetrics()
        self.stages: dict[str, float] = {}
        """When the step under way reached a stage (monotonic seconds)."""
        self._round_at = time.monotonic()
        self.halt: core.Halt | None = None
        """The last order, once it was given."""
        self.on_publish: Callable[[core.Publish], None] = lambda effect: None
        self.on_deployed: Callable[[core.Deployed], None] = lambda effect: None
        self.on_code_fails: Callable[[core.CodeFails], object] = lambda effect: None
        self.ending = threading.Event()
        """The job is to end, by a halt or on request: code that waits within an epoch gives up."""

    def start(self) -> None:
        """Claim the generation and begin."""
        self._journal.start(self.post)
        self.members.start(self._endpoint)
        threading.Thread(target=self._run, name="coordinator", daemon=True).start()

    def post(self, event: core.Event) -> None:
        """Hand the loop an event; callable from any thread."""
        self._inbox.put(event)

    def swap(self, table: Table) -> None:
        """Put another table into the journal, once the coordinator has stopped. Raises Superseded or Unreachable."""
        self._journal.swap(table, self.machine.journaling.expected)
        # Instances that get it from this driver can begin while the next one starts; others get it from the next
        # driver.
        head = m.encode(m.Install(table))
        members = dict.fromkeys(i for group in table.groups for i in group.in_sync)
        channels = [*filter(None, map(self._endpoint.channel, members))]
        for channel in channels:
            with suppress(FerryError):
                channel.post(Lane.DELTA, m.CODES[m.Install], self.machine.generation, head)
        end = time.monotonic() + FLUSH_SECONDS
        for channel in channels:
            with suppress(FerryError):
                channel.flush(max(end - time.monotonic(), 0.0))

    def check_claim(self) -> None:
        """Raise Superseded when the journal has another driver's table by now, Unreachable when it cannot be read."""
        self._journal.check(self.machine.generation)

    def stop(self) -> None:
        """Stop waiting for orders."""
        self.ending.set()
        self.orders.put(None)

    def seconds_since_pass(self) -> float:
        """Seconds since the loop's last pass; callable from any thread."""
        return time.monotonic() - self._round_at

    def begins(self, epoch: int) -> None:
        """Ask the instances to pause copying while an epoch passes; callable from any thread."""
        begins = m.Begins(epoch, self.bandwidth, hears_code=True)
        for instance in list(self.machine.alive):
            self._send(core.Send(instance, begins))

    def _run(self) -> None:
        try:
            self._perform(self.machine.step(Tick(int(time.monotonic() * 1000))))
            self._perform(self.machine.start())
            tick_at = 0.0
            while True:
                try:
                    event = self._inbox.get(timeout=TICK_SECONDS)
                    if isinstance(event, core.Lost):
                        self.move_metrics.lost(event.instance, self.machine.table)
                    elif isinstance(event, core.Journaled) and self._to_rewind():
                        threading.Thread(target=self._rewind_sinks, args=(event,), name="rewind", daemon=True).start()
                        continue
                    self._perform(self.machine.step(event))
                except queue.Empty:
                    pass
                now = self._round_at = time.monotonic()
                if now >= tick_at:
                    tick_at = now + TICK_SECONDS
                    self._perform(self.machine.step(Tick(int(now * 1000))))
        except Exception as error:
            self.machine.story.attach(error)
            log.exception("the coordinator stops")
            self._give(core.Halt("bug", f"{type(error).__name__}: {error}"))

    def _to_rewind(self) -> bool:
        """Whether the journal holds this driver's claim, and a restore has to rewind sinks first."""
        claimed = self.machine.phase == core.Phase.JOURNAL and self.machine.journaling.table.restoring
        return claimed and not self._is_rewound

    def _rewind_sinks(self, claimed: core.Journaled) -> None:
        """Rewind sinks, which may take long, while the loop goes on; then post the claim."""
        try:
            if not self._rewind(self):
                return
        except BaseException as error:  # users' sinks may raise, or call sys.exit
            log.exception("the sinks cannot be rewound")
            kind = "refused" if isinstance(error, Refusal) else "failed" if isinstance(error, FerryError) else "bug"
            self._give(core.Halt(kind, str(error)))
            return
        self._is_rewound = True
        self.post(claimed)

    def _give(self, order: Order) -> None:
        self.orders.put(order)
        if isinstance(order, core.Halt):
            self.halt = order
            self.ending.set()

    def _perform(self, effects: list[core.Effect]) -> None:
        sent: m.Message | None = None
        now = int(time.monotonic() * 1000)
        for effect in effects:
            self.machine.story.add_effect(now, effect)
            match effect:
                case core.Send():
                    self._send(effect)
                    sent = effect.message if isinstance(effect.message, m.Prepare | m.Commit) else sent
                case core.Journal():
                    self._journal.write(effect)
                case core.Note():
                    self._note(effect)
                case core.Publish():
                    self.on_publish(effect)
                case core.Deployed():
                    self.on_deployed(effect)
                case core.CodeFails():
                    self.on_code_fails(effect)
                case core.Close(instance, reason):
                    if (channel := self._endpoint.channel(instance)) is not None:
                        channel.close(reason)
                case _:
                    if isinstance(effect, core.Halt):
                        effect = self._with_damage(effect)
                        log.error("halt: %s", effect.text)
                        log.warning("the coordinator's last events and effects:\n%s", self.machine.story)
                        append_record(
                            self.settings.directory,
                            {"t": time.time(), "kind": "halt", "text": effect.text},
                        )
                    self._give(effect)
        if isinstance(sent, m.Prepare):
            self.stages["prepare"] = time.monotonic()
            self._hook(sent.step.epoch, "prepare")
        elif isinstance(sent, m.Commit):
            self.stages["commit"] = time.monotonic()
            self._hook(sent.commit_id.step.epoch, "commit")

    def _with_damage(self, halt: core.Halt) -> core.Halt:
        """Virtual nodes without a copy may have lost it to damaged files: then the damage is the cause."""
        damages = [one.text.partition("; it began anew")[0] for one in self.move_metrics.damages()]
        if halt.kind != "unavailable" or not damages:
            return halt
        return core.Halt(halt.kind, f"{'; '.join(damages)}: {halt.reason}")

    def _send(self, send: core.Send) -> None:
        channel = self._endpoint.channel(send.to)
        if channel is None:
            return
        try:
            self._multicast.post(channel, send.to, self.machine.generation, send.message)
        except FerryError as error:
            log.warning("could not send %s to %s: %s", type(send.message).__name__, send.to, error)

    def _on_message(self, message: Message) -> None:
        decoded = m.decode(message.kind, message.head)
        if isinstance(decoded, m.Report):
            self.move_metrics.report(decoded)
        else:
            self.post(decoded)

    def _note(self, note: core.Note) -> None:
        record: dict[str, object] = {"t": time.time(), "kind": note.kind}
        if note.changes:
            committed = self.machine.commits.committed
            epoch = committed.step.epoch if committed is not None else -1
            self.move_metrics.changed(note.changes, epoch, self.machine.table.at_window)
            record["changes"] = [[c.vnode, c.kind, c.instance] for c in note.changes]
            kinds: dict[str, int] = {}
            for c in note.changes:
                kinds[c.kind] = kinds.get(c.kind, 0) + 1
            log.info("groups: %s", ", ".join(f"{n} {k}" for k, n in kinds.items()))
        if note.text:
            record["text"] = note.text
            log.info("%s: %s", note.kind, note.text)
        append_record(self.settings.directory, record)


def initial_table(settings: RunSettings, operators: int = 1) -> Table:
    """The first table of a job: virtual nodes round robin over workers, replicas on the next workers."""
    workers, per_worker = settings.workers, settings.instances_per_worker
    copies = min(settings.replicas, workers - 1)
    groups = []
    for vnode in range(settings.virtual_nodes):
        turn, worker = divmod(vnode, workers)
        index = turn % per_worker
        # The distance to the first replica changes with the turns, so that several workers take over from a lost one;
        # but an epoch has a chain, and a file of the log, for each set of replicas of a leader.
        first = turn // per_worker % limits.SETS_OF_REPLICAS * copies
        chain = [worker, *((worker + 1 + (first + k) % (workers - 1)) % workers for k in range(copies))]
        groups.append(Group(Term(1, 0), tuple(InstanceId(f"{w}.{index}") for w in chain)))
    return Table(Version(0, 0), tuple(groups), initial=True, programs=first_program(operators))
