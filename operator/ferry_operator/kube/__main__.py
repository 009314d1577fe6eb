"""`python -m ferry_operator.kube --namespace N`: one of several operators of a release; the holder of the Lease works.

| environment | |
|---|---|
| FERRY_IMAGE | default image of jobs |
| FERRY_SERVICE_ACCOUNT | default service account of jobs |
| FERRY_USER | default user and group of jobs; '': the cluster chooses |
| FERRY_REDIS_URL, FERRY_REDIS_PASSWORD, FERRY_REDIS_CA | Redis of the installation; PEM of its authority |
| FERRY_REDIS_TLS_PORT | its port for TLS; the port in the URL is opened for older runs; not set: the URL says all |
| FERRY_KEY_SECRET | Secret with the keys of runs (`api.keys`); not set: the password, or the URL, of Redis is the key |
| FERRY_ROLL_JOBS, FERRY_ROLL_SECONDS | jobs that roll to another default at a time; time after which a roll has stopped |
| FERRY_NAMESPACE_OBJECTS | JSON: objects that the operator creates in each chosen namespace (`process.namespaces`) |
| FERRY_READ_NODES | 'false': the operator lists no nodes |
| FERRY_EVICTION_WEBHOOK | name of the ValidatingWebhookConfiguration for evictions; not set: no webhook is served |
| FERRY_EVICTION_ADDRESS | name of the service of the webhook, and its port here: ferry-evictions.streams.svc:8443 |
| FERRY_LEAVING_TAINTS | keys of taints, or KEY=VALUE, with commas: a node with such a taint counts as cordoned |
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
from collections.abc import Callable, Iterator, Mapping, Sequence

from ferry.contract import variables
from ferry.system import logs
from ferry.system.memory import share_freed
from ferry.system.monitoring import MonitoringServer
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.keys import read_keys
from ferry_operator.kube.api.lease import EXPIRY_SECONDS, RENEW_SECONDS, Lease
from ferry_operator.kube.api.port import FORBIDDEN, JOBS, NOT_FOUND, PODS, Api, ApiError, tolerate
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.manifests.release import USER, Installation, redis_url
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.eviction_webhook import EvictionWebhook
from ferry_operator.kube.process.leader import Leader
from ferry_operator.kube.process.namespaces import OWN, NamespaceChoice, Namespaces

log = logging.getLogger("ferry.operator")

LEASE_TIMEOUT = (1.5, 3.0)
"""Seconds to connect and to read, for calls about the Lease: a call ends before the Lease expires."""

WAIT_SECONDS = 1.0
"""Between two attempts to take the Lease."""

HEAPS = 2
"""Heaps of the C library that all threads share: each of 16 heaps kept memory that the first listing of jobs had freed."""

HUNG_SECONDS = 30.0
"""A process whose last attempt to renew or take the Lease is older than this hangs."""


FRAMES_MAX, STACK_BYTES = 25_000, 16 << 20
"""Frames of Python, and bytes for them in a thread. The API server takes objects that are nested 10,000 deep; with the
default of 1,000 frames one such StreamJob would end the watches of other namespaces."""

TOKEN_MAX = 2**30
"""Tokens of pods are lower: users can write pods, and a Lease has no number above 2**31."""


class OperatorProcess:
    """The operator process: waits for the Lease, leads while the Lease is held, and releases the Lease at the end."""

    def __init__(
        self,
        release: Installation,
        lease_name: str,
        identity: str,
        port: int,
        metrics_token: str | None,
        choice: NamespaceChoice = OWN,
    ) -> None:
        self._release = release
        self._choice = choice
        self._metrics = Metrics()
        self._api = KubeApi(release.namespace, self._metrics.count_call)
        quick = KubeApi(release.namespace, self._metrics.count_call, LEASE_TIMEOUT)
        self._lease = Lease(quick, lease_name, identity, lambda: highest_token(*self._namespaces()))
        self._leader: Leader | None = None
        self._looked_at = time.monotonic()
        self._hang: str | None = None
        """why this process has to be started again: it does not lead any more"""
        self.stop = threading.Event()
        gauge = self._metrics.gauge
        gauge("lease_held", "1 for the leader", lambda: float(self._lease.held))
        gauge("token", "Fencing token of the leader, else 0", lambda: self._lease.token if self._lease.held else 0)
        gauge("namespaces", "Namespaces with jobs of the leader", lambda: self._leader.managed if self._leader else 0)
        gauge("namespaces_failing", "Namespaces that the leader cannot list", self._failing)
        gauge("queue_depth", "Jobs that are due", lambda: self._leader.queue.depth() if self._leader else 0)
        gauge("definition_missing_fields", "Fields that the definition of StreamJob lacks", self._missing_fields)
        gauge("rolls_stopped", "Jobs whose rolls stand still, so that no other job begins one", self._stopped_rolls)
        gauge("queue_age_seconds", "Wait of the job that has been due for longest", self._queue_age)
        gauge("hangs", "1 for a process that has to be started again", lambda: float(self._hang is not None))
        self._metrics.watches(lambda: self._leader.watch_ages() if self._leader else {})
        self._monitoring = MonitoringServer(self._metrics.registry, ("", port), metrics_token, self._problem)
        self._webhook = self._eviction_webhook()

    def run(self) -> None:
        """Lead, or wait for the Lease, until `stop` is set."""
        log.info("%s: operator of the release %s", self._lease.identity, self._release.home)
        while not self.stop.is_set():
            slept = time.monotonic() - self._looked_at > EXPIRY_SECONDS
            self._looked_at = time.monotonic()
            if self._hang is None:
                self._lead_or_wait(slept)
            self.stop.wait(RENEW_SECONDS if self._leader is not None else WAIT_SECONDS)
        self._end_leader()
        if self._webhook is not None:
            self._webhook.close()
        self._monitoring.close()

    def _lead_or_wait(self, slept: bool) -> None:
        """`slept`: the process did not run for a while, such as on a machine that was suspended."""
        self._acquire_or_renew()
        if self._leader is not None and slept:
            self._leader.woke()
        if self._leader is not None and (why := self._deposed(self._leader)):
            self._hang = self._leader.hang if self._lease.held else None
            log.warning("this operator no longer leads: %s", why)
            self._end_leader()
        elif self._leader is None and self._lease.held:
            log.info("this operator leads, with token %d", self._lease.token)
            held, token = self._held_with(self._lease.token), self._lease.token
            self._leader = Leader(self._api, self._release, token, held, self._metrics, self._choice)
            self._leader.start()

    def _eviction_webhook(self) -> EvictionWebhook | None:
        name, (host, _, port) = self._release.eviction_webhook, self._release.eviction_address.rpartition(":")
        if name is None:
            return None
        webhook = EvictionWebhook(self._api, name, host, self._keys, lambda: self._lease.held, int(port))
        webhook.start()
        return webhook

    def _keys(self) -> Mapping[int, str]:
        secret = self._release.key_secret
        return read_keys(self._api, secret) if secret is not None else {1: self._release.key}

    def _deposed(self, leader: Leader) -> str | None:
        """The reason to end this leader, or None."""
        if not self._lease.held:
            return "the Lease is lost"
        if self._lease.token != leader.token:
            return f"the Lease was created again, with token {self._lease.token}"
        if leader.hang is not None:
            return f"{leader.hang}: this process has to be started again"
        return None if leader.healthy else "it cannot list the jobs"

    def _acquire_or_renew(self) -> None:
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

    def _namespaces(self) -> Iterator[Api]:
        """The namespaces that may have tokens."""
        chosen = Namespaces(self._api, self._choice, self._release.namespace, lambda api: api).chosen()
        return map(self._api.within, sorted(chosen))

    def _failing(self) -> float:
        return len(self._leader.failing) if self._leader else 0.0

    def _queue_age(self) -> float:
        return self._leader.queue.age() if self._leader else 0.0

    def _stopped_rolls(self) -> float:
        return len(self._leader.turns.stopped(time.time())) if self._leader else 0.0

    def _missing_fields(self) -> float:
        return len(self._leader.definition.missing) if self._leader else 0.0

    def _problem(self) -> str | None:
        if time.monotonic() - self._looked_at > HUNG_SECONDS:
            return "the process does not renew or watch the Lease"
        leader = self._leader
        if self._hang is not None or leader is None:
            return self._hang
        return leader.hang or (None if leader.healthy else "the leader cannot list the jobs")


def highest_token(*namespaces: Api) -> int:
    """The highest fencing token on any job or pod of the namespaces; 0 without a token. Raises ApiError."""
    tokens = [0]
    for api in namespaces:
        try:
            highest = max((int((job.get("status") or {}).get("token") or 0) for job in api.each(JOBS)), default=0)
        except ApiError as error:
            tolerate(error, NOT_FOUND, FORBIDDEN)
            if error.status == FORBIDDEN:
                continue  # a namespace without roles, and so without pods of a job
            highest = 0  # the custom resource definition is not installed yet
        tokens.append(highest)
        pods = map(facts.pod, api.each(PODS, f"{names.MANAGED}={names.MANAGER}"))
        tokens += [token for pod in pods if (token := pod.number(names.TOKEN)) < TOKEN_MAX]
    return max(tokens)


def release_of(environ: Mapping[str, str], namespace: str, lease: str = "ferry-operator") -> Installation:
    """Read the installation from environment variables."""
    password = environ.get("FERRY_REDIS_PASSWORD", "")
    taints = environ.get("FERRY_LEAVING_TAINTS")
    url = redis_url(environ.get("FERRY_REDIS_URL", "redis://localhost:6379/0"), password)
    return Installation(
        namespace=namespace,
        image=environ.get("FERRY_IMAGE", "localhost/ferry/runtime:dev"),
        redis=url,
        redis_ca=environ.get("FERRY_REDIS_CA", ""),
        redis_tls_port=int(environ.get("FERRY_REDIS_TLS_PORT") or 0),
        key=password or url,
        home=f"{namespace}/{lease}",
        key_secret=environ.get("FERRY_KEY_SECRET") or None,
        service_account=environ.get("FERRY_SERVICE_ACCOUNT") or None,
        user=int(environ.get("FERRY_USER", USER)) if environ.get("FERRY_USER") != "" else None,
        roll_jobs=int(environ.get("FERRY_ROLL_JOBS") or 3),
        roll_seconds=float(environ.get("FERRY_ROLL_SECONDS") or 900),
        read_nodes=environ.get("FERRY_READ_NODES", "true").lower() not in ("false", "0", "no"),
        metrics_secret=environ.get("FERRY_METRICS_SECRET") or None,
        leaving_taints=tuple(filter(None, taints.split(","))) if taints is not None else names.LEAVING,
        eviction_webhook=environ.get("FERRY_EVICTION_WEBHOOK") or None,
        eviction_address=environ.get("FERRY_EVICTION_ADDRESS", ""),
        metrics_token=environ.get(variables.METRICS_TOKEN) or None,
        allow=Allowed.read(environ.get("FERRY_JOBS_ALLOW", "")),
    )


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m ferry_operator.kube", description="Ferry's operator.")
    parser.add_argument("--namespace", required=True, help="the namespace of the release")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--namespaces", default="", help="namespaces of jobs: a,b; default: the namespace of the release"
    )
    where.add_argument("--selector", help="labels of the namespaces of jobs")
    where.add_argument(
        "--all-namespaces", action="store_const", const="", dest="selector", help="jobs of all namespaces"
    )
    parser.add_argument("--lease", default="ferry-operator", help="name of the Lease")
    parser.add_argument("--port", type=int, default=8080, help="port of /healthz and /metrics")
    options = parser.parse_args(arguments)
    share_freed(HEAPS)
    logs.begin("%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(
        logging.ERROR
    )  # kopf warns that it cannot handle signals in a thread
    sys.setrecursionlimit(FRAMES_MAX)
    threading.stack_size(STACK_BYTES)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(3)}"
    release, token = (
        release_of(os.environ, options.namespace, options.lease),
        os.environ.get(variables.METRICS_TOKEN) or None,
    )
    choice = NamespaceChoice.read(options.namespaces, options.selector, os.environ.get("FERRY_NAMESPACE_OBJECTS", ""))
    process = OperatorProcess(release, options.lease, identity, options.port, token, choice)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop.set())
    process.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
