"""One instance: the loop that turns messages into events, and effects into work on the store and the channel.

    channel threads --.
    Flight threads  ---+--> inbox --> Instance.step --> effects --> store, log, commit record, channel
    timer -----------'

Composition only: decisions are in `ferry.protocol.instance`, state in `ferry.store`. Must never block on sending.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ferry.channel import choice
from ferry.channel.base import Channel, DeferredCredit, Lane, Message
from ferry.contract import messages as m
from ferry.contract import places
from ferry.contract.catalogue import Catalogue
from ferry.contract.certificates import issue
from ferry.contract.errors import Unreachable
from ferry.contract.exit_codes import ExitCode
from ferry.contract.names import Attempt, Fragment, InstanceId
from ferry.contract.run_directory import SYNCING
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import Judge, ReadTicket, Right
from ferry.contract.user_code import USER_CODE
from ferry.environment import Environment
from ferry.protocol import instance as core
from ferry.registry import JobRegistry
from ferry.sidecar import ALIVE
from ferry.sidecar.data import BeginsAnew, Data
from ferry.sidecar.delay_control import DelayControl
from ferry.sidecar.drivers import Drivers
from ferry.sidecar.ending import tell
from ferry.sidecar.flight import Door, serve
from ferry.sidecar.inbox import Inbox
from ferry.sidecar.links import LinkWatch
from ferry.sidecar.metrics import InstanceMetrics, MetricsFile
from ferry.sidecar.peers import Peers
from ferry.sidecar.programs import LoadedProgram, ProgramLoader, load_classes
from ferry.sidecar.signs import ENDED, EndedLife, Signs, how, read_end
from ferry.store.lock import DirectoryLock
from ferry.system import flight_places
from ferry.system.flight_places import FlightPlace

log = logging.getLogger("ferry.sidecar")

STARVED_SECONDS = 0.25
"""A snapshot that had to wait this long is sent although messages wait."""

LEAVE_SECONDS, LEAVE_EPOCHS = 2.0, 2
"""An instance that is told to end stays until this many further epochs have begun, but no longer than this."""

TICK_SECONDS = 0.05

REPORT_SECONDS = 1.0

BUSY_SECONDS = 1.0
"""An instance whose loop had work for this long without a break reports this to the driver."""

LAST_WORDS_SECONDS = 1.0
"""Time that a failed instance waits for its reason to reach the driver."""


class Node:
    """One life of one instance."""

    _end_before: EndedLife | None = None
    """Until the driver has been told of it."""

    def __init__(self, settings: RunSettings, worker: int, index: int, life: bytes, env: Environment) -> None:
        self.settings = settings
        self._index = index
        self._env = env
        self.me = InstanceId(f"{worker}.{index}")
        self.dir = settings.worker_path(worker) / str(index)
        self.dir.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(self.dir)
        self._counted = MetricsFile(self.dir)
        self._delay_control = DelayControl()
        self._signs = Signs()
        self._life = life.hex()
        self._inbox = Inbox()
        self._registry = JobRegistry(settings.run, settings.redis, settings.secret)
        self._stop = threading.Event()
        self._begun = 0
        """epochs, as reported by the driver"""
        self._hears_code = False
        self._leaves: tuple[float, int] | None = None
        self._drivers = Drivers()
        self._idle_at = time.monotonic()
        """When the loop last had no work for which an epoch may wait."""
        self._newest = Attempt(0, 0)
        """The highest attempt with a received Prepare, perhaps still in the inbox."""
        self._peers = Peers(self.me, self._registry, self._superseded, self._on_refused)
        # First of all: an instance without the device that it needs holds no state, and ends with the reason.
        mine = (env.host,) if env.host else ()
        secret = settings.secret.encode()
        party = choice.Party(self.me, settings.run, secret, self._on_message, self._on_open, self._on_close, life)
        self._chosen = choice.choose(settings.transport, mine, party)
        self._endpoint = self._chosen.endpoint
        self._link_watch = LinkWatch(self._chosen)

    # ---- life
    def run(self) -> int:
        """Open the state, register this instance in Redis, and serve until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        catalogue = self._wait_for_catalogue()
        if catalogue is None:
            return 0
        descriptors = list(catalogue.operators)
        load_classes(self.settings, catalogue)
        lend = self._chosen.lend_bytes
        try:
            sends = self._send, self._send_nowait
            data = self._data = Data(self.settings, self.me, self.dir, descriptors, *sends, lend, self._signs)
        except BeginsAnew as end:
            log.error("%s", end)
            tell(end)
            return ExitCode.CRASHED
        data.add(catalogue)
        self._programs = ProgramLoader(
            self.me, self.settings, self.dir, self._registry, data, self._inbox.put, self._signs.turns
        )
        self._end_before = read_end(self.dir)
        (self.dir / ENDED).unlink(missing_ok=True)
        if data.arena is not None:
            self._chosen.lend(data.arena)
        saved = data.saved()
        self._machine = core.Instance(self.me, saved, data.logged())
        self._perform(self._machine.start())
        if saved.committing is not None and saved.holds and not self._machine.saved.holds:
            log.error(
                "%s dropped its state: its log lacks a part of the interrupted Apply: %s",
                self.me,
                saved.committing.commit_id,
            )
        data.warm_up()
        # Objects loaded until now stay: a collection of all of them takes longer than any step of the loop.
        gc.collect()
        gc.freeze()
        judge = Judge(Right.root(self.settings.secret), self.me, self._life)
        place = self._flight_place()
        identity = issue(self.settings.secret) if place.tls else None
        door = Door(place.location, identity, judge, data.staging.claim, self._stage, self._read)
        serve(door)
        around = self._env
        host, port = self._endpoint.listen(around.address, around.channel_port(self._index))
        entry = places.Registration(self.me, self._life, host, port, place.uri(door.port), os.getpid())
        self._peers.start(self._endpoint, entry)
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        log.info("instance %s is up: %s", self.me, self._machine.saved)
        return self._live()

    def _live(self) -> int:
        """Serve until SIGTERM; an earlier end is reported to the driver: this instance is as good as lost."""
        try:
            self._loop()
        except BeginsAnew as end:
            log.warning("%s", end)
            tell(end)
            return ExitCode.CRASHED
        except Exception as error:
            self._machine.story.attach(error)
            log.exception("instance %s stops", self.me)
            tell(error)
            self._send(core.Send(core.DRIVER, m.Failed(self.me, f"{type(error).__name__}: {error}")), None)
            time.sleep(LAST_WORDS_SECONDS)
            return ExitCode.HALTED
        self._peers.leave()
        self._seal()
        return 0

    def _seal(self) -> None:
        """Sync all files if they may be read after a reboot; no epoch waits for it."""
        if not self.settings.lasting:
            return
        # From now on the parent waits, and does not watch the loop any more.
        (self.dir / SYNCING).touch()
        (self.dir / ALIVE).unlink()
        # The groups drop this instance now, as at the end of its process.
        self._endpoint.close()
        try:
            self._data.seal()
        except OSError as error:
            log.error("%s: its files are no copy after a reboot: they are not on the disk: %s", self.me, error)

    def _superseded(self, by: places.Registration) -> None:
        """End at once: actions of a former life would reach peers of its successor."""
        log.critical("instance %s ends: it was started again on %s, pid %d", self.me, by.host, by.pid)
        logging.shutdown()
        os._exit(ExitCode.SUPERSEDED)

    def _wait_for_catalogue(self) -> Catalogue | None:
        while not self._stop.is_set():
            with suppress(Unreachable):
                if (catalogue := self._registry.catalogue()) is not None:
                    return catalogue
            self._stop.wait(0.05)
        return None

    def _flight_place(self) -> FlightPlace:
        around = self._env
        if around.host:
            return flight_places.at_host(around.host, around.flight_port(self._index), self.settings.encrypted)
        return flight_places.at_socket(self.dir / "flight.sock", self.me, self.settings.redis)

    def _loop(self) -> None:
        tick_at = report_at = pumped_at = upkeep_at = 0.0
        idle, began, waited = TICK_SECONDS, time.monotonic(), 0.0
        self._signs.begin(self.dir / ALIVE)
        while not self._may_end():
            since = time.monotonic()
            item = self._inbox.take(idle)
            waited += time.monotonic() - since
            if item is not None:
                self._handle(item.event, item.body)
                item.done()
            now = time.monotonic()
            if self._inbox.calm:
                self._idle_at = now
            if now >= tick_at:
                tick_at = now + TICK_SECONDS
                self._signs.turns()
                self._perform(self._machine.step(core.Tick(int(now * 1000))))
            if now >= report_at:
                report_at = now + REPORT_SECONDS
                self._report(int((now - began - waited) * 1000))
            idle = TICK_SECONDS
            calm = self._inbox.calm
            if (calm or now - pumped_at > STARVED_SECONDS) and self._delay_control.may_send(now):
                pumped, pumped_at = self._pump(now), now
                idle = 0.0005 if pumped else 0.002 if self._data.scans else idle
            elif self._data.scans or self._delay_control.rests(now):
                idle = 0.002
            begin = time.monotonic()
            if calm and begin >= upkeep_at and self._data.work():
                # Rest as long: there may be more than a thousand steps of upkeep, each of which delays an epoch.
                rest = time.monotonic() - begin
                upkeep_at, idle = begin + 2 * rest, min(idle, max(rest, 0.0005))

    def _pump(self, now: float) -> bool:
        """Send a little to learners and to the store; False when nothing could be sent."""
        pumped = self._data.scans.pump(1)
        if self._programs.derive():
            pumped = True
        else:
            self._tell_loaded(self._programs.derived())
        if self._data.archive is not None:
            pumped |= self._data.archive.pump()
        if pumped:
            self._delay_control.sent(now, time.monotonic())
        return pumped

    def _handle(self, event: core.Event | LoadedProgram, body: Any) -> None:
        if isinstance(event, LoadedProgram):
            self._tell_loaded(self._programs.loaded(event))
            return
        if isinstance(event, m.Install):
            self._programs.require(event.table.programs, event.table.restoring)
        if isinstance(event, m.Prepare) and self._is_outdone(event.attempt):
            return
        if isinstance(event, m.Ask) and event.generation > self._machine.saved.generation:
            self._programs.require_same_code()
        self._data.receive(event, body)
        self._perform(self._machine.step(event))
        if isinstance(event, m.Ask) and self._end_before is not None:
            self._tell_of_end(self._end_before)
        if isinstance(event, m.Commit):
            self._delay_control.committed(event.commit_id.step.epoch, time.monotonic())

    def _tell_loaded(self, answer: m.ProgramLoaded | None) -> None:
        if answer is not None:
            self._send(core.Send(core.DRIVER, answer), None)

    def _tell_of_end(self, end: EndedLife) -> None:
        """The life before died in the user's code: report it, because no other process can."""
        self._end_before, computing = None, end.computing
        if computing is not None and computing.users:
            ended = f"{USER_CODE}it ended the process of instance {self.me} ({how(end.code)})"
            reason = f"{end.words or ended}, {computing.what}"
            self._send(core.Send(core.DRIVER, m.CodeFailed(self.me, *computing.commit_id, reason)), None)

    def _is_outdone(self, attempt: Attempt) -> bool:
        """Whether a later attempt waits in the inbox: the driver has abandoned this one, and would wait for its
        work."""
        newest = self._newest
        return attempt.generation == newest.generation and attempt < newest

    def _pulse(self) -> None:
        """Send signs of life to the driver, from a thread of its own: a long computation never looks like death."""
        while True:
            busy = time.monotonic() - self._idle_at
            busy_ms = int(busy * 1000) if busy > BUSY_SECONDS else 0
            code = self._signs.computes_for() if self._hears_code else ()
            self._send(core.Send(core.DRIVER, m.Pulse(self.me, busy_ms, *code)), None)
            time.sleep(self.settings.heartbeat_ms / 1000)

    def _may_end(self) -> bool:
        """Whether the instance is told to end and no epoch counts on it any more: its fragments would have to be made
        again."""
        if not self._stop.is_set():
            return False
        now = time.monotonic()
        if self._leaves is None:
            self._leaves = now + LEAVE_SECONDS, self._begun + LEAVE_EPOCHS
            self._send(core.Send(core.DRIVER, m.Leaving(self.me)), None)
        until, epoch = self._leaves
        return now >= until or self._begun >= epoch or not self._drivers.any

    def _report(self, busy_ms: int) -> None:
        """Report the state of this instance: to the driver, and to this sidecar's parent, which serves the metrics of
        all."""
        data, watch = self._data, self._link_watch
        watch.look()
        sizes = data.sizes()
        timer, boundaries = data.next_timer(), data.scans.boundaries()
        report = data.tally.report(self.me, self._life, sizes, watch.links, timer, busy_ms, boundaries)
        report = replace(report, damage=data.damage) if data.damage else report
        sent, received = data.scans.sent_bytes, data.tally.received_bytes
        links = watch.rows, watch.lent_bytes, watch.huge_bytes
        self._counted.replace(InstanceMetrics(int(sizes.sum()), sent, received, *links))
        self._send(core.Send(core.DRIVER, report), None)

    def _perform(self, effects: list[core.Effect]) -> None:
        """Execute effects in order; their results go back into the machine."""
        now = int(time.monotonic() * 1000)
        for effect in effects:
            self._machine.story.add_effect(now, effect)
            event = self._data.perform(effect)
            if event is not None:
                self._perform(self._machine.step(event))

    # ---- incoming messages
    def _on_message(self, message: Message) -> DeferredCredit | None:
        decoded = m.decode(message.kind, message.head)
        if isinstance(decoded, m.Begins):
            self._delay_control.begins(decoded.epoch, time.monotonic())
            self._begun += 1
            self._hears_code = decoded.hears_code
            if decoded.bandwidth >= 0:
                self._data.limit_copies(decoded.bandwidth)
            return None
        if isinstance(decoded, m.LoadProgram):
            self._programs.load(decoded)
            return None
        if isinstance(decoded, m.BriefPrepare):
            decoded = self._drivers.prepares(message.peer, decoded)
        if isinstance(decoded, m.Prepare):
            self._newest = max(self._newest, decoded.attempt)
        elif isinstance(decoded, m.Install | m.Amend):
            decoded = self._drivers.installs(message.peer, decoded)
        return self._inbox.arrived(message.lane, decoded, message.body)

    def _on_refused(self, peer: str, reason: str) -> None:
        self._inbox.put(core.TooLarge(peer, reason))

    def _on_open(self, peer: str, channel: Channel) -> None:
        self._drivers.opened(peer)
        self._peers.opened(peer, channel)

    def _on_close(self, peer: str, reason: str) -> None:
        self._peers.closed(peer)
        if not self._drivers.closed(peer):
            self._inbox.put(core.PeerLost(InstanceId(peer)))

    def _stage(self, fragment: Fragment, batches: list[Any]) -> None:
        self._data.staging.add(fragment, batches)
        self._inbox.put(core.Staged(fragment))

    def _read(self, ticket: ReadTicket) -> Any:
        return self._data.read(
            ticket, lambda: self._machine.may_read(ticket.generation, ticket.commit_id, ticket.vnodes)
        )

    # ---- outgoing messages
    def _send(self, send: core.Send, body: Any) -> None:
        """Queue a message for a peer; a message to this instance itself goes through the inbox."""
        if send.to == self.me:
            self._inbox.put(send.message, body)
            return
        peers = self._drivers.for_message(send.message) if send.to == core.DRIVER else [send.to]
        lane = Lane.FRAGMENT if isinstance(send.message, m.Partials) else Lane.DELTA
        code, head = m.CODES[type(send.message)], m.encode(send.message)
        for peer in peers:
            self._peers.post(peer, lane, code, head, () if body is None else (body,))

    def _send_nowait(self, send: core.Send, body: Any) -> bool:
        """Send on the bulk lane if there is credit."""
        code, head = m.CODES[type(send.message)], m.encode(send.message)
        return self._peers.send_nowait(send.to, Lane.BULK, code, head, () if body is None else (body,))
