"""`python -m ferry_operator.kube --namespace N`: one of several operators of a namespace; the holder of the Lease works.

| environment | |
|---|---|
| FERRY_IMAGE | default image of jobs |
| FERRY_SERVICE_ACCOUNT | default service account of jobs |
| FERRY_USER | default user and group of jobs; '': the cluster chooses |
| FERRY_REDIS_URL, FERRY_REDIS_PASSWORD | Redis of the installation |
| FERRY_KEY | key from which the secrets of runs are derived; default: the password, or the URL, of Redis |
| FERRY_READ_NODES | 'false': the operator lists no nodes |
| FERRY_METRICS_TOKEN | token that a scrape of this process presents; not set: it serves no metrics |
| FERRY_METRICS_SECRET | Secret with the `token` that a scrape of a job presents; not set: jobs serve no metrics |
| FERRY_JOBS_ALLOW | JSON: names that jobs may use, and names of the installation itself (`manifests.allowed`) |
| POD_NAME | part of this process's name in the Lease |
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ferry.contract import variables
from ferry.system import logs
from ferry.system.monitoring import MonitoringServer
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.lease import RENEW_SECONDS, Lease
from ferry_operator.kube.api.port import JOBS, NOT_FOUND, PODS, Api, ApiError, tolerate
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.manifests.release import USER, Installation, redis_url
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.leader import Leader

log = logging.getLogger("ferry.operator")

LEASE_TIMEOUT = (1.5, 3.0)
"""Seconds to connect and to read, for calls about the Lease: a call ends before the Lease expires."""

WAIT_SECONDS = 1.0
"""Between two attempts to take the Lease."""

HUNG_SECONDS = 30.0
"""A process whose last attempt to renew or take the Lease is older than this hangs."""


class OperatorProcess:
    """The operator process: waits for the Lease, leads while the Lease is held, and releases the Lease at the end."""

    def __init__(
        self, release: Installation, lease_name: str, identity: str, port: int, metrics_token: str | None
    ) -> None:
        self._release = release
        self._metrics = Metrics()
        self._api = KubeApi(release.namespace, self._metrics.count_call)
        quick = KubeApi(release.namespace, self._metrics.count_call, LEASE_TIMEOUT)
        self._lease = Lease(quick, lease_name, identity, lambda: highest_token(self._api))
        self._leader: Leader | None = None
        self._looked_at = time.monotonic()
        self.stop = threading.Event()
        gauge = self._metrics.gauge
        gauge("lease_held", "1 for the leader", lambda: float(self._lease.held))
        gauge("token", "Fencing token of the leader, else 0", lambda: self._lease.token if self._lease.held else 0)
        gauge("queue_depth", "Jobs that are due", lambda: self._leader.queue.depth() if self._leader else 0)
        gauge("queue_age_seconds", "Wait of the job that has been due for longest", self._queue_age)
        self._monitoring = MonitoringServer(self._metrics.registry, ("", port), metrics_token, self._problem)

    def run(self) -> None:
        """Lead, or wait for the Lease, until `stop` is set."""
        log.info("%s: operator of namespace %s", self._lease.identity, self._release.namespace)
        while not self.stop.is_set():
            self._acquire_or_renew()
            if self._leader is not None and (why := self._deposed(self._leader)):
                log.warning("this operator no longer leads: %s", why)
                self._end_leader()
            elif self._leader is None and self._lease.held:
                log.info("this operator leads, with token %d", self._lease.token)
                held, token = self._held_with(self._lease.token), self._lease.token
                self._leader = Leader(self._api, self._release, token, held, self._metrics)
                self._leader.start()
            self.stop.wait(RENEW_SECONDS if self._leader is not None else WAIT_SECONDS)
        self._end_leader()
        self._monitoring.close()

    def _deposed(self, leader: Leader) -> str | None:
        """The reason to end this leader, or None."""
        if not self._lease.held:
            return "the Lease is lost"
        if self._lease.token != leader.token:
            return f"the Lease was created again, with token {self._lease.token}"
        return None if leader.healthy else "it hangs"

    def _acquire_or_renew(self) -> None:
        self._looked_at = time.monotonic()
        try:
            self._lease.acquire_or_renew()
        except ApiError as error:
            log.info("the Lease: %s", error)

    def _held_with(self, token: int) -> Callable[[], bool]:
        return lambda: self._lease.held and self._lease.token == token

    def _end_leader(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None and not leader.close(self._lease.release):
            log.info("a reconcile did not end: the process does not wait for its thread")

    def _queue_age(self) -> float:
        return self._leader.queue.age() if self._leader else 0.0

    def _problem(self) -> str | None:
        if time.monotonic() - self._looked_at > HUNG_SECONDS:
            return "the process does not renew or watch the Lease"
        leader = self._leader
        return "the leader hangs" if leader is not None and not leader.healthy else None


def highest_token(api: Api) -> int:
    """The highest fencing token on any job or pod of the namespace; 0 without a token. Raises ApiError."""
    try:
        jobs = api.find(JOBS)
    except ApiError as error:
        tolerate(error, NOT_FOUND)  # the custom resource definition is not installed yet
        jobs = []
    written = [int((job.get("status") or {}).get("token") or 0) for job in jobs]
    pods = map(facts.pod, api.find(PODS, f"{names.MANAGED}={names.MANAGER}"))
    return max([0, *written, *(pod.number(names.TOKEN) for pod in pods)])


def release_of(environ: Mapping[str, str], namespace: str) -> Installation:
    """Read the installation from environment variables."""
    password = environ.get("FERRY_REDIS_PASSWORD", "")
    url = redis_url(environ.get("FERRY_REDIS_URL", "redis://localhost:6379/0"), password)
    return Installation(
        namespace=namespace,
        image=environ.get("FERRY_IMAGE", "localhost/ferry/runtime:dev"),
        redis=url,
        key=environ.get("FERRY_KEY") or password or url,
        service_account=environ.get("FERRY_SERVICE_ACCOUNT") or None,
        user=int(environ.get("FERRY_USER", USER)) if environ.get("FERRY_USER") != "" else None,
        read_nodes=environ.get("FERRY_READ_NODES", "true").lower() not in ("false", "0", "no"),
        metrics_secret=environ.get("FERRY_METRICS_SECRET") or None,
        allow=Allowed.read(environ.get("FERRY_JOBS_ALLOW", "")),
    )


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m ferry_operator.kube", description="Ferry's operator.")
    parser.add_argument("--namespace", required=True, help="the namespace of the jobs")
    parser.add_argument("--lease", default="ferry-operator", help="name of the Lease")
    parser.add_argument("--port", type=int, default=8080, help="port of /healthz and /metrics")
    options = parser.parse_args(arguments)
    logs.begin("%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(
        logging.ERROR
    )  # kopf warns that it cannot handle signals in a thread
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(3)}"
    release, token = release_of(os.environ, options.namespace), os.environ.get(variables.METRICS_TOKEN) or None
    process = OperatorProcess(release, options.lease, identity, options.port, token)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop.set())
    process.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
