"""NBQ5 on an input whose parts are read side by side, each as a flow of its own: the later ones are hours ahead."""

from __future__ import annotations

from typing import Any

from ferry_workloads.jobs import nbq5
from ferry_workloads.jobs.nbq5 import pipeline as pipeline


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids in three flows."""
    return {name: source.in_flows(3) for name, source in nbq5.sources(spark, args).items()}
