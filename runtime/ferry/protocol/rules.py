"""The rules of the protocol by name, each a guard in the code that can be removed in a test.

They come from an exhaustive search of a small model; the simulation removes each one and has to find the damage.
docs/design.md, section 4, has the invariant that each one keeps. Production code never passes anything but ``Rules()``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Every rule is on unless a test removes it."""

    adopt: bool = True
    """A new driver finishes an attempt that any in-sync member committed."""
    fence_ask: bool = True
    """Answering a driver raises the generation of the instance: older drivers are refused from then on, and their
    computations are dropped."""
    ask_all: bool = True
    """A new driver decides "none committed" only when every in-sync member answered or was removed by a new term."""
    fence_read: bool = True
    """A read of fired rows carries the generation; a lower one is refused."""
    gone_is_error: bool = True
    """A read of rows that no longer exist, or of virtual nodes not held here, is an error, never an empty answer."""
    all_committed: bool = True
    """Rows are readable, and the next step begins, only when every in-sync member has committed."""
    journal_first: bool = True
    """No group change takes effect before it is in the journal."""
    commit_final: bool = True
    """Once Commit was sent no other attempt of that step is ever prepared."""
    keys_full: bool = True
    """Staged fragments are named by generation, ingest run and task attempt."""
    between_epochs: bool = True
    """In sync and switchover are granted only after Spark has begun the next epoch and before its first Prepare."""
    warm_commit_id: bool = True
    """A learner becomes in sync only when its state is as of the last committed step."""
    warm_version: bool = True
    """A learner is warm only by a snapshot that began after its present leader became its leader."""
    switched_in_sync: bool = True
    """Only an in-sync member becomes leader."""
    whole_flag: bool = True
    """Files of an unfinished snapshot are no copy."""
    compare_commit_id: bool = True
    """A returning member is compared with its group by step and attempt; its files may be older."""
    once: bool = True
    """A learner gets each change by its snapshot or by a delta, never by both."""
    missed_delta: bool = True
    """A learner that missed a delta after its snapshot's base begins again."""
    rows_kept: bool = True
    """Fired rows of an epoch are kept until the first Prepare of the next one."""
    final_announced: bool = True
    """A new driver learns from the members whether the rows of the last epoch were released: it does not emit them
    again."""
    logs_kept: bool = True
    """Deltas of all attempts of a step are kept until the step is committed."""
    redo_apply: bool = True
    """An interrupted Apply is repeated from the log before anything else."""
    redo_whole: bool = True
    """A member that cannot repeat an Apply completely, because its log lacks a part, is no copy any more."""
    low_attempt: bool = True
    """A Prepare or Delta of a lower attempt than one already logged is refused."""
    watermark_adopt: bool = True
    """A new driver takes the watermark of the last committed step."""
    watermark_commit: bool = True
    """The watermark advances when a step commits, not when it is prepared."""
    tail_acknowledges: bool = True
    """The last member of the chain acknowledges, not the first."""
    claim_again: bool = True
    """A claim that lost against a last write of the predecessor is repeated, based on that write."""
    slow_lives: bool = True
    """The deadline of an attempt begins again while an instance that it waits for reports work."""
    work_around: bool = True
    """A repeated attempt avoids instances that cannot reach each other."""
    silent_lost: bool = True
    """An instance without a message for a while is lost, although its connection is open."""
    origin_new: bool = True
    """State held at the begin of a restore is of an earlier life of the job, whatever its label: it is dropped."""
    origin_answered: bool = True
    """Answers count within one life of the job only: steps of another life are not compared."""
    restore_begun: bool = True
    """Once all members have loaded the restored state, the journal records it before an epoch begins: no member loads
    it again."""
    archive_loaded: bool = True
    """State that is still to be loaded is not written for checkpoints."""
    boundary: bool = True
    """A checkpoint is taken when its epoch is final and the next one has not begun."""
    written_for_it: bool = True
    """Files that a leader has written for an abandoned checkpoint count for no other one."""
    programs_first: bool = True
    """The first epoch of a deployed program begins once the journal has the program."""
    beside_alone: bool = True
    """A program with operators beside those from which they are derived begins while nothing is copied."""
    programs_since_next: bool = True
    """A deployed program is in force from the next epoch on, never for an epoch that has committed a step."""
    programs_kept: bool = True
    """A program in force is taken back only while no member has committed a step of it, nor has to."""
    takes_over_first: bool = True
    """Another program takes over an epoch whose code fails only at the first step: no operator has decided its part."""
    programs_recorded: bool = True
    """The commit record of an instance has the programs of the last installed table: a step that a crash interrupted is
    finished as a step of its own program."""
    results_by_id: bool = True
    """Results and watermarks belong to the id of an operator, not to its position in a program."""
    drop_stale: bool = True
    """A member drops its state when it leaves a group, so A -> B -> A never finds old state."""
