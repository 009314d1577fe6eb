"""From one topic of Kafka to another, and how many records of each partition were seen."""

from __future__ import annotations

from typing import Any

import ferry


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A topic without an end."""
    return {"records": ferry.kafka(args["servers"], "from", beside=["partition"])}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Straight behind the source, and behind an operator."""
    records = streams["records"]
    seen = records.key_by("partition").aggregate("seen", num=ferry.count())
    return [
        records.sink(ferry.kafka_sink(args["servers"], "to", value="bytes")),
        seen.sink(ferry.kafka_sink(args["servers"], "seen", key="partition")),
    ]
