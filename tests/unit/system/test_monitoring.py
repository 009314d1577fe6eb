"""Metrics are for who shows the token, health is for everybody, and nobody is kept waiting by a client that says nothing."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import prometheus_client as prom
import pytest

from ferry.contract import bearer
from ferry.system import wsgi
from ferry.system.monitoring import MonitoringServer

TOKEN = "the-token-of-the-installation"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    registry = prom.CollectorRegistry()
    prom.Gauge("ferry_example", "One", registry=registry).set(7)
    server = MonitoringServer(registry, ("127.0.0.1", 0), TOKEN)
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_the_metrics_are_there(url: str) -> None:
    answer = httpx.get(f"{url}/metrics", headers=bearer.headers(TOKEN))
    assert answer.status_code == 200 and "ferry_example 7.0" in answer.text


@pytest.mark.parametrize("shown", ["", TOKEN, "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ü"])
def test_nothing_is_said_without_the_token(url: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = httpx.get(f"{url}/metrics", headers={"Authorization": shown.encode("latin-1")})
    assert answer.status_code == 401 and "ferry_example" not in answer.text
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in caplog.text + answer.text


def test_there_is_nothing_else(url: str) -> None:
    assert httpx.get(f"{url}/", headers=bearer.headers(TOKEN)).status_code == 404
    assert httpx.get(f"{url}/healthz", headers=bearer.headers(TOKEN)).status_code == 404, "nobody has said what it is"


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(AssertionError):
        MonitoringServer(prom.CollectorRegistry(), ("127.0.0.1", 0), "")


def test_a_port_that_is_taken_is_an_error(url: str) -> None:
    with pytest.raises(OSError):
        MonitoringServer(prom.CollectorRegistry(), ("127.0.0.1", int(url.rpartition(":")[2])), TOKEN)


def test_a_client_that_says_nothing_is_sent_away_and_holds_up_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wsgi._Handler.timeout == wsgi.SECONDS_MAX == 10.0
    monkeypatch.setattr(wsgi._Handler, "timeout", 0.3)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    begun, threads = time.monotonic(), threading.active_count()
    silent = [socket.create_connection(address, timeout=10) for _ in range(8)]
    silent[0].sendall(b"GET /metrics HTTP/1.1\r\nAuthorization: Bear")
    assert httpx.get(f"{url}/metrics", headers=bearer.headers(TOKEN)).status_code == 200
    assert all(one.recv(1) == b"" for one in silent) and 0.3 <= time.monotonic() - begun < 5
    while threading.active_count() > threads and time.monotonic() - begun < 5:
        time.sleep(0.01)
    assert threading.active_count() <= threads
