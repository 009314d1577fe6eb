"""Exit codes of the processes of a run. Every other code, and every signal, is a crash."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of drivers, sidecars and instances."""

    FINISHED = 0
    """The job has ended, or the process was asked to end."""
    CRASHED = 1
    """The cause may pass: a restart goes on."""
    REFUSED = 2
    """A driver: the pipeline or a setting is refused."""
    HALTED = 3
    """A driver: a restart cannot help. An instance: it cannot go on and has reported why."""
    NO_TRANSPORT = 4
    """A sidecar: no transport can be used; its last line says why."""
    SUPERSEDED = 5
    """A sidecar or an instance: a later life of it runs elsewhere."""
    SUSPENDED = 6
    """A driver: the last checkpoint is complete, and the job goes on from it when it is resumed."""
    THREAD_FAILED = 70
    """An indispensable thread has failed and its process ended with it; a restart goes on."""
