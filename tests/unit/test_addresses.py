"""Servers listen on addresses of both families, and URLs of both can be used."""

from __future__ import annotations

import socket
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client as prom
import pytest

from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract.addresses import is_v6, netloc
from ferry.contract.executors import ExecutorStart
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.coordinator import control
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.environment import Environment
from ferry.sidecar.node import Node
from ferry.system.monitoring import MonitoringServer
from ferry.worker import launch
from ferry_operator.control.driver_client import DriverClient

TOKEN = {"Authorization": "Bearer t"}


def has_version_6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_version_6(), reason="no IPv6 here"))]


def test_how_addresses_stand_in_a_url() -> None:
    assert [netloc(host, 7070) for host in ("10.0.0.1", "fd00::1")] == ["10.0.0.1:7070", "[fd00::1]:7070"]
    assert [is_v6(host) for host in ("10.0.0.1", "fd00::1")] == [False, True]


@pytest.mark.parametrize("host", HOSTS)
def test_metrics_and_health_are_reached(host: str) -> None:
    for listens in (host, ""):
        server = MonitoringServer(prom.CollectorRegistry(), (listens, 0), "t", lambda: None)
        request = urllib.request.Request(f"http://{netloc(host, server.port)}/metrics", headers=TOKEN)
        assert urllib.request.urlopen(request, timeout=10).status == 200
        assert urllib.request.urlopen(f"http://{netloc(host, server.port)}/healthz", timeout=10).read() == b"ok"
        server.close()


@pytest.mark.parametrize(("host", "spark"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_an_executor_is_told_its_address(host: str, spark: str, tmp_path: Path) -> None:
    driver = DriverPlace(1, True, "a", "spark://CoarseGrainedScheduler@x:7078", "")
    start = ExecutorStart(512, [], {}, {})
    line = launch.command("j-1", Environment(host=host), launch.Files(tmp_path), tmp_path, driver, start, 7)
    assert line[line.index("--hostname") + 1] == spark


@pytest.mark.parametrize(
    ("host", "uri"), [("10.0.0.1", "grpc+tls://10.0.0.1:7201"), ("fd00::1", "grpc+tls://[fd00::1]:7201")]
)
def test_where_instances_serve_tasks(host: str, uri: str) -> None:
    one: Any = object.__new__(Node)
    one._env, one._index = Environment(host=host, fixed_ports=True), 1
    one.settings = SimpleNamespace(encrypted=True)
    place = one._flight_place()
    assert place.location == place.uri(7201) == uri


@pytest.mark.parametrize("tls", ["off", "run"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_driver_is_asked(host: str, tls: str, tmp_path: Path) -> None:
    settings = RunSettings.read(Path(__file__).parents[1] / "released" / "v0.1.0" / "run.json")
    settings = replace(settings, directory=str(tmp_path), secret="s", tls=tls)
    loop: Any = SimpleNamespace(seconds_since_pass=lambda: 0.0, machine=SimpleNamespace(generation=1))
    registry = prom.CollectorRegistry()
    url = control.serve(loop, DriverMetrics("job", ""), registry, settings, lambda: None, (host, 0))
    assert url.startswith(f"{'https' if tls == 'run' else 'http'}://{netloc(host, 0).removesuffix('0')}")
    link = DriverClient()
    assert link.stop(url, "s")
    link.close()


@pytest.mark.parametrize("host", HOSTS)
def test_a_channel_is_opened(host: str) -> None:
    came = threading.Event()
    a, b = (
        TcpEndpoint(name, "job", b"s" * 16, lambda *_: None, lambda *_: came.set(), lambda *_: None)
        for name in ("a", "b")
    )
    where = b.listen(host)
    assert where[0] == host
    a.connect("b", where, 10.0)
    assert came.wait(10)
    for one in (a, b):
        one.close()
