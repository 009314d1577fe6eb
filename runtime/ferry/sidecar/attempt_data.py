"""The data of the attempt under way: contributions of helpers, the delta of a leader, and bodies of messages.

Nothing here outlives the process: what counts later is in the log. Must never change a state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import messages as m
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Refusal, UserCodeFailed
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.kernels.columns import (
    Shares,
    empty,
    narrowed,
    range_indices,
    records_by_vnode,
    shares_of,
    split_by_vnode,
    take_vnodes,
)
from ferry.kernels.grouping import Ints
from ferry.kernels.schemas import fragment_schema, state_schema
from ferry.process.shapes import process_of
from ferry.process.users import calls_users
from ferry.protocol import instance as core
from ferry.sidecar.metrics import LoadCounter
from ferry.sidecar.signs import Computing, Signs
from ferry.sidecar.staging import Staging
from ferry.store.aggregate import AggregateState
from ferry.store.process import ProcessState
from ferry.store.state import State

log = logging.getLogger("ferry.sidecar")

PARTS_MAX, TOGETHER_BYTES = 8, 64 * 1024 * 1024
"""Contributions of helpers are put together if there are more than PARTS_MAX, of so few bytes."""


@dataclass(frozen=True, slots=True)
class ComputedDelta:
    """A delta that was computed here."""

    batch: pa.RecordBatch
    offsets: Ints
    """of its virtual nodes"""
    chains: dict[tuple[InstanceId, ...], int]
    """the number of each chain among the shares"""
    shares: Shares
    hints: Ints | None
    """of an aggregate: where each row of the batch is, see `AggregateState.hints`"""

    def rows_of(self, delta: m.Delta) -> pa.RecordBatch:
        """The rows of a chain, or of the virtual nodes of a learner."""
        if delta.chain in self.chains:
            return self.shares.of(self.chains[delta.chain])
        return take_vnodes(self.batch, self.offsets, delta.vnodes)

    def numbers_of(self, delta: m.Delta) -> Ints:
        """The numbers of these rows in the batch."""
        if delta.chain in self.chains:
            bounds = self.shares.bounds[self.chains[delta.chain] :]
            return self.shares.numbers[bounds[0] : bounds[1]]
        return range_indices(self.offsets, np.array(delta.vnodes, np.int64))


class AttemptData:
    """`send(message, body)` sends to another instance; `signs` get each part of a long operation; `operator(step)` is the
    id of a step's operator, by which descriptors and states are listed; `descriptor(step)` has the code of its program."""

    def __init__(
        self,
        me: InstanceId,
        descriptors: list[OperatorDescriptor],
        states: list[State],
        virtual_nodes: int,
        staging: Staging,
        send: Callable[[core.Send, Any], None],
        signs: Signs,
        operator: Callable[[Step], int],
        descriptor: Callable[[Step], OperatorDescriptor],
    ) -> None:
        self._me = me
        self._descriptors = descriptors
        self._states = states
        self._virtual_nodes = virtual_nodes
        self._staging = staging
        self._send = send
        self._signs = signs
        self._operator = operator
        self._descriptor = descriptor
        self._partials: dict[tuple[Step, Attempt], dict[InstanceId, Any]] = {}
        self._bodies: dict[m.Delta, Any] = {}
        self._computed: dict[CommitId, ComputedDelta] = {}
        self._hints_of: dict[tuple[CommitId, str], Ints] = {}
        """hints of logged deltas, by source in the log"""
        self.tally = LoadCounter(virtual_nodes)

    def receive_partials(self, partials: m.Partials, body: Any) -> None:
        """Keep the contribution of a helper."""
        self._partials.setdefault((partials.step, partials.attempt), {})[partials.helper] = body

    def receive_delta(self, delta: m.Delta, body: Any) -> None:
        """Keep the rows of a delta that another leader has sent."""
        self._bodies[delta] = body

    def _running(self, step: Step) -> tuple[State, OperatorDescriptor]:
        """The state of a step's operator, with the code of the step's program."""
        state, descriptor = self._states[self._operator(step)], self._descriptor(step)
        if isinstance(state, ProcessState):
            state.run_as(descriptor, lambda: process_of(descriptor))
        return state, descriptor

    def contribute(self, effect: core.Contribute) -> None:
        """Combine the staged fragments, and send each leader its share."""
        prepare = effect.prepare
        state, descriptor = self._running(prepare.step)
        schema = fragment_schema(descriptor)
        merged = state.combine([batch for fragment in effect.fragments for batch in self._staging.take(fragment)])
        offsets = split_by_vnode(merged, self._virtual_nodes)
        part = m.Partials(prepare.step, prepare.attempt, self._me)
        shares = shares_of(merged, offsets, [vnodes for _, vnodes in effect.leaders])
        for number, (leader, _) in enumerate(effect.leaders):
            self._signs.turns()
            self._send(core.Send(leader, part), body_of(narrowed(shares.of(number), schema)))

    def compute(self, effect: core.Compute) -> core.Computed | core.ComputeFailed:
        """An error of the user's code, or a refusal, is no failure of this instance: nothing of the attempt is kept."""
        prepare = effect.prepare
        state, descriptor = self._running(prepare.step)
        users = calls_users(descriptor) and not prepare.is_void
        work = f"operator {descriptor.name!r} in epoch {prepare.step.epoch}"
        try:
            with self._signs.computes(Computing(CommitId(prepare.step, prepare.attempt), work, users)):
                return self._computed_of(effect)
        except (UserCodeFailed, Refusal) as error:
            if isinstance(error, Refusal) and isinstance(state, ProcessState) and not state.is_made:
                raise  # The program differs from the driver's; another instance may have the right one.
            log.warning("%s: attempt %s: %s", self._me, prepare.attempt, error, exc_info=error.__cause__)
            final = not isinstance(error, UserCodeFailed)
            return core.ComputeFailed(prepare.step, prepare.attempt, str(error), final)

    def _computed_of(self, effect: core.Compute) -> core.Computed:
        prepare = effect.prepare
        state, descriptor = self._running(prepare.step)
        schema = fragment_schema(descriptor)
        heard = self._partials.pop((prepare.step, prepare.attempt), {})
        parts = together([batch_of(heard[helper], schema) for helper in effect.helpers])
        self._partials = {
            key: bodies for key, bodies in self._partials.items() if key > (prepare.step, prepare.attempt)
        }
        self.tally.received(records_by_vnode(parts, self._virtual_nodes))
        times = EpochTimes(prepare.low, prepare.high, prepare.step.epoch, int(time.time() * 1000))
        led = [vnode for _, vnodes in effect.chains for vnode in vnodes]
        if prepare.is_void:
            delta, late = empty(state_schema(descriptor)), 0
        else:
            delta, late = state.delta(parts, times, np.array(led, dtype=np.int64))
        offsets = split_by_vnode(delta, self._virtual_nodes)
        self.tally.computed(offsets)
        hints = state.hints if isinstance(state, AggregateState) and not prepare.is_void else None
        computed = ComputedDelta(
            delta,
            offsets,
            {chain: number for number, (chain, _) in enumerate(effect.chains)},
            shares_of(delta, offsets, [vnodes for _, vnodes in effect.chains]),
            hints,
        )
        self._computed = {CommitId(prepare.step, prepare.attempt): computed}
        self._hints_of.clear()
        chains = []
        for i, (chain, vnodes) in enumerate(effect.chains):
            self._signs.turns()
            mine = np.array(vnodes, dtype=np.int64)
            fired = 0 if prepare.is_void else state.will_fire(computed.shares.of(i), times, mine)
            chains.append((chain, vnodes, late if i == 0 else 0, fired))
        return core.Computed(prepare.step, prepare.attempt, tuple(chains))

    def delta_batch(self, delta: m.Delta) -> pa.RecordBatch:
        """The rows of a delta: computed here, or received."""
        schema = state_schema(self._descriptors[self._operator(delta.step)])
        if delta.leader == self._me:
            return narrowed(self._computed[CommitId(delta.step, delta.attempt)].rows_of(delta), schema)
        return batch_of(self._bodies[delta], schema)

    def logged(self, source: str, delta: m.Delta) -> None:
        """A delta is in the log under this source."""
        commit_id = CommitId(delta.step, delta.attempt)
        computed = self._computed.get(commit_id)
        if computed is not None and computed.hints is not None and delta.leader == self._me:
            self._hints_of[commit_id, source] = computed.hints[computed.numbers_of(delta)]

    def hints(self, commit_id: CommitId, source: str) -> Ints | None:
        """Where the rows of a logged delta are; None: it was not computed here, or its state has no table."""
        return self._hints_of.get((commit_id, source))

    def send_delta(self, effect: core.SendDelta) -> None:
        """Send a delta to a replica or a learner."""
        delta = effect.delta
        body = self._bodies[delta] if delta in self._bodies else body_of(self.delta_batch(delta))
        self._send(core.Send(effect.to, delta), body)

    def forget_commit(self, commit_id: CommitId) -> None:
        """A commit was applied: its delta is in the state."""
        self._computed.pop(commit_id, None)
        self._hints_of.clear()

    def forget(self, step: Step) -> None:
        """Forget everything up to a step."""
        self._partials = {key: bodies for key, bodies in self._partials.items() if key[0] > step}
        self._bodies = {delta: body for delta, body in self._bodies.items() if delta.step > step}


def together(parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as a single one: what a state does for a batch costs more than to copy some rows."""
    if len(parts) <= PARTS_MAX or sum(part.get_total_buffer_size() for part in parts) > TOGETHER_BYTES:
        return parts
    return [pa.concat_batches(parts)]


def body_of(batch: pa.RecordBatch | None) -> pa.Buffer | None:
    """The body of a message with these rows."""
    return None if batch is None else batch.serialize()


def batch_of(body: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a message's body."""
    if isinstance(body, pa.RecordBatch):
        return body
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)
