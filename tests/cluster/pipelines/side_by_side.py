"""Many of the papers' queries in one job, each with its own operators and sinks: one Spark for all of them."""

from __future__ import annotations

import importlib
import json
from typing import Any


def _jobs(args: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Modules of queries, and the arguments of each: its generator's and its own."""
    queries = json.loads(args["queries"])
    found = [(importlib.import_module(f"ferry_workloads.jobs.{query}"), given) for query, given in queries.items()]
    return [(job, {**given, "events": args["events"]}) for job, given in found]


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What any of them reads; queries of one generator have the same arguments of it."""
    return {name: made for job, given in _jobs(args) for name, made in job.sources(spark, given).items()}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """All of them."""
    made = [job.pipeline(streams, given) for job, given in _jobs(args)]
    return [output for one in made for output in (one if isinstance(one, list) else [one])]
