"""Readers of topics that a process keeps, for whoever reads next: what one has fetched ahead is not fetched again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ferry.spark.kafka_client import RangeReader
from ferry.spark.kafka_place import KafkaPlace

IDLE_MAX = 2  # readers of one topic that a process keeps for later

_idle: dict[tuple[int, KafkaPlace, str], list[RangeReader]] = {}
"""Readers that nobody uses now, by process."""


@contextmanager
def lent_reader(place: KafkaPlace, topic: str) -> Iterator[RangeReader]:
    """A reader of this process, kept for the next one who asks; closed after an error."""
    idle = _idle.setdefault((os.getpid(), place, topic), [])
    one = idle.pop() if idle else RangeReader(place, topic)
    try:
        yield one
    except BaseException:
        one.close()
        raise
    if len(idle) < IDLE_MAX:
        idle.append(one)
    else:
        one.close()
