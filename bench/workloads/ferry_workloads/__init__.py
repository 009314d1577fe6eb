"""The inputs of the papers, and jobs on some of them, written against Ferry's public API.

Inputs are NEXMark, YSB, cluster monitoring (cm), keys, SMQ and UniMiCo. A generator produces any range of arrivals
independently, inside the tasks, equal to the reference under tests/oracle. `paced` makes a generator follow the clock.
Imports kernels, the public API and connectors. Must never import the coordinator or the sidecars.
"""

from __future__ import annotations

from ferry_workloads.pacing import paced

__all__ = ["paced"]
