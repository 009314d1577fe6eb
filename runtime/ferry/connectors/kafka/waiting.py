"""Calls of Kafka's library with a timeout. Must never import the library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ferry.contract.errors import Unreachable

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], place: str) -> T:
    """The result or error of the call. Raises Unreachable if it does not return in time, and abandons its thread.

    The library's own timeouts do not suffice: when a group's broker died during a transaction, a call never returned.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="kafka-call", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as late:
        if answer.done():
            raise
        raise Unreachable(f"{place}: no answer for {seconds:g} s") from late
