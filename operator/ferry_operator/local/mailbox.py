"""Requests from other threads. The thread that owns the state answers them in order, so that it needs no lock.

It does not know the contents of requests.
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
"""Time after which a request without an answer fails."""


class Mailbox(Generic[RequestT, AnswerT]):
    """The queue of requests; `answer` runs in the thread that calls `serve`."""

    def __init__(self, answer: Callable[[RequestT], AnswerT]) -> None:
        self._answer = answer
        self._waiting: queue.SimpleQueue[tuple[RequestT, Future[AnswerT]] | None] = queue.SimpleQueue()
        self._closed = False

    def ask(self, request: RequestT) -> AnswerT:
        """Return or raise the result of `answer` for this request. Raises Exhausted if no thread serves it."""
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
        """Answer the waiting requests, and refuse later requests."""
        self._closed = True
        self.serve(0.0)

    def wake(self) -> None:
        """Let `serve` return now; may be called from a signal handler."""
        self._waiting.put(None)

    def serve(self, seconds: float) -> None:
        """Wait up to `seconds` for a request, then answer all waiting requests."""
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
