"""Chooses a helper for a task, and sends the fragment of the task to it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl

from ferry import environment
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.ingest_runs import IngestRun
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.places import Registration
from ferry.contract.tickets import stage_ticket
from ferry.kernels.schemas import fragment_schema
from ferry.spark.tasks import flight
from ferry.spark.tasks.flight import Connections


def in_turn(helpers: tuple[Registration, ...], turn: int, worker: int | None) -> list[Registration]:
    """Helpers in the order of tries: first the helpers of the task's worker, then the rest; each group rotates by `turn`."""
    near = [h for h in helpers if worker_of(InstanceId(h.instance)) == worker]
    far = [h for h in helpers if worker_of(InstanceId(h.instance)) != worker]
    return [group[(turn + i) % len(group)] for group in (near, far) for i in range(len(group))]


class Sender:
    """Streams one fragment to one helper; the first batch opens the stream."""

    def __init__(
        self, operator: OperatorDescriptor, run: IngestRun, attempt: int, turn: int, connections: Connections
    ) -> None:
        self._operator = operator
        self._run = run
        self._attempt = attempt
        self._turn = turn
        self._connections = connections
        self._writer: fl.FlightStreamWriter | None = None
        self._uri = ""
        self.helper: str | None = None

    def send(self, batches: list[pa.RecordBatch]) -> None:
        """Send rows of the fragment. Raises a Flight error if no helper is reachable, or the helper is lost."""
        for batch in batches:
            if batch.num_rows:
                if self._writer is None:
                    self._open()
                assert self._writer is not None
                self._writer.write_batch(batch)

    def _open(self) -> None:
        """Open a stream to the first helper in turn that answers."""
        run, failed = self._run, []
        for helper in in_turn(run.helpers, self._turn + run.step.epoch, environment.read().worker):
            try:
                ticket = stage_ticket(run.right, self._attempt, helper.instance, helper.incarnation)
                descriptor = fl.FlightDescriptor.for_command(ticket)
                options = fl.FlightCallOptions(timeout=flight.CALL_SECONDS)
                schema, client = fragment_schema(self._operator), self._connections.to(helper.flight)
                self._writer, _ = client.do_put(descriptor, schema, options)
                self._uri, self.helper = helper.flight, helper.instance
                return
            except (fl.FlightError, pa.ArrowException, OSError) as error:
                self._connections.forget(helper.flight)
                failed.append(f"{helper.instance} at {helper.flight} ({type(error).__name__}: {str(error)[:200]})")
        raise fl.FlightUnavailableError(
            f"no helper can be reached from this task: {'; '.join(failed) or 'no helper is alive'}"
        )

    def finish(self) -> None:
        """End the fragment. When this returns, the helper has the whole fragment."""
        if self._writer is not None:
            self._writer.close()

    def fail(self) -> None:
        """Drop the connection after a failure, with or without a helper."""
        self._connections.forget(self._uri)
