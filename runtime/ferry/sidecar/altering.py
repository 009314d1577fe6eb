"""Altered operators of a program that is being loaded: their state is derived beside the state before, while epochs go on.

    begin -> a piece of the state before at a time -> whole -> the program is loaded ... a table has the program: installed
             '-- every delta and chunk of the state before is derived, too

So the switch does not depend on the size of the state. Each instance derives what it holds: derived rows are not copied to
learners before the switch, and a copy that began before the switch ends with chunks that the learner derives. A join has
its rows at once: files of the state before get a second name (`RowState.adopt`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Refusal, UserCodeFailed
from ferry.contract.names import CommitId
from ferry.contract.programs import Programs
from ferry.kernels.altering import Derive, deriving
from ferry.store.process import ProcessState
from ferry.store.rows import RowState
from ferry.store.state import State
from ferry.store.upgrading import Upgrade

CHUNK_BYTES = limits.CHUNK_BYTES // 4
"""A piece of the state before: deriving it must not delay an epoch."""


@dataclass(slots=True)
class _Derivation:
    before: int
    derive: Derive
    left: Iterator[pa.RecordBatch] | None
    """None: it is whole"""
    since: int | None = None
    """The first epoch of its program; None: no table has it yet"""
    again: bool = False
    """A chunk came meanwhile. Its rows may be older than rows that the scan has not reached, so the scan is repeated."""
    failure: str = ""
    """Why the user's code cannot derive the state."""


def derive_of(before: OperatorDescriptor, after: OperatorDescriptor) -> Derive:
    """The function that derives rows, which may be the user's."""
    if before.process is not None and after.process is not None and before.process.tables != after.process.tables:
        return Upgrade(before, after)
    return deriving(before, after)


def check_derive(before: OperatorDescriptor, after: OperatorDescriptor) -> None:
    """Try the function without rows. Raises UserCodeFailed, SpecRefused."""
    if isinstance(derive := derive_of(before, after), Upgrade):
        derive.check()


class Altering:
    """The altered operators of one instance, by id. `lock` is held while a state is changed."""

    def __init__(
        self,
        states: Sequence[State],
        descriptors: Sequence[OperatorDescriptor],
        virtual_nodes: int,
        lock: AbstractContextManager[object],
        programs: Programs,
    ) -> None:
        self._states = states
        self._descriptors = descriptors
        self._every = np.arange(virtual_nodes)
        self._lock = lock
        self._programs = programs
        # Chunks of the state before may still come: of a restore that a crash has interrupted.
        self._of = {
            after: _Derivation(before, derive_of(descriptors[before], descriptors[after]), None, program.since)
            for program in programs
            for after, before in program.altered
            if not program.beside
        }

    def begin(self, altered: Sequence[tuple[int, int]]) -> None:
        """Derive the state of these operators, (id, id before), and no other state that is not installed."""
        wanted = self.missing(altered)
        if wanted == [(after, derivation.before) for after, derivation in self._of.items() if derivation.since is None]:
            return
        with self._lock:
            self._forget([after for after, derivation in self._of.items() if derivation.since is None])
            for after, before in wanted:
                state = self._states[after]
                state.drop(self._every)  # of a life that ended meanwhile
                if isinstance(state, ProcessState):
                    state.give_up("")
                state.release(-1, self._states[before].expired)
                derive = derive_of(self._descriptors[before], self._descriptors[after])
                origin = self._states[before]
                is_there = isinstance(state, RowState) and isinstance(origin, RowState) and state.adopt(origin)
                self._of[after] = _Derivation(before, derive, None if is_there else self._scan(before))

    def _forget(self, operators: Sequence[int]) -> None:
        """These operators never came into force: nothing would release their rows any more."""
        for after in operators:
            self._of.pop(after, None)
            self._states[after].drop(self._every)

    def _scan(self, number: int) -> Iterator[pa.RecordBatch]:
        return self._states[number].snapshot(self._every, CHUNK_BYTES)

    def missing(self, altered: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The operators that no table has had here."""
        installed = {number for program in self._programs for number in program.operators}
        return [pair for pair in altered if pair[0] not in installed]

    @property
    def left_out(self) -> Collection[int]:
        """The operators that no table has yet: their state is copied to no other place."""
        return {after for after, derivation in self._of.items() if derivation.since is None}

    def left_out_of_copy(self, base: CommitId | None) -> Collection[int]:
        """The operators that a copy as of `base` leaves out. It has the state before or the altered one, never both: a join
        would have its rows twice, and rows that the altered state has removed would be there again.

        Until a step of the program is committed, the program may be taken back: the learner derives what it gets.
        """
        epoch, out = -1 if base is None else base.step.epoch, {*self.left_out}
        for after, derivation in self._of.items():
            if derivation.since is not None:
                out.add(after if epoch < derivation.since else derivation.before)
        return out

    @property
    def failure(self) -> str:
        """Why the user's code cannot derive a state that no table has yet; empty: it can."""
        return next((one.failure for one in self._of.values() if one.failure and one.since is None), "")

    def _derived(self, after: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Derived rows. If the user's code fails, none from then on, and the state cannot be used."""
        derivation, state = self._of[after], self._states[after]
        try:
            return rows.slice(0, 0) if derivation.failure else derivation.derive(rows)
        except (UserCodeFailed, Refusal) as error:
            assert isinstance(state, ProcessState), after
            derivation.failure, derivation.left = str(error), None
            state.give_up(derivation.failure)
            return rows.slice(0, 0)

    def step(self) -> bool:
        """Derive a piece; False after the last piece."""
        for after, derivation in self._of.items():
            if derivation.left is not None:
                with self._lock:
                    piece = next(derivation.left, None)
                    if piece is not None:
                        self._states[after].apply_absent(self._derived(after, piece))
                    elif derivation.again:
                        derivation.left, derivation.again = self._scan(derivation.before), False
                    else:
                        derivation.left, state = None, self._states[after]
                        if isinstance(state, ProcessState):
                            state.whole(self._every)  # It need not remember what was removed.
                return True
        return False

    # ---- changes of the state before
    def applied(
        self, operator: int, delta: pa.RecordBatch, epoch: int, source: str
    ) -> list[tuple[int, pa.RecordBatch]]:
        """A delta was applied to the state of an operator: derive it. Returns deltas of operators that a table has.

        A learner may get the last deltas of the program before after the table with the altered operator.
        """
        late = list[tuple[int, pa.RecordBatch]]()
        for after, derivation in self._of.items():
            if derivation.before == operator and (derivation.since is None or epoch < derivation.since):
                rows = self._derived(after, delta)
                self._states[after].apply(rows, epoch, source)
                late += [(after, rows)] * (derivation.since is not None)
                late += self.applied(after, rows, epoch, source)
        return late

    def loaded(self, operator: int, chunk: pa.RecordBatch) -> None:
        """A chunk of a snapshot or a checkpoint was loaded into the state of an operator."""
        for after, derivation in self._of.items():
            if (
                derivation.before == operator
                and derivation.left is not None
                and self._descriptors[after].kind != "join"
            ):
                derivation.again = True
            elif derivation.before == operator:
                rows = self._derived(after, chunk)
                self._states[after].apply_absent(rows)
                self.loaded(after, rows)

    def release(self, epoch: int, watermarks: Sequence[int], copying: bool) -> None:
        """An epoch is final; watermarks by id. `copying`: copies may still need an obsolete state."""
        for after, derivation in self._of.items():
            if derivation.since is None and derivation.before < len(watermarks):
                self._states[after].release(epoch, watermarks[derivation.before])
        is_final = bool(self._programs) and epoch >= self._programs[-1].since
        for number in obsolete(self._programs) if is_final and not copying else ():
            if self._states[number].statistics()["bytes"].any():
                self._states[number].drop(self._every)

    # ---- tables
    def install(self, programs: Programs) -> bool:
        """A table with these programs is in force. Returns whether it brings altered operators."""
        before = {number for program in self._programs for number in program.operators}
        taken_back = [
            after for gone in self._programs if gone.number > programs[-1].number for after, _ in gone.altered
        ]
        self._programs = programs
        now = {number: program.since for program in reversed(programs) for number in program.operators}
        fresh = [after for after, derivation in self._of.items() if after in now and derivation.since is None]
        for after in fresh:
            self._of[after].since = now[after]
        # Operators that go on beside their copies bring rows of their own.
        for after in [n for n, of in self._of.items() if of.since is not None and programs[-1].beside]:
            del self._of[after]
        with self._lock:
            self._forget(taken_back)
        for after in [after for after in self._of if after in before - now.keys()]:
            del self._of[after]
        return bool(fresh)


def obsolete(programs: Programs) -> set[int]:
    """Operators whose state no program needs once the newest one has an epoch: origins of operators that go on, and the new
    half of two programs that ran side by side, if it does not go on. The origin of such a copy may return."""
    out, newest = set[int](), programs[-1]
    for place, program in enumerate(programs):
        if program.beside and program is newest:
            continue
        goes_on = {number for later in programs[place + 1 :] or (newest,) for number in later.operators}
        for after, before in program.altered:
            if after in newest.operators:
                out |= {before} - goes_on
            elif program.beside:
                out.add(after)
        out |= {*program.new_half} if not {*program.new_half} & {*newest.operators} else set()
    return out
