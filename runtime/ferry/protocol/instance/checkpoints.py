"""An instance's part in durable checkpoints, and in a restore from one.

    leader:  Install --> Archive ... Freeze --> WriteCheckpoint ... Checkpointed (sent by the writer)
    member:  Install (with an origin) --> holds nothing, LoadAhead --> Commit (with it) --> Restore --> Restored
                 --> Committed

State of an earlier life of the job counts for nothing, whatever its label: epochs after a restore have the same
numbers.
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.protocol.instance.io import Archive, Erase, Forget, LoadAhead, Restore, Restored, WriteCheckpoint
from ferry.protocol.instance.logged_deltas import LoggedDeltas
from ferry.protocol.instance.state import InstanceState
from ferry.protocol.steps import last_step


class Archiving:
    """What is written here for checkpoints, and loaded from one."""

    def __init__(self, state: InstanceState, log: LoggedDeltas) -> None:
        self._state = state
        self._log = log
        self._archived: tuple[int, ...] | None = None
        self._loading = ""
        """The restore for which state is being loaded."""

    # ---- writing
    def follow(self) -> None:
        """Another table is in force: write the virtual nodes led now. State that is still to be loaded is not written
        yet."""
        view = self._state.view
        assert view is not None
        led = () if view.table.restoring and self._state.rules.archive_loaded else view.led.get(self._state.me, ())
        if led != self._archived:
            self._archived = led
            self._state.do(Archive(led))

    def on_checkpoint(self, message: m.Freeze) -> None:
        """Write, if the epoch and the table are the ones that the driver names."""
        state = self._state
        saved, view, last = state.saved, state.view, last_step(message.epoch, state.saved.programs)
        here = saved.committed is not None and saved.committed.step == last and saved.committing is None
        if here and view is not None and view.version == message.version and self._archived:
            watermarks = tuple(result.high for result in saved.results)
            state.do(WriteCheckpoint(message.number, message.version, message.epoch, watermarks, message.anew))
        else:
            state.tell(m.Checkpointed(state.me, message.number, message.version, message.epoch, b""))

    # ---- restoring
    def begins_anew(self) -> bool:
        """Whether a table is of another life of the job: the state here is no copy then, and is dropped."""
        state = self._state
        assert state.view is not None
        origin = state.view.table.origin
        if origin == state.saved.origin or not state.rules.origin_new:
            return False
        self._loading = ""
        # The future virtual nodes are recorded now: after Erase the process may be a new one.
        holds = state.view.held.get(state.me, ()) if state.view.table.restoring else ()
        state.begin_anew(origin=origin, holds=holds)
        state.do(Erase())
        self._log.forget_all()
        return True

    def load_ahead(self) -> None:
        """A Commit will ask for these virtual nodes; its driver may have to start first."""
        saved = self._state.saved
        if saved.origin and saved.holds and saved.committed is None and saved.committing is None:
            self._state.do(LoadAhead(saved.origin, saved.holds))

    def load(self, commit: m.Commit) -> None:
        """Load the state for a Commit with an origin, once."""
        state, view = self._state, self._state.view
        if view is None or view.table.origin != commit.origin:
            return
        if state.saved.origin == commit.origin and state.saved.committed is not None:
            state.tell(m.Committed(state.me, commit.commit_id))
        elif self._loading != commit.origin:
            self._loading = commit.origin
            state.do(Restore(commit, view.held.get(state.me, ())))

    def on_restored(self, event: Restored) -> None:
        """The state is loaded: this is the committed step."""
        state, commit = self._state, event.commit
        if self._loading != commit.origin:
            return
        self._loading = ""
        if state.view is None or not state.view.table.restoring or state.view.table.origin != commit.origin:
            return  # The job has begun without this member.
        if event.reason:
            state.tell(m.Unrestorable(state.me, commit.origin, event.reason))
        else:
            state.save(
                committed=commit.commit_id,
                results=commit.results,
                meta=commit.meta,
                released=commit.commit_id.step.epoch,
                origin=commit.origin,
            )
            state.do(Forget(commit.commit_id.step.epoch, tuple(result.high for result in commit.results)))
            state.tell(m.Committed(state.me, commit.commit_id))
