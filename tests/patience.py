"""How long tests wait. Their bounds are for what never comes, and were chosen where a machine was quick."""

from __future__ import annotations

import os

PATIENCE = 3.0
"""A machine that is shared with others may be so many times as slow."""

UNTIL = float(os.environ.get("FERRY_UNTIL", "inf"))
"""When the time for all tests is over, in seconds since the epoch: none begins after it (`scripts/test`)."""

OVER = "the time for all tests was over"
