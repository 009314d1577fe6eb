"""Tells the supervisor that the run has reached a stage at which the supervisor wants to act, and waits for its action."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

from ferry.contract import bearer
from ferry.contract.certificates import authority, client_context
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("ferry.driver")


class StageHook:
    """Called at each stage of each epoch."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    def __call__(self, epoch: int, stage: str) -> None:
        """Wait for the supervisor at the stages of its choice; do not wait for a supervisor that fails to answer."""
        if (epoch, stage) not in self._settings.stops or not self._settings.supervisor:
            return
        import httpx  # Most runs do not need it.

        try:
            self._client.post(f"{self._settings.supervisor}/stage", json={"epoch": epoch, "stage": stage})
        except httpx.HTTPError as error:
            log.warning("the supervisor did not answer at %s of epoch %d: %s", stage, epoch, error)

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        token, trusted = derived(self._settings.secret, "supervisor"), authority(self._settings.secret)
        return httpx.Client(
            headers=bearer.headers(token), verify=client_context(trusted), timeout=None, trust_env=False
        )
