"""Metrics are for who shows the token."""

from __future__ import annotations

import httpx
import prometheus_client as prom
import pytest

from ferry import scrape

TOKEN = "the-token-of-the-installation"


@pytest.fixture(scope="module")
def url() -> str:
    registry = prom.CollectorRegistry()
    prom.Gauge("ferry_example", "One", registry=registry).set(7)
    return f"http://127.0.0.1:{scrape.serve(registry, ('127.0.0.1', 0), TOKEN)}"


def test_the_metrics_are_there(url: str) -> None:
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200 and "ferry_example 7.0" in answer.text


@pytest.mark.parametrize("shown", ["", TOKEN, "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ü"])
def test_nothing_is_said_without_the_token(url: str, shown: str) -> None:
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": shown.encode("latin-1")})
    assert answer.status_code == 401 and "ferry_example" not in answer.text


def test_there_is_nothing_else(url: str) -> None:
    assert httpx.get(f"{url}/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 404


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(AssertionError):
        scrape.serve(prom.CollectorRegistry(), ("127.0.0.1", 0), "")
