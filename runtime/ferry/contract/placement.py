"""The document with which a placement is handed to a driver: where every virtual node is wanted.

It has no opinion of what makes a placement good; only the driver knows how many virtual nodes there are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ferry.contract.names import InstanceId


@dataclass(frozen=True, slots=True)
class DesiredPlacement:
    """Body of `PUT /desired`, and answer of `GET /desired`."""

    number: int
    """A higher one replaces a lower one; from 1."""
    placements: tuple[tuple[InstanceId, ...], ...]
    """By virtual node: the leader, then its replicas."""
    token: int = 0
    """Fencing token of who decided it: after a higher one was seen a lower one is refused."""
    basis: dict[str, Any] | None = None
    """What it was planned for: kept for whoever plans next, and not looked at."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"placements": [list(placement) for placement in self.placements]}

    @classmethod
    def from_wire(cls, document: Any) -> DesiredPlacement:
        """The inverse. Raises ValueError that says what is wrong; what is not known is refused, for it may matter."""
        if not isinstance(document, dict) or not {"number", "placements"} <= document.keys():
            raise ValueError("a placement has a number and placements")
        unknown = document.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        number, token, basis = document["number"], document.get("token", 0), document.get("basis")
        if type(number) is not int or number < 1 or type(token) is not int or token < 0:
            raise ValueError("number is a whole number from 1, token one from 0")
        if basis is not None and not isinstance(basis, dict):
            raise ValueError("basis is an object")
        return cls(number, _placements(document["placements"]), token, basis)


def _placements(lists: Any) -> tuple[tuple[InstanceId, ...], ...]:
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in lists):
        raise ValueError("placements is a list of lists")
    if not all(isinstance(instance, str) for one in lists for instance in one):
        raise ValueError("instances are names")
    if any(not one or len(set(one)) != len(one) for one in lists):
        raise ValueError("every placement names a leader and then distinct replicas")
    return tuple(tuple(InstanceId(instance) for instance in one) for one in lists)
