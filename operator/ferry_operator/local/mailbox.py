"""Requests from other threads, run one after another in the thread that owns the state: no lock is needed there.

It knows nothing of what the requests do.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TypeVar

from ferry.contract.errors import Exhausted

Answer = TypeVar("Answer")

ASK_SECONDS = 30.0
"""A request that was not run by then is given up."""


class Mailbox:
    """Where other threads hand in their requests."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closed = False

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """Have the owner run `request`, and return or raise what it does; raises Exhausted when nobody serves."""
        future: Future[Answer] = Future()
        if self._closed:
            raise Exhausted("the run is ending")

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(request())
            except BaseException as error:
                future.set_exception(error)

        self._requests.put(run)
        try:
            return future.result(ASK_SECONDS)
        except FutureTimeout:
            future.cancel()
            raise Exhausted(f"the supervisor did not answer within {ASK_SECONDS:g} s") from None

    def close(self) -> None:
        """Answer what waits, and refuse what comes later."""
        self._closed = True
        self.serve(0.0)

    def wake(self) -> None:
        """Let `serve` return now; may be called from a signal handler."""
        self._requests.put(lambda: None)

    def serve(self, seconds: float) -> None:
        """Run what was handed in; returns after the first requests, or when `seconds` have passed without any."""
        with suppress(queue.Empty):
            self._requests.get(timeout=max(0.0, seconds))()
            while True:
                self._requests.get_nowait()()
