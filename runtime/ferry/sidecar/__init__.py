"""The processes beside a worker's tasks: one parent (heartbeats, supervision) and its instances (state).

They execute the effects of `ferry.protocol.instance` on `ferry.store` and `ferry.channel`. They never decide anything
about groups or epochs, never import Spark, and never fork after a device is open.
"""

ALIVE = "alive"
"""File in the instance's directory: signs of life (`signs`), which its parent watches."""

STARTED = "started"
"""File in the worker's directory: instances were started, and Redis has the worker (for a startup probe)."""

REASON = "reason"
"""File in the instance's directory: the instance's own reason for its end; the parent passes it on."""
