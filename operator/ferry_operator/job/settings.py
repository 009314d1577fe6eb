"""The settings of a run's processes, from the StreamJob and from the place where it runs.

Pure: the one translation of a spec into settings, for a run of this machine and for pods alike.
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
        """These options, with what they do not say taken from the job (`spec.output`, `spec.events`)."""
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
    one = job.spec
    file = spec.pipeline_file(job, job_file)
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
        epoch_mode=one.epoch.mode,
        epoch_interval_ms=round(one.epoch.interval.seconds * 1000),
        epoch_max_rows=one.epoch.max_rows,
        driver_standby=one.driver.standby,
        cores=one.cores,
        events=options.events,
        output=str(options.output.absolute()) if options.output is not None else None,
        dead_letter=_dead_letter(one.dead_letter.directory, options.output),
        on_crash=one.dead_letter.on_crash,
        spark=dict(one.spark),
        bandwidth_bytes=(one.handover.bandwidth.bytes or None) if one.handover.bandwidth is not None else None,
        heartbeat_ms=round(one.failure.heartbeat.seconds * 1000),
        timeout_ms=round(one.failure.timeout.seconds * 1000),
        return_deadline_ms=round(one.failure.return_deadline.seconds * 1000),
        slow_ms=round(one.failure.slow.seconds * 1000),
        sink_patience_ms=None if one.sink.patience is None else round(one.sink.patience.seconds * 1000),
        transport=_transport(one.transport),
        executor_bytes=one.kubernetes.executor.memory.bytes,
        checkpoint=_checkpoint(one.state.checkpoint),
        restore_from=one.restore_from,
        restore_sink=one.restore_sink,
        tls=one.security.tls,
    )


def _checkpoint(one: CheckpointSpec) -> CheckpointSettings | None:
    """Durable checkpoints, if there are to be any."""
    if one.location is None:
        return None
    every = None if one.every is None else round(one.every.seconds * 1000)
    return CheckpointSettings(absolute(one.location), every, one.keep)


def absolute(location: str) -> str:
    """Where checkpoints are, wherever it is read: a path from the root, or the URL as it stands."""
    return location if "://" in location else str(Path(location).absolute())


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
