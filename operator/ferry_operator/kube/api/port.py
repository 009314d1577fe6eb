"""The port between the operator and the API server: seven verbs on plain documents, and their errors.

`client` implements the port for an API server, tests in memory. It retries nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ferry.contract import journals
from ferry.contract.errors import Fault
from ferry_operator.kube.api.names import GROUP, PLURAL, VERSION, Doc


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, with the parts of its API path."""

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
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
JOURNALS = Kind(journals.GROUP, journals.VERSION, journals.PLURAL, journals.KIND)
WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
DEFINITIONS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount")
POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
OF_NAMESPACES = {kind.kind: kind for kind in (ROLE_BINDINGS, ACCOUNTS, POLICIES)}
"""Kinds of the objects that the operator creates in a namespace."""
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")

NOT_FOUND, CONFLICT, FORBIDDEN, GONE, UNFIT = 404, 409, 403, 410, 422


class ApiError(Fault):
    """The API server refused a request, or did not answer."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        self.status = status
        """HTTP status; 0 without an answer"""
        self.reason = reason
        """the `reason` of the API, such as AlreadyExists"""
        super().__init__(text)

    @property
    def is_transient(self) -> bool:
        """Whether the API server is down or busy: the same request may succeed later."""
        return self.status in (0, 429) or self.status >= 500


class Deposed(Fault):
    """Another operator may hold the Lease by now: this one writes nothing more."""


class Api(Protocol):
    """One namespace, and the cluster's own objects. Raises ApiError."""

    def get(self, kind: Kind, name: str) -> Doc:
        """One object."""

    def find(self, kind: Kind, selector: str = "", name: str = "") -> list[Doc]:
        """All objects, or all with these labels, or the object of this name: for who may list, and not get."""

    def each(self, kind: Kind, selector: str = "") -> Iterator[Doc]:
        """The same, a page at a time. An object may come twice: a list that takes long begins again."""

    def create(self, kind: Kind, document: Doc) -> Doc:
        """Create an object; CONFLICT when the name exists."""

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        """Replace a whole object; CONFLICT when its resourceVersion is not the present version."""

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        """Apply a merge patch; CONFLICT as in `replace`."""

    def json_patch(self, kind: Kind, name: str, steps: Sequence[Doc]) -> Doc:
        """Apply a JSON patch, atomically; UNFIT when a test fails."""

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        """Delete the object, with uid and version as preconditions; `grace` seconds, 0: now, None: its own default."""


class Schemas(Protocol):
    """What the API server publishes of its kinds, to every client that it knows. Raises ApiError."""

    def schemas(self, kind: Kind) -> Doc:
        """The OpenAPI document of the group and version of a kind."""


class Definitions(Protocol):
    """Definitions of custom resources, for the hook of the chart. Raises ApiError."""

    def get(self, kind: Kind, name: str) -> Doc:
        """One definition."""

    def apply(self, kind: Kind, name: str, document: Doc) -> Doc:
        """Apply the fields of a definition, and take them from other field managers."""


class Watchable(Protocol):
    """A listing, and the changes since. Raises ApiError."""

    def listed(self, kind: Kind) -> tuple[list[Doc], str]:
        """All objects, and the version of the listing."""

    def changes(self, kind: Kind, version: str, seconds: int, name: str = "") -> Iterator[tuple[str, Doc]]:
        """ADDED, MODIFIED, DELETED or BOOKMARK with an object, for some seconds; GONE when the version is too old.

        `version`: empty: begin with all objects; `name`: of the only object.
        """


class ClusterApi(Api, Schemas, Watchable, Protocol):
    """The release's own namespace, with a way to the other namespaces."""

    def within(self, namespace: str) -> Api:
        """Another namespace, over the same connections; empty: `find` finds the objects of all namespaces."""


def tolerate(error: ApiError, *allowed: int) -> None:
    """Raise the error again unless its status is allowed."""
    if error.status not in allowed:
        raise error
