"""Ports of pods: fixed, so that network policies can name them. Elsewhere (`variables.PORTS`) any free ones."""

from __future__ import annotations

CONTROL = 7070
"""A driver's API and health check."""

METRICS = 7071
"""Prometheus metrics of drivers and sidecars."""

LOOPS = 7072
"""A driver assigns shares to its loops here."""

SPARK_MASTER = 7077
"""Spark's master in a driver of release 0.1, and the worker of it beside a sidecar."""

SPARK_DRIVER = 7078
SPARK_BLOCKS = 7079
"""Of the driver and of executors. Spark takes one of the next 16 ports while an older process still holds this one."""

CHANNEL = 7100
"""Channel of instance 0; instance I has this plus I."""

FLIGHT = 7200
"""Flight server of instance 0; instance I has this plus I."""
