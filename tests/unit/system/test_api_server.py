"""Nothing of a request is read for who does not show the token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated

import httpx
import pytest
from fastapi import Body, FastAPI

from ferry.contract import bearer
from ferry.system.api_server import ApiServer, guarded

TOKEN = "the-token-of-the-run"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    application = FastAPI()

    @application.get("/healthz")
    def healthz() -> str:
        return "well"

    @application.post("/it")
    def do(body: Annotated[dict[str, int], Body()]) -> dict[str, int]:
        return body

    server = ApiServer(guarded(application, TOKEN, {"/healthz"}), ("127.0.0.1", 0))
    yield server.url
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_who_shows_the_token_is_answered(url: str) -> None:
    with httpx.Client(base_url=url, headers=bearer.headers(TOKEN)) as client:
        assert client.post("/it", json={"a": 1}).json() == {"a": 1}
        assert client.post("/it", content=b"no JSON").status_code == 422
        assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize("shown", [None, "", TOKEN, "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ü"])
@pytest.mark.parametrize("path", ["/it", "/nothing", "/healthz/", "/openapi.json"])
def test_who_does_not_is_told_what_is_missing_and_nothing_else(
    url: str, path: str, shown: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {} if shown is None else {"Authorization": shown.encode("latin-1")}
    with caplog.at_level(logging.DEBUG):
        answer = httpx.post(f"{url}{path}", headers=headers, content=b"no JSON")
    assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.content == bearer.REFUSED
    assert TOKEN not in caplog.text


def test_two_headers_are_none(url: str) -> None:
    twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer guess")]
    assert httpx.post(f"{url}/it", headers=twice, json={}).status_code == 401


def test_health_is_for_everybody(url: str) -> None:
    assert httpx.get(f"{url}/healthz").status_code == 200
