"""A Prometheus on a node of a lab. It scrapes what the chart's own monitors name, with the token that these name.

From a monitor it is told what Prometheus' operator would tell it. It is asked over a Unix socket, because the machine's
network has no way to that of the nodes. It asserts nothing itself.
"""

from __future__ import annotations

import base64
import math
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
import yaml

from tests.kube import discovery
from tests.kube.clusters import LAB, Lab
from tests.kube.discovery import Discovery, meta
from tests.kube.kubectl import Document, Kubectl, wait_until

PORT = 9090
READY_SECONDS = 30.0
ANSWER_SECONDS = 30.0

SCRAPERS = "networkPolicies.scrapers[0].ipBlock.cidr=10.250.0.0/24"
"""Value of the chart that lets the nodes of a lab scrape: this Prometheus is no pod."""

PROXY = "socat -lf {socket}.log UNIX-LISTEN:{socket},fork,unlink-early TCP:127.0.0.1:{port} &"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """(seconds since 1970, value)"""

    @property
    def numbers(self) -> list[float]:
        """Values that are numbers."""
        return [value for _, value in self.points if math.isfinite(value)]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is scraped."""

    labels: Mapping[str, str]
    health: str
    problem: str


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert."""

    name: str
    health: str
    state: str
    problem: str


class PrometheusFailed(Exception):
    """It refused a query, or did not start."""


class Prometheus:
    """Runs while it is used as a context."""

    def __init__(
        self, lab: Lab, kubectl: Kubectl, monitors: Sequence[Document], rules: Path, directory: Path, node: int = 1
    ) -> None:
        """`directory` gets its files; its path has to be short enough for a socket in it."""
        self._lab, self._node, self._directory = lab, node, directory
        self._discovery = Discovery(kubectl, directory)
        self._socket = directory / "api.sock"
        self._configuration = configuration(kubectl, monitors, rules, directory)
        self._process: subprocess.Popen[bytes] | None = None
        transport = httpx.HTTPTransport(uds=str(self._socket))
        self._client = httpx.Client(transport=transport, base_url="http://prometheus", timeout=ANSWER_SECONDS)

    def __enter__(self) -> Prometheus:
        file = self._directory / "prometheus.yaml"
        file.write_text(yaml.safe_dump(self._configuration))
        program = self._lab.run("program", "prometheus").strip()
        words = [
            f"--config.file={file}", f"--storage.tsdb.path={self._directory / 'data'}", "--log.level=warn",
            f"--web.listen-address=127.0.0.1:{PORT}",
        ]  # fmt: skip
        script = PROXY.format(socket=self._socket, port=PORT) + ' exec "$@"'
        command = [str(LAB), "node-exec", str(self._node), "sh", "-c", script, "sh", program, *words]
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "FERRY_LAB": self._lab.name},
            )  # fmt: skip
        self._discovery.__enter__()
        try:
            wait_until(self._is_ready, "Prometheus", READY_SECONDS)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._discovery.__exit__()
        # The node's processes are in our process group, though not in our process namespace.
        for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._client.close()

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise PrometheusFailed(f"it did not start: {self.log()}")
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def log(self) -> str:
        """The end of what it said."""
        return (self._directory / "log").read_text(errors="replace")[-3000:]

    # ---- what it is asked
    def now(self, query: str) -> list[Series]:
        """The value of a query, now."""
        return list(_series(self._answer("query", query=query)))

    def over(self, query: str, begin: float, end: float, step: float = 1.0) -> list[Series]:
        """A query at every `step` seconds."""
        return list(_series(self._answer("query_range", query=query, start=begin, end=end, step=step)))

    def number(self, query: str) -> float:
        """The only value of a query, now; NaN when there is none."""
        found = self.now(query)
        return found[0].points[0][1] if len(found) == 1 else math.nan

    def targets(self) -> list[Target]:
        """Everything that is scraped."""
        found = self._answer("targets", state="active")["activeTargets"]
        return [Target(one["labels"], one["health"], one["lastError"]) for one in found]

    def rules(self) -> list[Rule]:
        """Every alert, and how its last evaluation went."""
        groups = self._answer("rules")["groups"]
        return [
            Rule(one["name"], one["health"], one["state"], one.get("lastError", ""))
            for group in groups
            for one in group["rules"]
        ]

    def _answer(self, what: str, **parameters: str | float) -> Document:
        answer = self._client.get(f"/api/v1/{what}", params=parameters).json()
        if answer["status"] != "success":
            raise PrometheusFailed(f"{parameters}: {answer.get('error')}")
        found: Document = answer["data"]
        return found


def _series(data: Document) -> Iterator[Series]:
    for one in data["result"]:
        points = one["values"] if "values" in one else [one["value"]]
        yield Series(one["metric"], tuple((float(t), float(value)) for t, value in points))


def configuration(kubectl: Kubectl, monitors: Sequence[Document], rules: Path, directory: Path) -> Document:
    """What Prometheus' operator makes of monitors of the chart, as far as these go."""
    return {
        "global": {"evaluation_interval": "2s"},
        "rule_files": [str(rules)],
        "scrape_configs": [_scrape(one, kubectl, directory) for one in monitors],
    }


INTERVALS = {"__interval": "1s", "__rate_interval": "1m"}
"""What Grafana makes of its own variables: the step of a query, and four times its default scrape interval."""


def filled(query: str, **variables: str) -> str:
    """A query of a dashboard with its variables replaced; those that are not given match everything."""
    return re.sub(r"\$(\w+)", lambda found: (INTERVALS | variables).get(found[1], ".*"), query)


def _scrape(monitor: Document, kubectl: Kubectl, directory: Path) -> Document:
    pods = monitor["kind"] == "PodMonitor"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints" if pods else "endpoints"]
    of = "pod" if pods else "service"
    chosen = {f"{of}_label_{label}": value for label, value in monitor["spec"]["selector"]["matchLabels"].items()}
    chosen["pod_container_port_name" if pods else "endpoint_port_name"] = endpoint["port"]
    return {
        "job_name": f"{kubectl.namespace}/{monitor['metadata']['name']}",
        "metrics_path": endpoint["path"],
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "honor_labels": endpoint.get("honorLabels", False),
        "authorization": {"credentials": token(kubectl, endpoint["authorization"]["credentials"])},
        "file_sd_configs": [{"files": [str(discovery.file_of(directory, "pod" if pods else "endpoints"))]}],
        "relabel_configs": [
            *({"source_labels": [meta(label)], "regex": value, "action": "keep"} for label, value in chosen.items()),
            {"source_labels": [meta("pod_phase")], "regex": "Failed|Succeeded", "action": "drop"},
            {"source_labels": [meta("namespace")], "target_label": "namespace"},
            {"source_labels": [meta("pod_name")], "target_label": "pod"},
            *(
                {"source_labels": one["sourceLabels"], "target_label": one["targetLabel"]}
                for one in endpoint.get("relabelings", ())
            ),
        ],
        "metric_relabel_configs": [
            {re.sub("([A-Z])", r"_\1", key).lower(): value for key, value in one.items()}
            for one in endpoint.get("metricRelabelings", ())
        ],
    }


def token(kubectl: Kubectl, credentials: Mapping[str, str]) -> str:
    """What a key of a Secret holds."""
    return base64.b64decode(kubectl.get("secret", credentials["name"])["data"][credentials["key"]]).decode()
