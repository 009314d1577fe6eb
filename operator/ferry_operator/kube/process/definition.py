"""Compares the definition of StreamJob in the cluster with this operator, in a thread of its own.

The API server publishes its schemas to every client that it knows, so the operator needs no right to read definitions.
"""

from __future__ import annotations

import logging
import threading

from ferry_operator.job.definition import missing_fields
from ferry_operator.kube.api.port import JOBS, ApiError, Schemas
from ferry_operator.kube.observe.definition import Definition

log = logging.getLogger("ferry.operator")

SECONDS, AGAIN_SECONDS = 300.0, 20.0
"""Between two readings; while the definition is older or cannot be read."""


class DefinitionReading:
    """Keeps a `Definition` up to date, from `start` to `close`."""

    def __init__(self, api: Schemas, definition: Definition) -> None:
        self._api = api
        self._definition = definition
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="definition", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, without a wait for a running request."""
        self._end.set()

    def read(self) -> float:
        """Read the definition once; returns seconds until the next reading."""
        try:
            missing = missing_fields(self._api.schemas(JOBS))
        except ApiError as error:
            log.info("the definition of %s cannot be read: %s", JOBS.kind, error)
            return AGAIN_SECONDS
        except Exception:
            log.exception("the definition of %s could not be parsed", JOBS.kind)
            return SECONDS
        if missing and missing != self._definition.missing:
            log.warning("%s", Definition(missing).problem)
        self._definition.missing = missing
        return AGAIN_SECONDS if missing else SECONDS

    def _run(self) -> None:
        while not self._end.is_set():
            self._end.wait(self.read())
