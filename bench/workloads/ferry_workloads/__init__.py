"""The inputs of the papers, and jobs over some of them, written against what any user's pipeline may use.

Inputs are NEXMark, YSB, cluster monitoring (cm), keys, SMQ and UniMiCo. Their generators make any range of arrivals on
its own, inside the tasks, equal to the reference under tests/oracle; `paced` makes one follow the clock.
Imports kernels and the public side of ferry.spark. The room must never know of the coordinator or the sidecars.
"""

from __future__ import annotations

from ferry_workloads.pacing import paced

__all__ = ["paced"]
