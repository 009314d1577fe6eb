"""The settings of a run's processes, from the StreamJob and from the place of the run.

Pure: the one translation of a spec into settings, for runs on one machine and for pods alike.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ferry.contract.settings import CheckpointSettings, RunSettings, TransportSettings
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.job.models_parts import CheckpointSpec, Transport


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `ferry run` beside the job file."""

    events: int | None = None
    output: Path | None = None
    keep: bool = False

    def over(self, output: str | None, events: int | None) -> Options:
        """These options; unset options have the values of the job (`spec.output`, `spec.events`)."""
        return Options(
            self.events if self.events is not None else events,
            self.output if self.output is not None or output is None else Path(output),
            self.keep,
        )


class RunPlace(Protocol):
    """A run and where its files are."""

    @property
    def run(self) -> str:
        """Unique name of the run."""

    @property
    def path(self) -> Path:
        """Its directory, as its processes see it."""


def settings_for(job: StreamJob, job_file: Path, directory: RunPlace, options: Options) -> RunSettings:
    """The settings of the run's processes; `with_addresses` adds the addresses of Redis and of the supervisor."""
    wanted = job.spec
    file = spec.pipeline_file(job, job_file)
    return RunSettings(
        job=job.metadata.name,
        run=directory.run,
        directory=str(directory.path),
        secret=secrets.token_hex(24),
        redis="",
        pipeline_module=wanted.pipeline.module,
        pipeline_file=str(file.absolute()) if file is not None else None,
        pipeline_args=dict(wanted.pipeline.args),
        virtual_nodes=wanted.state.virtual_nodes,
        replicas=wanted.state.replicas,
        workers=wanted.workers,
        instances_per_worker=wanted.instances_per_worker,
        memory_bytes=wanted.state.memory.bytes,
        epoch_mode=wanted.epoch.mode,
        epoch_interval_ms=round(wanted.epoch.interval.seconds * 1000),
        epoch_max_rows=wanted.epoch.max_rows,
        driver_standby=wanted.driver.standby,
        cores=wanted.cores,
        events=options.events,
        output=str(options.output.absolute()) if options.output is not None else None,
        dead_letter=_dead_letter(wanted.dead_letter.directory, options.output),
        on_crash=wanted.dead_letter.on_crash,
        spark=dict(wanted.spark),
        bandwidth_bytes=(wanted.handover.bandwidth.bytes or None) if wanted.handover.bandwidth is not None else None,
        heartbeat_ms=round(wanted.failure.heartbeat.seconds * 1000),
        timeout_ms=round(wanted.failure.timeout.seconds * 1000),
        return_deadline_ms=round(wanted.failure.return_deadline.seconds * 1000),
        slow_ms=round(wanted.failure.slow.seconds * 1000),
        sink_patience_ms=None if wanted.sink.patience is None else round(wanted.sink.patience.seconds * 1000),
        transport=_transport(wanted.transport),
        executor_bytes=wanted.kubernetes.executor.memory.bytes,
        checkpoint=_checkpoint(wanted.state.checkpoint),
        restore_from=wanted.restore_from,
        restore_sink=wanted.restore_sink,
        tls=wanted.security.tls,
    )


def _checkpoint(checkpoint: CheckpointSpec) -> CheckpointSettings | None:
    """The settings of durable checkpoints; None: the job takes no durable checkpoints."""
    if checkpoint.location is None:
        return None
    every = None if checkpoint.every is None else round(checkpoint.every.seconds * 1000)
    return CheckpointSettings(absolute(checkpoint.location), every, checkpoint.keep)


def absolute(location: str) -> str:
    """The location of checkpoints for every reader: an absolute path, or the unchanged URL."""
    return location if "://" in location else str(Path(location).absolute())


def _transport(transport: Transport) -> TransportSettings:
    rdma = transport.rdma
    return TransportSettings(
        mode=transport.mode,
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
    """The directory of malformed records: the job's, else one beside the output; None: in the run's directory."""
    if directory is not None:
        return str(Path(directory).absolute())
    return str(output.absolute() / "_dead-letter") if output is not None else None


def with_addresses(
    settings: RunSettings, redis: str, supervisor: str, stops: tuple[tuple[int, str], ...]
) -> RunSettings:
    """The settings, complete."""
    return replace(settings, redis=redis, supervisor=supervisor, stops=stops)
