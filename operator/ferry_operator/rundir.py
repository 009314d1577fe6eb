"""The directory of a run: made or found again, locked while the run lives, removed at its end; and the run's settings.

It starts nothing. A directory that the job names (`spec.state.directory`) is continued when a run has been in it before.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ferry.contract.documents import RunSettings, TransportSettings
from ferry.contract.errors import SpecRefused
from ferry_operator import spec
from ferry_operator.models import StreamJob
from ferry_operator.models_parts import Transport


@dataclass(frozen=True, slots=True)
class Options:
    """What `ferry run` adds to the job file."""

    events: int | None = None
    output: Path | None = None
    keep: bool = False

    def over(self, output: str | None, events: int | None) -> Options:
        """These options, with what they do not say taken from the job (`spec.output`, `spec.events`)."""
        return Options(
            self.events if self.events is not None else events,
            self.output if self.output is not None or output is None else Path(output),
            self.keep,
        )


class Place(Protocol):
    """A run and where its files are."""

    @property
    def run(self) -> str:
        """Unique name of the run."""

    @property
    def path(self) -> Path:
        """Its directory, as its processes see it."""


class RunDirectory:
    """One run's directory, locked until `close`."""

    def __init__(self, job: StreamJob, home: Path) -> None:
        """Make or find the directory, and lock it; raises SpecRefused when another run is in it, or of another job."""
        self.given = job.spec.state.directory is not None
        name = job.metadata.name
        run = f"{name}-{secrets.token_hex(3)}"
        self.path = Path(job.spec.state.directory or home / "runs" / run).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpecRefused(f"{self.path}: cannot be used as the directory of a run: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise SpecRefused(f"{self.path}: another run uses this directory; stop it first (ferry ps)") from None
        try:
            before = self._before()
            self.resumed = before is not None
            self.run = before.run if before is not None else run
            if before is not None:
                _same_job(before, job, self.path)
        except SpecRefused:
            self.close(remove=False)
            raise

    def _before(self) -> RunSettings | None:
        """Settings of the run that was here before."""
        file = self.path / "run.json"
        if not file.exists():
            return None
        try:
            return RunSettings.read(file)
        except (OSError, ValueError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise SpecRefused(f"{file}: is not the file of a run that could be continued: {error}") from None

    def close(self, remove: bool) -> None:
        """Give the lock back; `remove` takes the directory away as well."""
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _same_job(before: RunSettings, job: StreamJob, path: Path) -> None:
    if before.job != job.metadata.name:
        raise SpecRefused(f"{path}: holds the state of job {before.job!r}, not of {job.metadata.name!r}")
    if before.virtual_nodes != job.spec.state.virtual_nodes:
        raise SpecRefused(
            f"{path}: holds {before.virtual_nodes} virtual nodes; spec.state.virtualNodes cannot change to "
            f"{job.spec.state.virtual_nodes}: make a new job, or name another directory"
        )


def settings_for(job: StreamJob, job_file: Path, directory: Place, options: Options) -> RunSettings:
    """What the processes of the run are told; the addresses of Redis and of the supervisor are added by `with_addresses`."""
    one = job.spec
    file = spec.pipeline_file(job, job_file)
    batch = {"all-at-once": None, "batched": one.handover.batch, "fluid": 1}[one.handover.strategy]
    return RunSettings(
        job=job.metadata.name,
        run=directory.run,
        directory=str(directory.path),
        secret=secrets.token_hex(24),
        redis="",
        pipeline_module=one.pipeline.module,
        pipeline_file=str(file.absolute()) if file is not None else None,
        pipeline_args=dict(one.pipeline.args),
        virtual_nodes=one.state.virtual_nodes,
        replicas=one.state.replicas,
        workers=one.workers,
        instances_per_worker=one.instances_per_worker,
        memory_bytes=one.state.memory.bytes,
        epoch_interval_ms=round(one.epoch.interval.seconds * 1000),
        epoch_max_rows=one.epoch.max_rows,
        cores=one.cores,
        events=options.events,
        output=str(options.output.absolute()) if options.output is not None else None,
        dead_letter=_dead_letter(one.dead_letter.directory, options.output),
        spark=dict(one.spark),
        handover_batch=batch,
        handover_gap=one.handover.gap,
        handover_deadline_ms=round(one.handover.deadline.seconds * 1000),
        bandwidth_bytes=(one.handover.bandwidth.bytes or None) if one.handover.bandwidth is not None else None,
        heartbeat_ms=round(one.failure.heartbeat.seconds * 1000),
        timeout_ms=round(one.failure.timeout.seconds * 1000),
        return_deadline_ms=round(one.failure.return_deadline.seconds * 1000),
        sink_patience_ms=None if one.sink.patience is None else round(one.sink.patience.seconds * 1000),
        transport=_transport(one.transport),
        executor_bytes=one.kubernetes.executor.memory.bytes,
        tls=one.security.tls,
    )


def _transport(one: Transport) -> TransportSettings:
    rdma = one.rdma
    return TransportSettings(
        mode=one.mode,
        expected=rdma.mode != "off",
        device=rdma.device,
        gid_index=rdma.gid_index,
        slots=rdma.slots,
        slot_bytes=rdma.slot_bytes,
        notify=rdma.notify,
        pinned_bytes=rdma.pinned.bytes,
        lend_bytes=rdma.lend.bytes,
    )


def _dead_letter(directory: str | None, output: Path | None) -> str | None:
    """Where malformed records are kept: as the job says, else beside the output, else (None) in the run's directory."""
    if directory is not None:
        return str(Path(directory).absolute())
    return str(output.absolute() / "_dead-letter") if output is not None else None


def with_addresses(
    settings: RunSettings, redis: str, supervisor: str, stops: tuple[tuple[int, str], ...]
) -> RunSettings:
    """The settings, complete."""
    return replace(settings, redis=redis, supervisor=supervisor, stops=stops)
