"""Limits how often a task of an ingest job may die before its share is returned. Spark counts attempts, without reasons.

After this number of deaths, the task returns a receipt that says so, and the job does not fail: the driver then searches
for the record that kills the task. Must never end a task of another kind of job: its results would silently be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext, TaskContext

DEATHS = "ferry.deaths"
"""Local property of a job: the limit."""

DIED = "Python worker exited unexpectedly"
"""In the text of a failed Spark job: the process of a task died."""

DEATHS_MAX = 3
"""Deaths of a share before the driver searches for a record: a single death may have another cause."""


@contextmanager
def deaths(context: SparkContext, most: int | None) -> Iterator[None]:
    """Within the body, tasks of this thread's jobs may die `most` times; None: as often as Spark retries them."""
    try:
        context.setLocalProperty(DEATHS, None if most is None else str(most))
        yield
    finally:
        context.setLocalProperty(DEATHS, None)


def died_before() -> bool:
    """In a task: whether earlier attempts have reached the limit."""
    context = TaskContext.get()
    most = None if context is None else context.getLocalProperty(DEATHS)
    return context is not None and most is not None and int(context.attemptNumber()) >= int(most)


def refuse_dead() -> None:
    """In a task of a job without receipts: raise RuntimeError if earlier attempts have reached the limit."""
    if died_before():
        raise RuntimeError(DIED)
