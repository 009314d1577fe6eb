"""A job of a given size whose records come at the pace of the clock, once its state is there."""

from __future__ import annotations

from typing import Any

from bench.shared import bigstate
from bench.shared.paced_keys import PacedKeys


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The keys."""
    return {"keys": PacedKeys(int(args["keys"]), float(args["rate"]), bool(args.get("numbered")))}


pipeline = bigstate.pipeline
