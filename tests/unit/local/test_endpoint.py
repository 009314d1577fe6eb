"""The supervisor's endpoint reads requests from HTTP, and the mailbox has them answered in the supervisor's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ferry.contract.errors import Exhausted, Refusal
from ferry_operator.control.commands import Command, parse_command
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover
from ferry_operator.local import requests as r
from ferry_operator.local.endpoint import application
from ferry_operator.local.mailbox import Mailbox


def send(ask: r.Ask, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """(status, document) of a request over HTTP that shows the token."""

    async def answer() -> httpx.Response:
        transport, headers = httpx.ASGITransport(application(ask, "token")), {"Authorization": "Bearer token"}
        async with httpx.AsyncClient(transport=transport, base_url="http://run", headers=headers) as client:
            return await client.request(method, path, json=body)

    found = asyncio.run(answer())
    return found.status_code, found.json()


def change(*commands: str, **fields: Any) -> r.ChangeJob:
    return r.ChangeJob(tuple[Command, ...](map(parse_command, commands)), **fields)


@pytest.mark.parametrize(
    ("method", "path", "body", "request_"),
    [
        ("GET", "/job", None, r.DescribeJob()),
        ("PATCH", "/spec", {"workers": 3, "instancesPerWorker": 2}, change("workers=3", "instances=2")),
        ("PATCH", "/spec", {"handover": {"strategy": "fluid"}}, change(handover=Handover(strategy="fluid"))),
        ("PATCH", "/spec", {"balance": {"mode": "off"}}, change(balance=BalanceSpec(mode="off"))),
        ("POST", "/move", {"vnodes": [3, 4], "instance": "1.0"}, change("move=3:1.0", "move=4:1.0")),
        ("POST", "/move", {"vnodes": [3], "instance": "1.0", "at_window": True}, change("move=3:1.0@window")),
        ("POST", "/drain", {"worker": 1}, change("drain=1")),
        ("POST", "/kill", {"what": "1.0"}, change("kill-instance=1.0")),
        ("DELETE", "/plan", None, r.CancelPlan()),
        ("POST", "/checkpoint", {"name": "a"}, r.BeginCheckpoint("a")),
        ("POST", "/suspend", None, r.SuspendRun()),
        ("POST", "/stage", {"epoch": 3, "stage": "begin"}, r.ReachStage(3, "begin")),
        ("POST", "/stop", None, r.StopRun()),
    ],
    ids=str,
)
def test_a_route_is_one_request(method: str, path: str, body: Any, request_: r.Request) -> None:
    asked: list[r.Request] = []

    def ask(request: r.Request) -> r.Answer:
        asked.append(request)
        return {"number": 7}

    assert send(ask, method, path, body) == (200, {"number": 7})
    assert asked == [request_]


def test_a_refusal_is_told_with_its_reason() -> None:
    def refuses(request: r.Request) -> r.Answer:
        raise Refusal("the job is ending")

    assert send(refuses, "POST", "/stop") == (409, {"reason": "the job is ending"})


@pytest.fixture
def served() -> Any:
    """Ask from a thread, and serve here."""

    def serve(answer: Callable[[int], int], request: int) -> Any:
        mailbox, results = Mailbox[int, int](answer), list[Any]()

        def ask() -> None:
            try:
                results.append(mailbox.ask(request))
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        mailbox.serve(20.0)
        thread.join(20.0)
        mailbox.close()
        with pytest.raises(Exhausted, match="the run is ending"):
            mailbox.ask(request)
        return results[0]

    return serve


def test_an_answer_and_an_error_reach_the_thread_that_asks(served: Any) -> None:
    assert served(lambda number: number + 1, 1) == 2
    assert isinstance(served(lambda number: 1 // 0, 1), ZeroDivisionError)
