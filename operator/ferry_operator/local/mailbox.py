"""Requests from other threads, answered one after another in the thread that owns the state: no lock is needed there.

It knows nothing of the contents of requests.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Generic, TypeVar

from ferry.contract.errors import Exhausted

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

ASK_SECONDS = 30.0
"""A request that was not answered by then is given up."""


class Mailbox(Generic[RequestT, AnswerT]):
    """Where other threads hand in their requests; `answer` runs in the thread that calls `serve`."""

    def __init__(self, answer: Callable[[RequestT], AnswerT]) -> None:
        self._answer = answer
        self._waiting: queue.SimpleQueue[tuple[RequestT, Future[AnswerT]] | None] = queue.SimpleQueue()
        self._closed = False

    def ask(self, request: RequestT) -> AnswerT:
        """Return or raise what `answer` does with this request; raises Exhausted when nobody serves."""
        future: Future[AnswerT] = Future()
        if self._closed:
            raise Exhausted("the run is ending")
        self._waiting.put((request, future))
        try:
            return future.result(ASK_SECONDS)
        except FutureTimeout:
            future.cancel()
            raise Exhausted(f"the supervisor did not answer within {ASK_SECONDS:g} s") from None

    def close(self) -> None:
        """Answer the requests that wait, and refuse later ones."""
        self._closed = True
        self.serve(0.0)

    def wake(self) -> None:
        """Let `serve` return now; may be called from a signal handler."""
        self._waiting.put(None)

    def serve(self, seconds: float) -> None:
        """Answer requests; returns after those that wait, or when `seconds` have passed without any."""
        with suppress(queue.Empty):
            self._run(self._waiting.get(timeout=max(0.0, seconds)))
            while True:
                self._run(self._waiting.get_nowait())

    def _run(self, waiting: tuple[RequestT, Future[AnswerT]] | None) -> None:
        if waiting is None:
            return
        request, future = waiting
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._answer(request))
        except BaseException as error:
            future.set_exception(error)
