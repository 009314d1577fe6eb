"""The port through which the operator sees and changes the cluster: seven verbs on plain documents, and how they fail.

`client` implements it with an API server; tests with one in memory. It retries nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ferry.contract import journals
from ferry.contract.errors import Fault
from ferry_operator.kube.api.names import GROUP, PLURAL, VERSION, Doc


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, as the API's paths name it."""

    group: str
    """empty for the core group"""
    version: str
    plural: str
    kind: str
    namespaced: bool = True


JOBS = Kind(GROUP, VERSION, PLURAL, "StreamJob")
PODS = Kind("", "v1", "pods", "Pod")
SECRETS = Kind("", "v1", "secrets", "Secret")
EVENTS = Kind("", "v1", "events", "Event")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
JOURNALS = Kind(journals.GROUP, journals.VERSION, journals.PLURAL, journals.KIND)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")

NOT_FOUND, CONFLICT, FORBIDDEN, UNFIT = 404, 409, 403, 422


class ApiError(Fault):
    """The API server said no, or nothing."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        self.status = status
        """HTTP status; 0 when there was no answer"""
        self.reason = reason
        """the API's one word for it"""
        super().__init__(text)

    @property
    def is_transient(self) -> bool:
        """Whether the API server is away or busy: the same request may do better later."""
        return self.status in (0, 429) or self.status >= 500


class Deposed(Fault):
    """The Lease may be another's by now: nothing more is written."""


class Api(Protocol):
    """The namespace that the operator looks after, and the cluster's nodes. Raises ApiError."""

    def get(self, kind: Kind, name: str) -> Doc:
        """One object."""

    def find(self, kind: Kind, selector: str = "") -> list[Doc]:
        """All objects, or those with these labels."""

    def create(self, kind: Kind, document: Doc) -> Doc:
        """Make an object; CONFLICT when there is one of that name."""

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        """Put a whole object in place; CONFLICT when it carries a resourceVersion that is not the present one."""

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        """Merge into an object; CONFLICT as in `replace`."""

    def amend(self, kind: Kind, name: str, steps: Sequence[Doc], dry_run: bool = False) -> Doc:
        """Do the steps of a JSON patch, all or none; UNFIT when a test fails. A dry run changes nothing."""

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        """Delete the object if it is this one, in this version; `grace` seconds, 0: now, None: as it says itself."""


def tolerate(error: ApiError, *allowed: int) -> None:
    """Raise unless the answer is as good as success."""
    if error.status not in allowed:
        raise error
