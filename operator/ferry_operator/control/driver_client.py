"""The driver of a job over HTTP: its status, the placement in force there, a new placement, requests.

A driver that does not answer is no error here but None or False, unless it was to take a placement. What was submitted is
kept by the driver that accepted it, so that an operator that takes over knows what is in force though none wrote it down.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import httpx

from ferry.contract import bearer
from ferry.contract.certificates import authority, client_context
from ferry.contract.documents import Status
from ferry.contract.errors import Fault, Unreachable
from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry.contract.tickets import derived
from ferry_operator.control import decide as d

RUNS_MAX = 4096
"""Runs whose connections are kept; those of others are closed and opened again."""

TIMEOUT = httpx.Timeout(2.0, connect=1.0)

UNFIT = 422

NEWER = ("deadline", "at_window")
"""Of a plan, what an older driver can do without."""

ANSWER_MAX = 300
"""Characters of a refusal that are passed on."""


class DriverRefuses(Fault):
    """A driver answers, and does not do what it is asked for."""


class PlacementRefused(DriverRefuses):
    """A driver answers, and does not take a placement."""


class DriverClient:
    """Connections to drivers. Thread-safe."""

    def __init__(self) -> None:
        self._open = lru_cache(RUNS_MAX)(_client)

    def status(self, url: str, secret: str) -> Status | None:
        """What the driver says of itself."""
        try:
            answer = self._ask("GET", f"{url}/status", secret)
            return Status.from_wire(answer.json()) if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, TypeError, KeyError):
            return None

    def submitted(self, url: str, secret: str, generation: int) -> d.Submitted | None:
        """The placement that this generation of the driver accepted last, with what it was planned for."""
        try:
            answer = self._ask("GET", f"{url}/desired", secret)
            return from_wire(answer.json(), generation) if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, TypeError, KeyError):
            return None

    def submit(self, url: str, secret: str, action: d.SubmitDesired, token: int) -> None:
        """Hand over a placement. Raises PlacementRefused when the driver says no, Unreachable when it says nothing."""
        try:
            document = to_wire(action, token)
            answer = self._ask("PUT", f"{url}/desired", secret, document)
            if answer.status_code == UNFIT and "unknown: " in answer.text:
                # An older one: it has its deadline in its settings, and sends a snapshot, which is as good.
                document = {
                    name: value for name, value in document.items() if name not in NEWER or name not in answer.text
                }
                answer = self._ask("PUT", f"{url}/desired", secret, document)
        except httpx.HTTPError as error:
            raise Unreachable(f"the driver did not take plan {action.plan.number}: {error}") from None
        if not answer.is_success:
            body = answer.text.strip()[:ANSWER_MAX]
            raise PlacementRefused(f"the driver refuses plan {action.plan.number} with {answer.status_code}: {body}")

    def limit_copies(self, url: str, secret: str, bandwidth: int) -> None:
        """So many bytes a second, of each instance; 0: no bound. Raises DriverRefuses, Unreachable."""
        self._asked("PUT", f"{url}/bandwidth", secret, "a bandwidth of copies", {"bytes": bandwidth})

    def stop(self, url: str, secret: str) -> bool:
        """Ask for the end after the epoch under way; True when the driver has heard it."""
        try:
            return self._ask("POST", f"{url}/stop", secret).is_success
        except httpx.HTTPError:
            return False

    def checkpoint(self, url: str, secret: str, name: str | None) -> int:
        """Ask for a durable checkpoint as of the next epoch; its number. Raises DriverRefuses, Unreachable."""
        answer = self._asked("POST", f"{url}/checkpoint", secret, "a checkpoint", {"name": name})
        try:
            return int(answer.json()["number"])
        except (ValueError, TypeError, KeyError):
            raise DriverRefuses(f"the driver gives no number for a checkpoint: {answer.text[:ANSWER_MAX]}") from None

    def suspend(self, url: str, secret: str) -> None:
        """Ask for a last checkpoint and the end after it, once or again. Raises DriverRefuses, Unreachable."""
        self._asked("POST", f"{url}/suspend", secret, "to be suspended", None)

    def close(self) -> None:
        """Close the connections."""
        self._open.cache_clear()

    def _asked(self, method: str, url: str, secret: str, what: str, document: dict[str, Any] | None) -> httpx.Response:
        try:
            answer = self._ask(method, url, secret, document)
        except httpx.HTTPError as error:
            raise Unreachable(f"the driver was asked for {what}, and does not answer: {error}") from None
        if not answer.is_success:
            raise DriverRefuses(
                f"the driver refuses {what} with {answer.status_code}: {answer.text.strip()[:ANSWER_MAX]}"
            )
        return answer

    def _ask(self, method: str, url: str, secret: str, document: dict[str, Any] | None = None) -> httpx.Response:
        return self._open(secret).request(method, url, json=document)


def _client(secret: str) -> httpx.Client:
    """Connections to the driver of one run. Drivers of other runs cannot pass for it."""
    return httpx.Client(
        headers=bearer.headers(derived(secret, "control")),
        verify=client_context(authority(secret)),
        timeout=TIMEOUT,
        trust_env=False,
    )


def to_wire(action: d.SubmitDesired, token: int) -> dict[str, Any]:
    """A placement as the driver takes it; `basis` means nothing to it."""
    basis = {
        "usable": list(action.basis.usable),
        "replicas": action.basis.replicas,
        "pins": [[vnode, instance] for vnode, instance in action.basis.pins],
        "given": action.basis.given,
        "at_window": list(action.basis.at_window),
    }
    return replace(action.plan, token=token, basis=basis).to_wire()


def from_wire(document: Any, generation: int) -> d.Submitted | None:
    """The inverse; None when it was submitted by something that gave no basis. Raises ValueError, KeyError, TypeError."""
    one = Plan.from_wire(document)
    if not one.basis:
        return None
    basis = d.Basis(
        usable=tuple(InstanceId(i) for i in one.basis["usable"]),
        replicas=int(one.basis["replicas"]),
        pins=tuple((int(vnode), InstanceId(instance)) for vnode, instance in one.basis["pins"]),
        given=str(one.basis.get("given", "")),
        at_window=tuple(map(int, one.basis.get("at_window", ()))),
    )
    return d.Submitted(one.number, generation, basis, one.placements, (one.at_epoch, one.at_time), one.at_window)
