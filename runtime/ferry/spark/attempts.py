"""How often a task of an ingest job may die before its share is given back: Spark counts attempts, and knows no reason.

A task that has died so often ends with a receipt that says so, in place of a failed job: the driver then looks for the
record that kills it. Must never end a task of any other job so: what it leaves out would be missing in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext, TaskContext

DEATHS = "ferry.deaths"
"""Local property of a job."""

DIED = "Python worker exited unexpectedly"
"""In the text of a failed Spark job: a process of a task has died under it."""

DEATHS_MAX = 3
"""Deaths of a share before anybody looks closer: of one of them something else may be the cause."""


@contextmanager
def deaths(context: SparkContext, most: int | None) -> Iterator[None]:
    """Jobs of this thread have tasks that die so often at most; None: as often as Spark tries them."""
    try:
        context.setLocalProperty(DEATHS, None if most is None else str(most))
        yield
    finally:
        context.setLocalProperty(DEATHS, None)


def died_before() -> bool:
    """In a task: whether attempts before this one have failed as often as they may."""
    context = TaskContext.get()
    most = None if context is None else context.getLocalProperty(DEATHS)
    return context is not None and most is not None and int(context.attemptNumber()) >= int(most)


def refuse_dead() -> None:
    """In a task of a job without receipts: raise RuntimeError, if attempts before this one have died."""
    if died_before():
        raise RuntimeError(DIED)
