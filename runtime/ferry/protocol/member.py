"""What an instance is at any time: its commit record, whom it obeys, which table it has, what it holds and learns.

Must never put anything: that is `instance`, which follows attempts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.protocol.instance_io import DRIVER, Drop, Effect, Save, Saved
from ferry.protocol.learning import SESSION_VNODES, Learning, Teaching
from ferry.protocol.rules import Rules
from ferry.protocol.sending import Send
from ferry.protocol.view import TableView, seen

LEARN_STALL_MS = 10_000
"""A snapshot that made no progress for this long is asked for again."""

SLOW_MS = 1_000
"""An attempt that is not committed here by then takes long: the driver is told how far it is, and again after as long."""

WAITING = 256
"""Messages of a newer table that are kept until that table comes; a lost one is sent again with the next attempt."""


@dataclass(slots=True)
class AttemptInProgress:
    """The attempt under way at this instance."""

    prepare: m.Prepare
    computing: bool = False
    heard: dict[InstanceId, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Acks:
    """Chains of one attempt that end here and have logged their delta."""

    label: CommitId
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the number of the chain: late records, and fired rows."""
    said: bool = False


class Member(ABC):
    """State of one instance, its commit record, its fences and its table."""

    def __init__(
        self,
        me: InstanceId,
        operators: int,
        saved: Saved,
        logged: tuple[m.Delta, ...] = (),
        rules: Rules | None = None,
        learn_stall_ms: int = LEARN_STALL_MS,
        slow_ms: int = SLOW_MS,
        session_vnodes: int = SESSION_VNODES,
    ) -> None:
        self.me = me
        self.operators = operators
        self.rules = rules or Rules()
        self.saved = saved
        self.view: TableView | None = None
        self.log: dict[CommitId, list[m.Delta]] = {}
        for delta in logged:
            self.log.setdefault(CommitId(delta.step, delta.attempt), []).append(delta)
        self.staged: dict[m.Fragment, bool] = {}
        self.in_progress: AttemptInProgress | None = None
        self.acks: Acks | None = None
        self.slow_ms = slow_ms
        self.reported: tuple[CommitId, int] | None = None
        """The attempt that is not committed yet, and when it was seen first, or told of last."""
        self.early: dict[tuple[Step, Attempt], dict[InstanceId, bool]] = {}
        self.waiting: list[m.Prepare | m.Delta | m.Fetch] = []
        self._out: list[Effect] = []
        self.learning = Learning(
            me, operators, self.rules, learn_stall_ms, self._do, self._save_learned, session_vnodes
        )
        self.teaching = Teaching(self._do)

    def _do(self, effect: Effect) -> None:
        self._out.append(effect)

    def _save(self, **changes: Any) -> None:
        self.saved = self.saved.changed(**changes)
        self._do(Save(self.saved))

    def _save_learned(self) -> None:
        """Before the driver hears of it: this instance may be made a member, and crash, before it is told."""
        learned = tuple(sorted(self.learning.warm))
        if learned != self.saved.learned:
            self._save(learned=learned)

    # ---- fences
    def _superseded(self, generation: int) -> bool:
        """Refuse a lower generation, remember a higher one."""
        if generation < self.saved.generation:
            self._do(Send(DRIVER, m.Refused(self.me, self.saved.generation)))
            return True
        return False

    def _raise_generation(self, generation: int) -> None:
        if generation > self.saved.generation:
            self._save(generation=generation)
            if self.in_progress is not None and self.in_progress.prepare.attempt.generation < generation:
                self.in_progress = (
                    None  # What is being computed for the old driver must not be logged after the answer.
                )

    def _current(self, message: m.Prepare | m.Delta) -> bool:
        """True when the message belongs to the installed table; it waits for a newer table, and is dropped for an older.

        Dropping saves work only: attempts are never numbered twice, so nobody counts an answer to an older one.
        """
        version = message.version
        if self.view is not None and version == self.view.version:
            return True
        if self.view is None or version > self.view.version:
            self.waiting = [*(w for w in self.waiting if w.version >= version), message][-WAITING:]
        return False

    def may_read(self, generation: int, label: CommitId, vnodes: tuple[int, ...]) -> bool:
        """Whether fired rows of `label` of these virtual nodes may be served to a reader of `generation`."""
        if self.rules.fence_read and generation < self.saved.generation:
            return False
        if not self.rules.gone_is_error:
            return self.saved.committed is not None
        held = dict.fromkeys(self.saved.holds)
        return (
            self.saved.committed == label and label.step.epoch > self.saved.released and all(v in held for v in vnodes)
        )

    def _on_ask(self, ask: m.Ask) -> None:
        if self._superseded(ask.generation):
            return
        if self.rules.fence_ask:
            self._raise_generation(ask.generation)
        s = self.saved
        prepared, deltas = self._prepared(), self._logged()
        # A learner may have become in sync by the journal before it is told. What was prepared since has its deltas, too,
        # unless files are of an older day.
        learned = self.learning.warm if self.rules.whole_flag else self.learning.vnodes()
        whole = [v for v in (*s.learned, *learned) if all(v in deltas[label] for label in prepared)]
        holds = tuple(sorted({**dict.fromkeys(s.holds), **dict.fromkeys(whole)}))
        answer = m.Answer(
            self.me,
            ask.generation,
            s.committed,
            s.low,
            s.high,
            s.meta,
            holds,
            prepared,
            s.late,
            s.fired,
            s.released,
        )
        self._do(Send(DRIVER, answer))

    def _logged(self) -> dict[CommitId, dict[int, bool]]:
        """Virtual nodes with a delta in the log."""
        return {label: {v: True for d in deltas for v in d.vnodes} for label, deltas in self.log.items()}

    def _prepared(self) -> tuple[CommitId, ...]:
        """Labels with a delta here for everything that is held: files of an older day may have some chains' only."""
        return tuple(sorted(label for label, has in self._logged().items() if all(v in has for v in self.saved.holds)))

    # ---- the routing table
    def _on_install(self, install: m.Install) -> None:
        table = install.table
        if self._superseded(table.version.generation):
            return
        if self.view is not None and table.version <= self.view.version:
            return
        self._raise_generation(table.version.generation)
        anew = self.view is None or self.view.version.generation < table.version.generation
        view = self.view = seen(table)
        self.in_progress = None
        taught = {i: dict.fromkeys(v) for i, v in view.taught.get(self.me, {}).items()}
        self.teaching.stop(lambda learner, vnodes: not all(v in taught.get(learner, {}) for v in vnodes))
        mine = view.held.get(self.me, ())
        whole = {**dict.fromkeys((*self.saved.holds, *self.saved.learned)), **self.learning.vnodes(complete=True)}
        lacking = [v for v in mine if v not in whole]
        if lacking and not table.initial and self.rules.warm_label and self.rules.whole_flag:
            self._do(Send(DRIVER, m.Failed(self.me, f"in sync for virtual nodes {lacking[:8]} without holding them")))
            return
        self._leave_and_learn(mine, view, anew)
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self._take(message)

    def _leave_and_learn(self, mine: tuple[int, ...], view: TableView, anew: bool) -> None:
        """Drop what is not held any more, so that it is never found later; begin to learn what is new.

        `anew`: the table is the first one of its driver here. The driver before may have died while it told of a commit,
        and an attempt that no in-sync member heard of is given up. An instance that is none forgets what it has committed,
        and what it has learned by that.
        """
        wanted = view.learned.get(self.me, {})
        before = {**dict.fromkeys((*self.saved.holds, *self.saved.learned)), **self.learning.vnodes()}
        if anew and not mine:
            self.learning.keep({}, view.version)
            if self.saved.committed is not None:
                self.saved = Saved(self.saved.generation, released=self.saved.released)
                self._do(Save(self.saved))
        fresh = self.learning.keep(wanted, view.version)
        keep = {**dict.fromkeys(mine), **self.learning.vnodes()}
        learned = tuple(sorted(self.learning.warm))
        if (mine, learned) != (self.saved.holds, self.saved.learned):
            self._save(holds=mine, learned=learned)
        stale = tuple(sorted({**dict.fromkeys(v for v in before if v not in keep), **dict.fromkeys(fresh)}))
        if stale and self.rules.drop_stale:
            self._do(Drop(stale))
        for leader in sorted({wanted[v]: True for v in fresh}):
            self.learning.begin(leader, tuple(v for v in fresh if wanted[v] == leader))

    @abstractmethod
    def _take(self, message: m.Prepare | m.Delta | m.Fetch) -> None:
        """Handle what has waited for its table."""
