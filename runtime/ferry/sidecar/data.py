"""The effects of an instance on its data: staging, deltas, log, commit record, state, snapshots, reads.

Called from the instance's loop, except `read` (Flight's threads): one lock orders reads with all changes of the state.
Must never decide whether an operation is allowed.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Bug, FerryError, StateUnavailable
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.programs import first_program, operator_id, program_at
from ferry.contract.results import NO_RESULT
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import ReadTicket
from ferry.durable.copies import Copies
from ferry.durable.location import Location
from ferry.kernels.columns import split_by_vnode
from ferry.kernels.grouping import Ints
from ferry.kernels.schemas import fragment_schema, state_schema
from ferry.protocol import instance as core
from ferry.sidecar.altering import Altering
from ferry.sidecar.archive import Archiver
from ferry.sidecar.attempt_data import AttemptData, batch_of, body_of
from ferry.sidecar.instance_record import InstanceRecordFile
from ferry.sidecar.loading import Loader
from ferry.sidecar.reads import fired_rows
from ferry.sidecar.scans import Scans, scan_of
from ferry.sidecar.shadows import bytes_by_vnode
from ferry.sidecar.signs import Signs
from ferry.sidecar.staging import Staging
from ferry.store.log import DeltaLog
from ferry.store.process import ProcessState
from ferry.store.state import State, open_state

log = logging.getLogger("ferry.sidecar")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Changes with each start of the machine."""


class BeginsAnew(FerryError):
    """This process ends, and its next life begins without its files."""


class Data:
    """The data of one instance: one state per stateful operator, by id, the log, the commit record, staged fragments."""

    def __init__(
        self,
        settings: RunSettings,
        me: InstanceId,
        directory: Path,
        descriptors: list[OperatorDescriptor],
        send: Callable[[core.Send, Any], None],
        send_nowait: Callable[[core.Send, Any], bool],
        lend_bytes: int = 0,
        signs: Signs | None = None,
        boot_id: Path = BOOT_ID,
    ) -> None:
        """`signs` get each part of a long operation."""
        self.me = me
        self.descriptors = descriptors
        self.virtual_nodes = settings.virtual_nodes
        self._send = send
        self._signs = signs or Signs()
        self._alive = self._signs.turns
        self._lock = threading.RLock()
        self._record = InstanceRecordFile(directory, settings.path, settings.run, boot_id)
        saved = self._record.saved
        if not saved.programs or (saved.committed is None and saved.committing is None):
            # A record of the release before programs, or one from before the first table.
            self._record.saved = saved.changed(programs=first_program(len(descriptors)))
        self.damage = self._record.damage
        """why the life before dropped its state; empty: it did not"""
        if any(number >= len(descriptors) for program in self._record.saved.programs for number in program.operators):
            raise BeginsAnew(f"{me}: it has state of operators that the published catalogue lacks: it restarts")
        self._log = DeltaLog(directory / "log", lend_bytes)
        self.arena = self._log.arena
        """memory that may be lent to a device: logged deltas are sent from there"""
        self.staging = Staging(directory / "staged")
        self._directory = directory
        # Copies, and operators before they were altered, have the names of operators that have their state.
        self._memory_bytes = settings.memory_bytes // len({one.name for one in descriptors})
        self.states = self._open_states(directory, self._memory_bytes)
        saved = self._record.saved
        installed = saved.programs if saved.committed is not None or saved.committing is not None else ()
        self.altering = Altering(self.states, descriptors, self.virtual_nodes, self._lock, installed)
        self.programs: dict[int, tuple[OperatorDescriptor, ...]] = {}
        """By number: the operators of a loaded program, by position."""
        self.scans = Scans(
            me,
            lambda to, chunk, batch: send_nowait(core.Send(to, chunk), body_of(batch)),
            settings.bandwidth_bytes,
            lambda to, chunk: self._send(core.Send(to, chunk), None),
        )
        self.archive: Archiver | None = None
        copies: Copies | None = None
        if settings.checkpoint is not None:
            location = Location(settings.checkpoint.location, settings.job)
            beside = directory.with_name(f"{directory.name}-copies")
            if not settings.replicas and not location.local:
                # With replicas a job restarts from a checkpoint only after it lost several workers: their files are not
                # here either.
                copies = Copies(beside)
            else:
                shutil.rmtree(beside, ignore_errors=True)
            self.archive = Archiver(
                location,
                settings.run,
                me,
                descriptors,
                self.states,
                self.virtual_nodes,
                directory / "archive",
                settings.bandwidth_bytes or limits.ARCHIVE_BYTES_A_SECOND,
                lambda asked, chains: self._send(
                    core.Send(core.DRIVER, m.Checkpointed(me, asked.number, asked.version, asked.epoch, chains)), None
                ),
                copies,
                lambda: self.altering.left_out,
            )
        self._loader = Loader(
            me, self.states, self.virtual_nodes, self._lock, copies, self._alive, self.altering.loaded
        )
        self._chunk: Any = None
        self._whole: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        """virtual nodes that are held, and learned, completely: as last passed to the states of processes"""
        self.attempt = AttemptData(
            me,
            descriptors,
            self.states,
            self.virtual_nodes,
            self.staging,
            send,
            self._signs,
            self._operator,
            self._descriptor,
        )
        self.tally = self.attempt.tally

    def _open_states(self, directory: Path, memory_bytes: int) -> list[State]:
        """Raises BeginsAnew when files are damaged: this copy is dropped, and made again from another one."""
        self._record.opens()
        saved = self._record.saved
        ran = {number for program in saved.programs for number in program.operators}
        ran |= {number for number, result in enumerate(saved.results) if result != NO_RESULT}
        for number in {*range(len(self.descriptors))} - ran:
            shutil.rmtree(directory / f"state-{number}", ignore_errors=True)  # Of a deploy that came to nothing.
        each = [(d, self.virtual_nodes, directory / f"state-{d.index}", memory_bytes) for d in self.descriptors]
        try:
            return [open_state(*one) for one in each]
        except StateUnavailable as error:
            self._record.give_up(str(error))
            raise BeginsAnew(f"{self.me}: its state is damaged, and is copied again: {error}") from error

    def add(self, catalogue: Catalogue) -> None:
        """Know these programs; open the state of operators that they introduce."""
        for descriptor in catalogue.operators[len(self.states) :]:
            folder = self._directory / f"state-{descriptor.index}"
            shutil.rmtree(folder, ignore_errors=True)  # Of a deploy that came to nothing.
            state = open_state(descriptor, self.virtual_nodes, folder, self._memory_bytes)
            state.drop(np.arange(self.virtual_nodes))
            with self._lock:
                self.descriptors.append(descriptor)
                self.states.append(state)
            if isinstance(state, ProcessState) and self._whole is not None:
                state.whole(np.array([*self._whole[0], *self._whole[1]], dtype=np.int64))
        self.programs = {program.number: program.descriptors for program in catalogue.programs}

    def limit_copies(self, bytes_per_second: int) -> None:
        """Set the bandwidth of copies to learners and to the store; 0: their default."""
        self.scans.budget.limit(bytes_per_second or None)
        if self.archive is not None:
            self.archive.budget.limit(bytes_per_second or limits.ARCHIVE_BYTES_A_SECOND)

    def saved(self) -> core.InstanceRecord:
        """The commit record at the start of this life."""
        whole = np.array((*self._record.saved.holds, *self._record.saved.learned), dtype=np.int64)
        stale = np.setdiff1d(np.arange(self.virtual_nodes), whole)
        for state in self.states:
            state.drop(stale)
        # Not stored with the state: the watermark and the released epoch.
        self._release_states(self._record.saved.released, self._record.saved.floors())
        self._write_record(self._record.saved)
        return self._record.saved

    def logged(self) -> tuple[m.Delta, ...]:
        """Deltas in the log of an earlier life."""
        return tuple(
            m.decode(m.CODES[m.Delta], meta["delta"])  # type: ignore[misc]
            for commit_id in self._log.commit_ids()
            for _, meta, _ in self._log.entries(commit_id)
        )

    def warm_up(self) -> None:
        """Compile (or load) the kernels before the first epoch needs them."""
        for descriptor, state in zip(self.descriptors, self.states, strict=True):
            empty = pa.RecordBatch.from_pylist([], schema=fragment_schema(descriptor))
            merged = state.combine([empty])
            delta, _ = state.delta([merged], EpochTimes(limits.WATERMARK_NONE, limits.WATERMARK_NONE))
            split_by_vnode(delta, self.virtual_nodes)

    # ---- effects
    def receive(self, event: core.Event, body: Any) -> None:
        """Keep the body of a message for the effects that will name it."""
        match event:
            case m.Partials():
                self.attempt.receive_partials(event, body)
            case m.Delta():
                self.attempt.receive_delta(event, body)
            case m.Chunk():
                self._chunk = body

    def perform(self, effect: core.Effect) -> core.Event | None:
        """Execute an effect; its result comes back as an event."""
        self._alive()
        if isinstance(effect, core.Apply | core.Drop | core.Erase | core.LoadChunk):
            self._loader.stop()
        match effect:
            case core.Send():
                self._send(effect, None)
            case core.Contribute():
                self.attempt.contribute(effect)
            case core.Compute():
                return self.attempt.compute(effect)
            case core.SendDelta():
                self.attempt.send_delta(effect)
            case core.LogDelta():
                self._log_delta(effect.delta)
            case core.Apply():
                self._apply(effect.commit_id)
            case core.Save():
                self._write_record(effect.saved)
            case core.ForgetLog():
                self._forget(effect.step)
            case core.ForgetAttempt():
                raise Bug("the rule logs_kept cannot be off outside of the simulation")
            case core.Forget():
                self._release(effect.epoch, effect.watermarks)
            case core.Drop():
                with self._lock:
                    for state in self.states:
                        state.drop(np.array(effect.vnodes, dtype=np.int64))
            case core.Erase():
                self._erase()
            case core.LoadChunk():
                self._load(effect.chunk)
            case core.BeginSnapshot():
                self.scans.begin(scan_of(effect, self.states, self.altering.left_out_of_copy(effect.base)))
            case core.StopScan():
                self.scans.stop(effect.learner, effect.session)
            case core.Archive():
                if self.archive is not None:
                    committed = self._record.saved.committed
                    self.archive.follow(effect.vnodes, -1 if committed is None else committed.step.epoch)
            case core.WriteCheckpoint():
                if self.archive is not None:
                    self.archive.write(effect)
            case core.LoadAhead():
                self._loader.ahead(effect.origin, effect.vnodes)
            case core.Restore():
                return self._loader.restore(effect)
            case _:
                assert_never(effect)
        return None

    def _log_delta(self, delta: m.Delta) -> None:
        source = f"{delta.leader}-{'-'.join(delta.chain) or 'learner'}"
        commit_id, meta = CommitId(delta.step, delta.attempt), {"delta": m.encode(delta)}
        body = self._log.append(commit_id, source, meta, self.attempt.delta_batch(delta))
        if delta.leader == self.me and len(delta.chain) > 1:
            self.attempt.receive_delta(delta, body)
        self.attempt.logged(source, delta)

    def _apply(self, commit_id: CommitId) -> None:
        operator = self._operator(commit_id.step)
        process, silent = self.states[operator], program_at(self._record.saved.programs, commit_id.step.epoch).silent
        if isinstance(process, ProcessState) and process.broken:
            if operator in silent and not any(batch.num_rows for _, _, batch in self._log.entries(commit_id)):
                return self.attempt.forget_commit(commit_id)  # A void step: this state goes, and no other one with it.
            self._record.give_up(process.broken)
            raise BeginsAnew(f"{self.me}: its state cannot be derived, and is copied again: {process.broken}")
        with self._lock:
            for source, _, batch in self._log.entries(commit_id):
                self._alive()
                (generation, number), state = commit_id.attempt, self.states[operator]
                name = f"{generation}-{number}-{source}"
                state.apply(batch, commit_id.step.epoch, name, self.attempt.hints(commit_id, source))
                derived = self.altering.applied(operator, batch, commit_id.step.epoch, name)
                for state_of, rows in ((operator, batch), *derived):
                    if self.archive is not None:
                        self.archive.applied(state_of, commit_id.step.epoch, source, rows)
        self.attempt.forget_commit(commit_id)

    def _operator(self, step: Step) -> int:
        """The id of a step's operator."""
        return operator_id(self._record.saved.programs, step)

    def _descriptor(self, step: Step) -> OperatorDescriptor:
        """The operator of a step, in the program of its epoch."""
        number, program = self._operator(step), program_at(self._record.saved.programs, step.epoch)
        known = self.programs.get(program.number)
        return self.descriptors[number] if known is None else replace(known[step.operator], index=number)

    def _forget(self, step: Step) -> None:
        self._log.forget(step)
        self.attempt.forget(step)

    def _release(self, epoch: int, watermarks: tuple[int, ...]) -> None:
        self.staging.release(epoch)
        with self._lock:
            self._release_states(epoch, watermarks)
        if self.archive is not None:
            self.archive.release(epoch, watermarks)

    def _release_states(self, epoch: int, watermarks: tuple[int, ...]) -> None:
        for state, watermark in zip(self.states, watermarks, strict=False):
            state.release(epoch, watermark)
        self.altering.release(epoch, watermarks, bool(self.scans))

    def _write_record(self, saved: core.InstanceRecord) -> None:
        if saved.programs != self._record.saved.programs and self.altering.install(saved.programs) and self.archive:
            self.archive.anew()
        whole = (saved.holds, saved.learned)
        if whole != self._whole:
            self._whole = whole
            for state in self.states:
                if isinstance(state, ProcessState):
                    state.whole(np.array((*saved.holds, *saved.learned), dtype=np.int64))
        self._record.write(saved)

    def sizes(self) -> Ints:
        """Bytes of each virtual node; another thread may load state at the same time."""
        with self._lock:
            return bytes_by_vnode(self.states, self.virtual_nodes)

    def next_timer(self) -> int | None:
        """When the first timer of the clock is due in the newest program; None: there is no timer."""
        present = {number for program in self._record.saved.programs[-1:] for number in program.operators}
        with self._lock:
            states = [state for number, state in enumerate(self.states) if number in present]
            found = [state.next_timer() for state in states if isinstance(state, ProcessState)]
        return min((time for time in found if time is not None), default=None)

    def work(self) -> bool:
        """A little upkeep of the files, for an idle loop; False when there was no work."""
        if not self._lock.acquire(blocking=False):
            return False  # A read is under way: upkeep can wait.
        try:
            return any(state.work() for state in self.states)
        finally:
            self._lock.release()

    def seal(self) -> None:
        """Sync all files at a clean end, so that they are a copy after a reboot; the last call. Raises OSError."""
        with self._lock:
            self._record.seal()

    # ---- snapshots
    def _load(self, chunk: m.Chunk) -> None:
        body, self._chunk = self._chunk, None
        if not body:
            return  # The first and the last chunk have no rows.
        if chunk.operator >= len(self.descriptors):
            raise BeginsAnew(f"{self.me}: {chunk.leader} has state of an operator that is not known here")
        batch = batch_of(body, state_schema(self.descriptors[chunk.operator]))
        self.tally.received_bytes += batch.nbytes
        with self._lock:
            self.states[chunk.operator].apply_absent(batch)
            self.altering.loaded(chunk.operator, batch)

    # ---- restores
    def _erase(self) -> None:
        """Remove all state. If there is none, continue; otherwise a new process does it, without this one's memory."""
        if not self._record.empty:
            raise BeginsAnew(f"{self.me}: the job begins with a checkpoint, and the files here are older")
        self._record.erased()

    # ---- reads
    def read(self, ticket: ReadTicket, allowed: Callable[[], bool]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Fired rows of a committed step (`sidecar.reads`)."""
        operator = self._operator(ticket.commit_id.step)
        descriptor = self._descriptor(ticket.commit_id.step)
        return fired_rows(self.me, descriptor, self.states[operator], self._lock, ticket, allowed)
