"""What the exit code of a process of a run says to whoever started it. Every other code, and every signal, is a crash."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Of drivers, sidecars and instances."""

    FINISHED = 0
    """The job has ended, or the process was asked to end."""
    CRASHED = 1
    """What may pass by itself: another start goes on."""
    REFUSED = 2
    """A driver: the pipeline or a setting is refused."""
    HALTED = 3
    """A driver: another start would not mend it. An instance: it cannot go on, and has said why."""
    NO_TRANSPORT = 4
    """A sidecar: no transport can be used, as its last line says."""
    SUPERSEDED = 5
    """A sidecar or an instance: a later life of it runs elsewhere."""
    SUSPENDED = 6
    """A driver: the last checkpoint is complete, and the job goes on from it when it is resumed."""
    THREAD_FAILED = 70
    """A thread that nothing goes on without has failed: its process ended with it, to be started again."""
