"""Calls of Kafka's library that are waited for no longer than they should take. Must never import that library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ferry.contract.errors import Unreachable

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """What the call gives, or raises. Raises Unreachable when it does not return: its thread is left alone then.

    The library has time limits of its own. When the broker that leads a group died under a transaction, a call has stayed
    beyond its limit, for ever.
    """
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="kafka-call", daemon=True).start()
    try:
        return made.result(seconds)
    except TimeoutError as late:
        if made.done():
            raise
        raise Unreachable(f"{what}: no answer for {seconds:g} s") from late
