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

from ferry import scrape
from ferry.channel.tcp import TcpEndpoint
from ferry.contract.addresses import is_v6, netloc
from ferry.contract.documents import RunSettings
from ferry.coordinator import control
from ferry.coordinator.progress import Progress
from ferry_operator.kube.driver_link import DriverLink
from ferry_operator.kube.health import Health

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
    port = scrape.serve(prom.CollectorRegistry(), (host, 0), "t")
    request = urllib.request.Request(f"http://{netloc(host, port)}/metrics", headers=TOKEN)
    assert urllib.request.urlopen(request, timeout=10).status == 200
    health = Health(0, lambda: None, lambda: b"", None)
    assert urllib.request.urlopen(f"http://{netloc(host, health.port)}/healthz", timeout=10).read() == b"ok"
    health.close()


@pytest.mark.parametrize("tls", ["off", "run"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_driver_is_asked(host: str, tls: str, tmp_path: Path) -> None:
    settings = RunSettings.read(Path(__file__).parent / "contract" / "released" / "v0_1_0.run.json")
    settings = replace(settings, directory=str(tmp_path), secret="s", tls=tls)
    loop: Any = SimpleNamespace(stands_for=lambda: 0.0, machine=SimpleNamespace(generation=1))
    registry = prom.CollectorRegistry()
    url = control.serve(loop, Progress("job", ""), registry, settings, lambda: None, (host, 0))
    assert url.startswith(f"{'https' if tls == 'run' else 'http'}://{netloc(host, 0).removesuffix('0')}")
    link = DriverLink()
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
