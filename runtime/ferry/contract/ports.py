"""Ports of pods: fixed, so that network policies can name them. Elsewhere, as `variables.PORTS` says, any free ones."""

from __future__ import annotations

CONTROL = 7070
"""Where a driver serves its API, and whether it is well."""

METRICS = 7071
"""Where Prometheus reads, of drivers and sidecars."""

LOOPS = 7072
"""Where a driver deals shares to its loops."""

SPARK_MASTER = 7077
"""In the driver."""

SPARK_WORKER = 7077
"""Of Spark's worker beside a sidecar."""

SPARK_DRIVER = 7078
SPARK_BLOCKS = 7079
"""Of the driver and of executors. Spark takes one of the 16 ports behind it while an older process still has this one."""

CHANNEL = 7100
"""Of instance 0's channel; instance I has this plus I."""

FLIGHT = 7200
"""Of instance 0's Flight server; instance I has this plus I."""
