"""The rules of the protocol by name, each a guard in the code that can be removed in a test.

They come from an exhaustive search of a small model; the simulation removes each one and has to find the damage. Which
invariant each one keeps is in docs/design.md, section 4. Production code never passes anything but ``Rules()``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Every rule is on unless a test says otherwise."""

    adopt: bool = True
    """A new driver finishes an attempt that any in-sync member committed."""
    fence_ask: bool = True
    """Answering a driver raises the generation of the instance: older drivers are refused from then on, and what is being
    computed for them is dropped."""
    ask_all: bool = True
    """A new driver decides "none committed" only when every in-sync member answered or was removed by a new term."""
    fence_read: bool = True
    """A read of fired rows carries the generation; a lower one is refused."""
    gone_is_error: bool = True
    """A read of rows that are no longer there, or of virtual nodes not held here, is an error, never an empty answer."""
    all_committed: bool = True
    """Rows are readable, and the next step begins, only when every in-sync member has committed."""
    journal_first: bool = True
    """Nobody acts on a group change that is not in the journal."""
    commit_final: bool = True
    """Once Commit was sent no other attempt of that step is ever prepared."""
    keys_full: bool = True
    """Staged fragments are named by generation, ingest run and task attempt."""
    between_epochs: bool = True
    """In sync and switchover are granted only after Spark has begun the next epoch and before its first Prepare."""
    warm_commit_id: bool = True
    """A learner becomes in sync only when what it holds is as of the last committed step."""
    warm_version: bool = True
    """A learner is warm only by a snapshot that was begun since it learns from its present leader."""
    switched_in_sync: bool = True
    """Only an in-sync member becomes leader."""
    whole_flag: bool = True
    """Files of an unfinished snapshot are no copy."""
    compare_commit_id: bool = True
    """A returning member is compared by step and attempt with its group; its files may be of an older day."""
    once: bool = True
    """What a learner applies comes by its snapshot or by a delta, never by both."""
    missed_delta: bool = True
    """A learner that missed a delta after its snapshot's base begins again."""
    rows_kept: bool = True
    """Fired rows of an epoch are kept until the first Prepare of the next one."""
    final_announced: bool = True
    """A new driver hears from the members whether the rows of the last epoch were given up: it does not emit them again."""
    logs_kept: bool = True
    """Deltas of all attempts of a step are kept until the step is committed."""
    redo_apply: bool = True
    """An Apply that a crash cut short is done again from the log before anything else."""
    redo_whole: bool = True
    """What cannot be applied as a whole again, because the log lacks a part of it, is no copy any more."""
    low_attempt: bool = True
    """A Prepare or Delta of a lower attempt than one already logged is refused."""
    watermark_adopt: bool = True
    """A new driver takes the watermark of the last committed step."""
    watermark_commit: bool = True
    """The watermark advances when a step commits, not when it is prepared."""
    tail_acknowledges: bool = True
    """The last member of the chain acknowledges, not the first."""
    claim_again: bool = True
    """A claim that a last write of the predecessor came before is made again, from what that wrote."""
    slow_lives: bool = True
    """Patience with an attempt begins anew while somebody whom it waits for says that he is at work."""
    work_around: bool = True
    """An attempt that fails again is begun without those who cannot reach each other."""
    silent_lost: bool = True
    """An instance that says nothing for a while is lost, although its connection is open."""
    origin_new: bool = True
    """What a member holds when a restore begins is of a life of the job that is over, whatever its label: it is dropped."""
    origin_answered: bool = True
    """What an instance answers is of the life of the job that the table is of: steps of another one are not compared."""
    restore_begun: bool = True
    """Once all have loaded what a job begins with, the journal says so before an epoch begins: nobody loads it again."""
    archive_loaded: bool = True
    """Nothing is written for checkpoints of what is still to be loaded."""
    boundary: bool = True
    """A checkpoint is taken when its epoch is final, and the next one is not begun."""
    written_for_it: bool = True
    """What a leader has written for a checkpoint that was given up counts for no other one."""
    drop_stale: bool = True
    """A member drops what it held when it leaves a group, so A -> B -> A never finds old state."""
