"""A picture of a run's timeline: epoch time, output latency and throughput over time, with moves and failures marked.

The only importer of matplotlib. It draws records and computes nothing that `timeline` does not.
"""

from __future__ import annotations
