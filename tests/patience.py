"""How long tests may take: each one, and all together. Which do not run, and why."""

from __future__ import annotations

import os

PATIENCE = 3.0
"""Bounds are for what never comes, and were chosen where a machine was quick; one that is shared is slower by as much."""

UNTIL = float(os.environ.get("FERRY_UNTIL", "inf"))
"""When the time for all tests is over, in seconds since the epoch: none begins after it (`scripts/test`)."""

TURN = os.environ.get("FERRY_TURN")
"""0 or 1: of the stories that take turns every second one runs. Without it all of them do."""

OVER = "the time for all tests was over"
NOT_THEIR_TURN = "they take turns, by the commit"
