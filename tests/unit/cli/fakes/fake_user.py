"""A user's API over the small cluster of `fake_world`: what he changes, the operator there sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ferry.contract import journals
from ferry.contract.names import InstanceId, Term
from ferry.contract.plans import Plan
from ferry.contract.routing import Group, Table, Version
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, JOURNALS, ApiError, Kind
from tests.unit.kube.fakes.fake_api import merged
from tests.unit.kube.fakes.fake_world import World, job, settled


class FakeUser:
    context, namespace = "kind", "jobs"

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.api
        self.find, self.create, self.replace, self.delete = (
            world.api.find,
            world.api.create,
            world.api.replace,
            world.api.delete,
        )
        self.logs: dict[tuple[str, str, bool], bytes] = {}
        """by pod, container and whether it is the one before"""
        self.refuses: ApiError | None = None
        self.forbidden: list[Kind] = []
        self.away: Callable[[Kind], ApiError | None] = lambda kind: None
        """what a question about this kind fails with"""
        self.written: list[tuple[Doc, str]] = []
        """patches, and the subresource of each"""

    def get(self, kind: Kind, name: str) -> Doc:
        assert kind.kind != "Secret", "nobody reads Secrets"
        self._allowed(kind)
        return self.journal() if kind is JOURNALS else self.api.get(kind, name)

    def journal(self) -> Doc:
        """As the driver would have written it."""
        driver = self.world.driver
        assert driver is not None
        groups = tuple(Group(Term(1, 1), tuple(map(InstanceId, group))) for group in driver.groups)
        plan = Plan.from_wire(driver.desired) if driver.desired is not None else None
        plan = replace(plan, reached=len(plan.steps)) if plan is not None else None
        return {"spec": {"table": journals.packed(Table(Version(1, 1), groups, plan=plan))}}

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        if self.refuses is not None:
            raise self.refuses
        self.written.append((document, subresource))
        if subresource == "scale":
            return self.api.patch(kind, name, {"spec": {"workers": document["spec"]["replicas"]}})
        return self.api.patch(kind, name, document, subresource)

    def dry_run(self, kind: Kind, name: str, document: Doc) -> Doc:
        if self.refuses is not None:
            raise self.refuses
        found: Doc = merged(self.api.get(kind, name), document)
        return found

    def events(self, about: str) -> list[Doc]:
        self._allowed(EVENTS)
        return [one for one in self.api.find(EVENTS) if one["involvedObject"]["name"] == about]

    def log(
        self, pod: str, container: str, follow: bool = False, previous: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        data = self.logs.get((pod, container, previous))
        if data is None:
            raise ApiError(400, "BadRequest", f"container {container!r} in pod {pod!r} is waiting to start")
        lines = data.splitlines(keepends=True)
        yield from lines if tail is None else lines[-tail:]

    def _allowed(self, kind: Kind) -> None:
        if kind in self.forbidden:
            raise ApiError(403, "Forbidden", f"{kind.plural} is forbidden")
        if (error := self.away(kind)) is not None:
            raise error


def user(**spec: Any) -> FakeUser:
    """Of a job at rest."""
    world = World()
    world.api.create(JOBS, job(**spec))
    world.until(settled)
    return FakeUser(world)
