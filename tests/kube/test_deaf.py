"""An operator behind a proxy that stops its watches: it notices, gives the Lease away, and asks to be started again."""

from __future__ import annotations

import json
import re
import select
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from ferry_operator.kube.process.leader import DEAF_SECONDS
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.operators import HASTY, LEASE, Operator, Operators, job

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

NOTICED_SECONDS = 30.0
"""In which a process notices that it is deaf, beyond the time that it waits."""

IMPATIENT = 8.0
"""Seconds that a hasty operator waits for a silent watch."""

HASTIER = HASTY.replace("leader.RESYNC", f"leader.DEAF_SECONDS = {IMPATIENT}\nleader.RESYNC")

EXPECTED = "this process has to be started again"


class Proxy(socketserver.ThreadingTCPServer):
    """Plain HTTP to an API server behind TLS. Watches whose path has a silenced part deliver nothing, without an end."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        url = urlsplit(cluster["server"])
        self.address = (str(url.hostname), int(url.port or 443))
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.silenced = ""
        self.stopped: list[str] = []
        """paths of watches that have been silenced"""

    def is_silent(self, path: str) -> bool:
        return bool(self.silenced) and "watch=true" in path and re.search(self.silenced, path) is not None


class _Line(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        """Requests of one connection: none begins before the answer to the last one has ended."""
        path = ""
        with socket.create_connection(self.server.address) as plain, self.server.context.wrap_socket(plain) as far:
            while True:
                ready = [far] if far.pending() else select.select([self.request, far], [], [], 0.2)[0]
                if self.request in ready:
                    data = self.request.recv(1 << 16)
                    if begin := re.match(rb"[A-Z]+ (\S+) HTTP/1.1\r\n", data):
                        path = begin[1].decode()
                    if not data:
                        return
                    far.sendall(data)
                if far in ready and self.server.is_silent(path):
                    self.server.stopped.append(path)
                    time.sleep(0.2)
                elif far in ready:
                    far.settimeout(0.0)
                    try:
                        data = far.recv(1 << 16)
                    except ssl.SSLWantReadError:
                        continue  # a record of TLS alone
                    finally:
                        far.settimeout(20.0)
                    if not data:
                        return
                    self.request.sendall(data)


@contextmanager
def behind_a_proxy(operators: Operators) -> Iterator[Proxy]:
    with Proxy(operators.kubeconfig) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config = yaml.safe_load(operators.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{proxy.server_address[1]}"}
        file = operators.kubeconfig.with_name("proxied.kubeconfig")
        file.write_text(yaml.safe_dump(config))
        operators.kubeconfig = file
        yield proxy
        proxy.shutdown()


def ages(operator: Operator) -> dict[str, float]:
    """Ages of watches by kind."""
    text = operator.get("/metrics")
    return {
        kind: float(age)
        for kind, age in re.findall(
            r'^ferry_operator_watch_age_seconds\{resource="(\w+)".*\} (\S+)$', text, re.MULTILINE
        )
    }


def is_given_up(operator: Operator, kubectl: Kubectl) -> Callable[[], bool]:
    """It is unhealthy, for good, and somebody else may have the Lease."""
    return lambda: EXPECTED in operator.log.read_text() and operator.get("/healthz") != "ok"


def holder(kubectl: Kubectl) -> str:
    return str(kubectl.get("lease", LEASE)["spec"].get("holderIdentity"))


@pytest.mark.parametrize("seconds", [IMPATIENT, pytest.param(DEAF_SECONDS, marks=pytest.mark.long)])
def test_a_leader_whose_watches_stop_is_unhealthy_and_another_one_leads(
    operators: Operators, kubectl: Kubectl, times: Callable[[str, float], None], seconds: float
) -> None:
    straight = operators.kubeconfig
    with behind_a_proxy(operators) as proxy:
        deaf = operators.start(hasty=seconds == IMPATIENT, program=HASTIER)
        operators.leader()
        operators.kubeconfig = straight
        kubectl.apply(job())
        wait_until(lambda: kubectl.find("pod", "a-driver"), "pods of the job", 30)
        wait_until(lambda: ages(deaf).get("leases", 99.0) < 5.0, "a probe that goes round", 20)
        time.sleep(5.0)
        assert deaf.get("/healthz") == "ok" and max(ages(deaf).values()) < 5.0
        proxy.silenced = "/leases"
        began = time.monotonic()
        other = operators.start()
        wait_until(lambda: ages(deaf).get("leases", 0.0) > seconds / 2, "a probe that grows old", seconds)
        assert holder(kubectl).startswith("operator-0"), "its Lease is renewed meanwhile, and all else goes on"
        wait_until(is_given_up(deaf, kubectl), "an operator that is deaf", seconds + NOTICED_SECONDS)
        times("a watch stops, and the operator asks to be started again", time.monotonic() - began)
        wait_until(lambda: other.leads, "another leader", 20)
        assert proxy.stopped and "silent" in deaf.get("/healthz") and "ferry_operator_hangs 1.0" in deaf.get("/metrics")
        kubectl.run("scale", "sj/a", "--replicas=3")
        wait_until(lambda: kubectl.find("pod", "a-worker-2"), "a pod of another leader", 30)
        assert deaf.get("/healthz") != "ok" and holder(kubectl).startswith("operator-1")
        operators.close()
    expect(deaf)


def test_a_watch_of_jobs_that_stops_is_noticed_at_the_next_change(
    operators: Operators, kubectl: Kubectl, times: Callable[[str, float], None]
) -> None:
    """The probe goes on, and listings still follow edits, only late."""
    with behind_a_proxy(operators) as proxy:
        deaf = operators.start(hasty=True, program=HASTIER)
        operators.leader()
        kubectl.apply(job())
        wait_until(lambda: kubectl.find("pod", "a-driver"), "pods of the job", 30)
        proxy.silenced = "/streamjobs"
        began = time.monotonic()
        kubectl.run("scale", "sj/a", "--replicas=3")
        wait_until(lambda: kubectl.find("pod", "a-worker-2"), "an edit that a listing has shown", 60)
        wait_until(is_given_up(deaf, kubectl), "an operator that is deaf", IMPATIENT + NOTICED_SECONDS)
        times("a watch of jobs stops, and the operator asks to be started again", time.monotonic() - began)
        assert "the watch of streamjobs" in deaf.get("/healthz")
        operators.close()
    expect(deaf)


def test_what_users_write_makes_no_operator_unhealthy(operators: Operators, kubectl: Kubectl) -> None:
    """Pods with Ferry's labels, and none of a job; jobs that come and go; a Lease that is deleted and written to."""
    stray = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "x", "image": "x"}]}}
    managed = {"app.kubernetes.io/managed-by": "ferry"}
    operators.start(hasty=True, program=HASTIER)
    one = operators.leader()
    for number, labels in enumerate(({}, {"ferry.dev/job": ""}, {"ferry.dev/job": "x", "ferry.dev/worker": "9" * 60})):
        annotations = {"ferry.dev/token": "x", "ferry.dev/instances": "-", "ferry.dev/eviction": "?"}
        metadata = {"name": f"stray-{number}", "labels": {**managed, **labels}, "annotations": annotations}
        kubectl.apply({**stray, "metadata": metadata})
    until, round_ = time.monotonic() + 20, 0
    while time.monotonic() < until:
        round_ += 1
        kubectl.apply(job())
        kubectl.run("label", "pod", "stray-0", "--overwrite", f"ferry.dev/job={'x' if round_ % 2 else ''}")
        kubectl.run("annotate", "lease", LEASE, "--overwrite", f"x={round_}")
        kubectl.run("delete", "sj", "a", "--wait=false")
        if round_ % 5 == 0:
            kubectl.run("delete", "lease", LEASE)
            wait_until(lambda: kubectl.find("lease", LEASE), "Lease made anew", 20)
            operators.leader()
        assert one.get("/healthz") == "ok", json.dumps(ages(one))
    wait_until(lambda: max(ages(one).values(), default=99.0) < 5.0, "watches that owe nothing", 30)


def expect(operator: Operator) -> None:
    """The complaints of a test that causes some: this one, and no other."""
    lines = operator.complaints()
    assert lines and all(EXPECTED in line for line in lines), lines
    operator.log.write_text("")
