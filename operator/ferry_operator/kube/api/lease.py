"""Leader election by a Lease, with a fencing token.

The holder renews the Lease. The others take the Lease once it has not changed for `EXPIRY_SECONDS` of their own clocks,
so clocks need not agree. A holder that cannot renew stops before this time. Every new holder has a higher token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFLICT, LEASES, NOT_FOUND, Api, ApiError, tolerate

RENEW_SECONDS = 2.0
HELD_SECONDS = 6.0
"""A holder without a renewal for this time stops acting."""

EXPIRY_SECONDS = 10.0
"""Another process may take a Lease without a change for this time."""

assert RENEW_SECONDS < HELD_SECONDS < EXPIRY_SECONDS


class Lease:
    """The Lease, as one process sees it. One thread calls `acquire_or_renew`; all threads may read `held` and `token`."""

    def __init__(
        self,
        api: Api,
        name: str,
        identity: str,
        known: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`identity` is unique to this process: a restarted process is another holder. `known`: returns the highest token
        on any object of the namespace; may raise ApiError."""
        self._api = api
        self._name = name
        self.identity = identity
        self._known = known
        self._clock = clock
        self._wall = wall
        self._renewed: float | None = None
        self._token = 0
        self._seen: tuple[str, float] | None = None
        """(resourceVersion, time of its first observation)"""
        self._lock = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether this process is the leader, by its own clock."""
        with self._lock:
            return self._renewed is not None and self._clock() - self._renewed < HELD_SECONDS

    @property
    def token(self) -> int:
        """The fencing token: higher than the token of every previous holder."""
        return self._token

    def acquire_or_renew(self) -> bool:
        """Renew the Lease, or take it if it is free; returns whether it is held. Raises ApiError without an answer."""
        began = self._clock()
        try:
            lease = self._api.get(LEASES, self._name)
        except ApiError as error:
            tolerate(error, NOT_FOUND)
            # Minutes since 1970 rise even where no object has a token of a previous holder; but a clock may be set back.
            return self._write(began, None, max(int(self._wall() / 60), self._known() + 1, self._token + 1))
        spec = lease.get("spec") or {}
        token = int(spec.get("leaseTransitions") or 0)
        if spec.get("holderIdentity") == self.identity:
            return self._write(began, lease, token)
        with self._lock:
            self._renewed = None
        if spec.get("holderIdentity") and not self._expired(lease):
            return False
        return self._write(began, lease, token + 1)

    def release(self) -> None:
        """Release the Lease, so that another process can take it at once. A failure is harmless: the Lease expires."""
        with self._lock:
            if self._renewed is None:
                return
            self._renewed = None
        try:
            lease = self._api.get(LEASES, self._name)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                self._api.replace(LEASES, self._name, lease)
        except ApiError:
            pass

    def _expired(self, lease: Doc) -> bool:
        record, now = str(lease["metadata"].get("resourceVersion")), self._clock()
        if self._seen is None or self._seen[0] != record:
            self._seen = (record, now)
        return now - self._seen[1] >= EXPIRY_SECONDS

    def _write(self, began: float, lease: Doc | None, token: int) -> bool:
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(EXPIRY_SECONDS),
            "leaseTransitions": token,
            "renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(self._wall())),
        }
        try:
            if lease is None:
                document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
                self._api.create(LEASES, {**document, "spec": {**spec, "acquireTime": spec["renewTime"]}})
            else:
                old = lease.get("spec") or {}
                same = old.get("holderIdentity") == self.identity
                acquired = old.get("acquireTime") if same else spec["renewTime"]
                self._api.replace(LEASES, self._name, {**lease, "spec": {**old, **spec, "acquireTime": acquired}})
        except ApiError as error:
            tolerate(error, CONFLICT)
            with self._lock:
                self._renewed = None
            return False
        with self._lock:
            self._token, self._renewed = token, began
        return True
