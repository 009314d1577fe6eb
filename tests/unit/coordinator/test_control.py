"""Who was superseded as a leader cannot place anything any more."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import prometheus_client as prom
import pytest

from ferry.contract import messages as m
from ferry.contract.catalogue import DeployRequest
from ferry.contract.certificates import authority, client_context
from ferry.contract.errors import Unreachable
from ferry.contract.limits import HANG_SECONDS
from ferry.contract.names import InstanceId, Term
from ferry.contract.plans import Plan
from ferry.contract.programs import ProgramVersion
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry.contract.tickets import derived
from ferry.coordinator import status as status_module
from ferry.coordinator.control import LagCollector, ProgramCollector, app, serve
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.coordinator.loop import Loop
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.protocol.coordinator import Coordinator, CoordinatorSettings
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.local.driver import LocalDriver

MACHINE = SimpleNamespace(table=SimpleNamespace(virtual_nodes=1), moves=SimpleNamespace(plan=None))
RELEASED = Path(__file__).parents[2] / "released" / "v0.1.0"


def test_a_lower_token_is_refused_once_a_higher_one_was_seen() -> None:
    posted: list[Plan] = []
    loop: Any = SimpleNamespace(machine=MACHINE, post=posted.append)
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None)

    def put(number: int, secret: str = "secret", **token: int) -> int:
        async def ask() -> int:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
                document = {"number": number, "placements": [["0.0"]], **token}
                answer = await client.put("/desired", json=document, headers={"Authorization": f"Bearer {secret}"})
                return answer.status_code

        return asyncio.run(ask())

    assert [put(1), put(2, token=5), put(3, token=5), put(4, token=4), put(5), put(6, token=6)] == [
        200, 200, 200, 409, 409, 200,
    ]  # fmt: skip
    assert [desired.number for desired in posted] == [1, 2, 3, 6]
    assert put(7, token=-1) == 422
    assert put(8, secret="guess", token=9) == 401


def test_a_rollback_that_is_repeated_is_carried_out_once() -> None:
    """A driver that answers late gets the request again: the second one would take the first one back."""
    asked: list[int | None] = []

    class Deploys:
        def rollback(self, number: int | None, at: int, withdraw: int | None) -> int:
            asked.append(number)
            if len(asked) == 1:
                raise Unreachable("the driver is starting")
            return 7 + len(asked)

    loop: Any = SimpleNamespace(machine=MACHINE, post=lambda _: None)
    deploys: Any = Deploys()
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None, None, deploys)

    def post(**body: Any) -> Any:
        async def ask() -> Any:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
                answer = await client.post("/rollback", json=body, headers={"Authorization": "Bearer secret"})
                return answer.status_code, answer.json().get("number")

        return asyncio.run(ask())

    assert post(to=None, attempt="a") == (423, None)
    assert [post(to=None, attempt="a") for _ in range(3)] == [(202, 9)] * 3 and len(asked) == 2
    assert [post(to=None, attempt="b"), post(to=3), post(to=3)] == [(202, 10), (202, 11), (202, 12)]


def test_what_was_accepted_last_can_be_read_again_with_what_it_was_planned_for() -> None:
    loop: Any = SimpleNamespace(machine=MACHINE, post=lambda _: None)
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None)
    document = {"number": 3, "placements": [["0.0", "1.0"]], "token": 2, "basis": {"usable": ["0.0", "1.0"]}}

    async def ask() -> list[httpx.Response]:
        headers = {"Authorization": "Bearer secret"}
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://driver", headers=headers) as client:
            before = await client.get("/desired")
            await client.put("/desired", json=document)
            await client.put("/desired", json={**document, "number": 4, "token": 1})
            return [before, await client.get("/desired")]

    before, after = asyncio.run(ask())
    assert before.status_code == 404
    assert after.json() == document


def test_what_copies_may_use_is_told_with_the_next_epoch() -> None:
    sent: list[Any] = []
    loop: Any = Loop.__new__(Loop)
    loop.machine, loop.bandwidth, loop._send = SimpleNamespace(alive=("0.0", "1.0")), -1, sent.append
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None)

    def put(bandwidth: int) -> int:
        async def ask() -> int:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
                headers = {"Authorization": "Bearer secret"}
                return (await client.put("/bandwidth", json={"bytes": bandwidth}, headers=headers)).status_code

        return asyncio.run(ask())

    assert put(-1) == 422 and loop.bandwidth == -1
    assert put(70_000) == 200
    Loop.begins(loop, 5)
    assert [(one.to, one.message) for one in sent] == [
        (i, m.Begins(5, 70_000, hears_code=True)) for i in ("0.0", "1.0")
    ]


def test_whoever_asks_hears_whether_the_loop_comes_round() -> None:
    stands = 0.0
    loop: Any = SimpleNamespace(seconds_since_pass=lambda: stands)
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None)

    async def ask(path: str) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
            return (await client.get(path)).status_code

    assert asyncio.run(ask("/healthz")) == 200
    stands = HANG_SECONDS + 1
    assert asyncio.run(ask("/healthz")) == 503
    assert asyncio.run(ask("/status")) == asyncio.run(ask("/metrics")) == 401


def test_a_reader_with_the_long_lists_gets_only_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups change with the table, loads each second. A reader without lists, or of an older version, gets both."""
    second, bodies = [7.0], list[dict[str, Any]]()
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: second[0], time=time.time))

    def whole(number: int, members: tuple[str, ...]) -> Table:
        return Table(Version(1, number), (Group(Term(0, 0), tuple(map(InstanceId, members))),) * 2)

    machine = Coordinator(CoordinatorSettings(), whole(3, ("0.0",)), None)
    loop: Any = SimpleNamespace(machine=machine, move_metrics=MoveMetrics(), bandwidth=-1)
    api = app(loop, DriverMetrics("job", str(tmp_path)), prom.CollectorRegistry(), "secret", lambda: None)

    def look(last: Status | None) -> Status:
        def send(request: httpx.Request) -> httpx.Response:
            async def ask() -> httpx.Response:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
                    return await client.get("/status", headers=dict(request.headers))

            answer = asyncio.run(ask())
            bodies.append(answer.json())
            return httpx.Response(answer.status_code, content=answer.content)

        client = DriverClient()
        headers = {"Authorization": "Bearer secret"}
        client._open = lambda _: httpx.Client(transport=httpx.MockTransport(send), headers=headers)  # type: ignore
        status = client.status("http://driver", "secret", last)
        assert status is not None and len(status.groups) == len(status.load.vnodes) == 2
        return status

    first = look(None)
    assert bodies[-1]["groups"] and bodies[-1]["load"]["vnodes"]
    again = look(first)
    assert not bodies[-1]["groups"] and not bodies[-1]["load"]["vnodes"]
    assert (again.groups, again.load, again.lists) == (first.groups, first.load, first.lists)
    second[0] = 8.0
    look(again)
    assert not bodies[-1]["groups"] and bodies[-1]["load"]["vnodes"]
    machine.journaling.table = whole(4, ("1.0", "0.0"))
    moved = look(again)
    assert bodies[-1]["groups"] and moved.groups[0] == (["1.0", "0.0"], []) and moved.version == (1, 4)
    look(replace(moved, lists=("", "")))
    assert bodies[-1]["groups"] and bodies[-1]["load"]["vnodes"]


def test_over_tls_it_is_asked_by_who_knows_the_secret(tmp_path: Path) -> None:
    settings = replace(RunSettings.read(RELEASED / "run.json"), directory=str(tmp_path), secret="s", tls="run")
    loop: Any = SimpleNamespace(seconds_since_pass=lambda: 0.0, machine=SimpleNamespace(generation=1))
    stopped: list[bool] = []
    url = serve(
        loop,
        DriverMetrics("job", ""),
        prom.CollectorRegistry(),
        settings,
        lambda: stopped.append(True),
        ("127.0.0.1", 0),
    )
    assert url.startswith("https://")
    asked = LocalDriver(tmp_path, "s")
    assert asked.stop(os.getpid()) and stopped == [True]
    asked.close()
    for guess in (LocalDriver(tmp_path, "guess"), LocalDriver(tmp_path, derived("s", "control"))):
        assert not guess.stop(os.getpid()) and len(stopped) == 1
        guess.close()
    context = client_context(authority("s"))
    for shown, code in (("s", 401), (derived("s", "supervisor"), 401), (derived("s", "control"), 200)):
        headers = {"Authorization": f"Bearer {shown}"}
        assert httpx.post(f"{url}/stop", headers=headers, verify=context, trust_env=False).status_code == code
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https", "http"), trust_env=False)


def test_what_waits_in_sources_that_know_it_is_a_metric() -> None:
    metrics, registry = DriverMetrics("job", ""), prom.CollectorRegistry()
    registry.register(LagCollector(metrics))
    assert b'{source="clicks"}' not in prom.generate_latest(registry)
    metrics.lags |= {"clicks": 7}
    assert b'ferry_source_lag_records{source="clicks"} 7.0' in prom.generate_latest(registry)


def test_a_program_in_force_is_a_metric_of_its_own(tmp_path: Path) -> None:
    programs, registry, metrics = (
        [ProgramVersion(1, 0, (0,))],
        prom.CollectorRegistry(),
        DriverMetrics("job", str(tmp_path)),
    )
    registry.register(ProgramCollector(lambda: tuple(programs), lambda: metrics.programs))
    assert b'ferry_program_first_epoch{program="1"} 0.0' in prom.generate_latest(registry)
    programs.append(ProgramVersion(2, 20, (0,)))
    assert b'ferry_program_first_epoch{program="2"} 20.0' in prom.generate_latest(registry)
    for epoch in range(7):
        metrics.finish_epoch(EpochRecord(epoch, 1.0, 1.5, 40, 30, 2, 1), 1, 0, program=2 + epoch // 2)
    shown = prom.generate_latest(registry).decode()
    for line in ("epochs", "epoch_seconds", "records", "fired_rows", "late_records", "malformed_records"):
        assert f'ferry_program_{line}_total{{program="2"}}' in shown
    assert 'ferry_program_epoch_seconds_total{program="2"} 1.0' in shown
    assert 'ferry_program_fired_rows_total{program="5"} 30.0' in shown
    metrics.finish_epoch(EpochRecord(9, 1.0, 1.5, 40, 30, 2, 1), 1, 0, program=6)
    assert 'epochs_total{program="2"}' not in prom.generate_latest(registry).decode(), "only the newest programs"


def test_a_deploy_names_the_program_that_the_user_looked_at() -> None:
    """Without it, as from an older command or from the operator, any program may be in force."""
    asked: list[DeployRequest] = []

    def request(one: DeployRequest) -> int:
        asked.append(one)
        return 4

    loop: Any = SimpleNamespace(machine=MACHINE, post=lambda _: None)
    deploys: Any = SimpleNamespace(request=request)
    api = app(loop, DriverMetrics("job", ""), prom.CollectorRegistry(), "secret", lambda: None, deploys=deploys)

    async def ask(**more: int) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://driver") as client:
            headers = {"Authorization": "Bearer secret"}
            return (await client.put("/program", json={"file": "a.py", **more}, headers=headers)).status_code

    assert [asyncio.run(ask(**more)) for more in ({}, {"base": 3}, {"base": -1})] == [202, 202, 422]
    assert [one.base for one in asked] == [0, 3]
