"""Client of a driver's HTTP endpoint: status, placement in force, new placements, requests.

A driver that does not answer is None or False here, but an error when a placement or request is sent to it. A driver
keeps the placement that it accepted, so that a new operator can read it.

Users' code runs in a driver: answers are bounded in time and length, and are parsed as hostile input.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ferry.contract import bearer
from ferry.contract.certificates import authority, client_context
from ferry.contract.errors import Fault, Refusal, Unreachable
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry.contract.status import KNOWN, Status
from ferry.contract.tickets import derived
from ferry_operator.control import decide as d
from ferry_operator.control.bounded_http import AnswerCut, BoundedTransport, RequestBounds
from ferry_operator.control.observed import Basis, Submitted

RUNS_MAX = 4096
"""Runs whose connections stay open; the least recently used connections are closed and opened again."""

BOUNDS = RequestBounds(seconds=3.0, connect_seconds=1.0, bytes_max=4 << 20, keep_seconds=150.0)
"""The status of a job with 32,768 virtual nodes of five members each has 3 MB, and so has its plan with the previous plan.
A connection stays open for longer than the operator waits between two looks."""

LONG_BYTES = 256 << 10
"""Longer answers are parsed one at a time: the longest answers take some 100 MB while they are parsed."""

LISTS_MAX = 8 * VIRTUAL_NODES_MAX + 10_000
"""Lists and objects in an answer: four per virtual node in a plan and in the previous plan, and some others."""

COUNT_MAX = 1 << 53
"""Largest number of a status: larger ones are not exact in JSON, the API server takes 63 bits, and a metric a float."""

TIME_MAX = 253_402_300_799
"""The last second of the year 9999, after which there are no dates."""

INSTANCE, REASON = re.compile(r"\d{1,6}\.\d{1,6}"), re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?")
"""Names of instances, and reasons of conditions that the API server accepts."""

VERSION = re.compile(r"[0-9.]{0,64}")
"""Versions of the long lists of a status."""

UNFIT = 422

NEWER = ("deadline", "at_window")
"""Fields of a plan that an older driver does not need."""

ANSWER_MAX = 300
"""Characters of a refusal that an error shows."""


class DriverRefuses(Fault, Refusal):
    """A driver refuses a request. A command has the exit code of a refusal; a reconcile tries again."""


class BadAnswer(Fault):
    """A driver's answer was cut, or has a wrong form."""

    def __init__(self, text: str, late: bool) -> None:
        super().__init__(text)
        self.late = late
        """the answer took a long time"""


class PlacementRefused(DriverRefuses):
    """A driver refuses a placement."""


MISREAD = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors of reading a document of a wrong form."""

Answer = TypeVar("Answer")


def _hasty(schema: Any) -> Any:
    """A schema that stops at the first wrong element of a list; without this a long list could give an error per element."""
    if isinstance(schema, list):
        return [_hasty(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    quick = {"fail_fast": True} if schema.get("type") in ("list", "tuple") else {}
    return {key: _hasty(part) for key, part in schema.items()} | quick


_STATUS = SchemaValidator(_hasty(TypeAdapter(Status).core_schema))

_long = threading.Lock()


class DriverClient:
    """Connections to drivers. Thread-safe."""

    def __init__(self) -> None:
        self._open = lru_cache(RUNS_MAX)(_client)
        self._closed = False

    def status(self, url: str, secret: str, last: Status | None = None) -> Status | None:
        """The status of the driver; None: no driver answers. Raises BadAnswer.

        `last`: an earlier status of this driver, whose long lists are sent again only when they have changed.
        """
        headers = {KNOWN: " ".join(last.lists)} if last is not None and all(last.lists) else {}
        status = self._read(f"{url}/status", secret, read_status, headers)
        return None if status is None else status.completed(last)

    def submitted(self, url: str, secret: str, generation: int) -> Submitted | None:
        """The placement that this generation of the driver accepted last, with its basis. Raises BadAnswer."""
        return self._read(f"{url}/desired", secret, lambda body: from_wire(json.loads(body), generation))

    def submit(self, url: str, secret: str, action: d.SubmitDesired, token: int) -> None:
        """Submit a placement. Raises PlacementRefused, Unreachable."""
        try:
            document = to_wire(action, token)
            answer = self._ask("PUT", f"{url}/desired", secret, document)
            if answer.status_code == UNFIT and "unknown: " in answer.text:
                # An older driver has its deadline in its settings, and sends a snapshot, which is as good.
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
        """Limit the copies of each instance to this many bytes a second; 0: no bound. Raises DriverRefuses, Unreachable."""
        self._request("PUT", f"{url}/bandwidth", secret, "to limit copies", {"bytes": bandwidth})

    def stop(self, url: str, secret: str) -> bool:
        """Ask for the end of the run after the current epoch; True if the driver has accepted the request."""
        try:
            return self._ask("POST", f"{url}/stop", secret).is_success
        except httpx.HTTPError:
            return False

    def checkpoint(self, url: str, secret: str, name: str | None) -> int:
        """Ask for a durable checkpoint of the next epoch; its number. Raises DriverRefuses, Unreachable."""
        answer = self._request("POST", f"{url}/checkpoint", secret, "for a checkpoint", {"name": name})
        try:
            return int(answer.json()["number"])
        except MISREAD:
            raise DriverRefuses(f"the driver gives no number for a checkpoint: {answer.text[:ANSWER_MAX]}") from None

    def suspend(self, url: str, secret: str) -> None:
        """Ask for a last checkpoint and the end of the run after it; may be repeated. Raises DriverRefuses, Unreachable."""
        self._request("POST", f"{url}/suspend", secret, "to suspend", None)

    def call(self, method: str, url: str, secret: str, purpose: str, document: dict[str, Any] | None = None) -> Any:
        """The answer to a request about programs. Raises DriverRefuses, Unreachable."""
        answer = self._request(method, url, secret, purpose, document)
        try:
            return answer.json()
        except MISREAD:
            raise DriverRefuses(f"the driver gives no JSON to the request {purpose}") from None

    def close(self) -> None:
        """Close the connections; later requests fail."""
        self._closed = True
        self._open.cache_clear()

    def _read(
        self, url: str, secret: str, read: Callable[[bytes], Answer | None], headers: Mapping[str, str] | None = None
    ) -> Answer | None:
        try:
            answer = self._ask("GET", url, secret, headers=headers)
        except AnswerCut as error:
            raise BadAnswer(f"request to the driver, {url}: {error}", late=True) from None
        except httpx.HTTPError:
            return None
        if answer.status_code != httpx.codes.OK:
            return None
        is_long = len(answer.content) > LONG_BYTES
        if answer.content.count(b"[") + answer.content.count(b"{") > LISTS_MAX:
            raise BadAnswer(f"the answer of the driver to {url} has more than {LISTS_MAX} lists and objects", is_long)
        try:
            with _long if is_long else nullcontext():
                return read(answer.content)
        except MISREAD as error:
            why = f"the answer of the driver to {url} has a wrong form: {_why(error)}"
            raise BadAnswer(why, is_long) from None

    def _request(
        self, method: str, url: str, secret: str, purpose: str, document: dict[str, Any] | None
    ) -> httpx.Response:
        try:
            answer = self._ask(method, url, secret, document)
        except httpx.HTTPError as error:
            raise Unreachable(f"the driver did not answer the request {purpose}: {error}") from None
        if answer.status_code == httpx.codes.LOCKED:
            raise Unreachable(f"the driver takes the request {purpose} later: {_reason(answer)[:ANSWER_MAX]}")
        if not answer.is_success:
            raise DriverRefuses(
                f"the driver refuses the request {purpose} with {answer.status_code}: {_reason(answer)[:ANSWER_MAX]}"
            )
        return answer

    def _ask(
        self,
        method: str,
        url: str,
        secret: str,
        document: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        if self._closed:
            raise httpx.NetworkError("the connections to drivers are closed")
        return self._open(secret).request(method, url, json=document, headers=headers)


def _client(secret: str) -> httpx.Client:
    """Connections to the driver of one run. The certificate keeps drivers of other runs from answering."""
    return httpx.Client(
        headers=bearer.headers(derived(secret, "control")) | {"Accept-Encoding": "identity"},
        transport=BoundedTransport(BOUNDS, client_context(authority(secret))),
        timeout=None,
        trust_env=False,
    )


def _reason(answer: httpx.Response) -> str:
    """The text of a refusal, without its JSON."""
    with suppress(*MISREAD):
        document = answer.json()
        if isinstance(document["detail"], str):
            return str(document["detail"])
    return answer.text.strip()


def _why(error: Exception) -> str:
    """The error of reading a document, in one line without values of the document."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"[:ANSWER_MAX]
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join((*map(str, first["loc"]), first["msg"]))[:ANSWER_MAX]


def read_status(body: bytes) -> Status:
    """A status from JSON of unknown origin. Raises ValueError, or another error of MISREAD."""
    # Not validate_json: each of its errors holds a copy of the input, and a missing field is an error about the whole input.
    status: Status = _STATUS.validate_python(json.loads(body))
    members = {*status.alive, *(name for group in status.groups for names in group for name in names)}
    if not all(map(INSTANCE.fullmatch, members)):
        raise ValueError("the name of an instance must be worker.number, such as 0.1")
    apart = replace(status, groups=[], load=replace(status.load, vnodes=[]))
    if not all(abs(number) <= COUNT_MAX for number in _numbers(asdict(apart))):
        raise ValueError("a number is out of range")
    if status.checkpoint is not None and not 0 <= (status.checkpoint.at or 0) <= TIME_MAX:
        raise ValueError("a time is out of range")
    if not sum(map(abs, chain.from_iterable(status.load.vnodes))) <= COUNT_MAX:  # also without a number
        raise ValueError("the loads are out of range")
    if not all(number >= 0 for number in _counts(status)):
        raise ValueError("a number is below its least value")
    if not all(map(VERSION.fullmatch, status.lists)):
        raise ValueError("the version of a list must be one word")
    if not all(REASON.fullmatch(sign.reason) for sign in (*status.problems, *status.notices)):
        raise ValueError("a reason must be one word")
    return status


def _counts(status: Status) -> Iterator[float]:
    """Numbers of a status that are not negative; an epoch is -1 before the first."""
    work, checkpoint = status.load.work, status.checkpoint
    yield from (status.generation, status.epoch + 1, status.progress.rows, status.moves.replica_lag)
    yield sum(rate for rate, _ in status.load.vnodes)  # a single smoothed rate may be negative for a moment
    yield from (size for _, size in status.load.vnodes)
    yield from () if work is None else _numbers(asdict(work))
    if checkpoint is not None:
        yield from (checkpoint.number or 0, checkpoint.epoch + 1, checkpoint.bytes, checkpoint.total_bytes)
    for program in status.programs:
        yield from (program.number - 1, program.since or 0, (1 if program.again is None else program.again) - 1)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def to_wire(action: d.SubmitDesired, token: int) -> dict[str, Any]:
    """A placement in the form of the driver's endpoint; the driver only stores `basis`."""
    basis = {
        "usable": list(action.basis.usable),
        "replicas": action.basis.replicas,
        "pins": [[vnode, instance] for vnode, instance in action.basis.pins],
        "plan_file": action.basis.plan_file,
        "at_window": list(action.basis.at_window),
    }
    return replace(action.plan, token=token, basis=basis).to_wire()


def from_wire(document: Any, generation: int) -> Submitted | None:
    """Inverse of `to_wire`; None if the placement has no basis. Raises ValueError, KeyError, TypeError."""
    plan = Plan.from_wire(document)
    if not plan.basis:
        return None
    basis = Basis(
        usable=tuple(InstanceId(i) for i in plan.basis["usable"]),
        replicas=int(plan.basis["replicas"]),
        pins=tuple((int(vnode), InstanceId(instance)) for vnode, instance in plan.basis["pins"]),
        plan_file=str(plan.basis.get("plan_file", "")),
        at_window=tuple(map(int, plan.basis.get("at_window", ()))),
    )
    return Submitted(replace(plan, token=0, basis=None), generation, basis)
