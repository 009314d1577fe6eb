"""From one topic of Kafka to another, with nothing between."""

from __future__ import annotations

from typing import Any

import ferry


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A topic without an end."""
    return {"records": ferry.kafka(args["servers"], "from")}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Values as they are."""
    return streams["records"].sink(ferry.kafka_sink(args["servers"], "to", value="bytes"))
