"""The registry in Redis where the processes of a run find each other, and the journal of the routing table.

The only importer of redis in the runtime. Every failure of Redis is `Unreachable`: the caller decides what waits. Data
never goes through it. Imports contract only.
"""

from ferry.registry.registry import Changes, JobRegistry
from ferry.registry.roll import Roll

__all__ = ["Changes", "JobRegistry", "Roll"]
