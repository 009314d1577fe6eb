"""What the operator counts, for Prometheus. It never looks at jobs itself."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client as prom

SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one process, and gauges that are read when they are scraped."""

    def __init__(self) -> None:
        self.registry = prom.CollectorRegistry()
        self._calls = prom.Counter(
            "ferry_operator_api_requests",
            "Calls of the API server",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._passes = prom.Histogram(
            "ferry_operator_reconcile_seconds", "Length of a pass over one job", buckets=SECONDS, registry=self.registry
        )
        self._errors = prom.Counter(
            "ferry_operator_reconcile_errors", "Passes that failed", ("reason",), registry=self.registry
        )
        self._handovers = prom.Histogram(
            "ferry_operator_handover_seconds",
            "From the first virtual node under way to the last one in place",
            buckets=(0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
            registry=self.registry,
        )

    def count_call(self, verb: str, resource: str, code: str) -> None:
        """One call of the API server."""
        self._calls.labels(verb, resource, code).inc()

    def count_pass(self, seconds: float) -> None:
        """One pass over a job."""
        self._passes.observe(seconds)

    def count_error(self, reason: str) -> None:
        """One pass that failed."""
        self._errors.labels(reason).inc()

    def count_handover(self, seconds: float) -> None:
        """A handover that came to its end."""
        self._handovers.observe(seconds)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is read at every scrape."""
        prom.Gauge(f"ferry_operator_{name}", text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return prom.generate_latest(self.registry)
