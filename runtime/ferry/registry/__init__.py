"""The registry in Redis where the processes of a run find each other, and the journal of the routing table.

The only importer of redis in the runtime, and the only room that talks to the API server of Kubernetes. Every failure of
either is `Unreachable`: the caller decides what waits. Data never goes through them. Imports contract only.

`api_journal` is for drivers alone: others begin sooner without its client of HTTP (0.2 s).
"""

from ferry.registry.journal import JournalStore, RedisJournal
from ferry.registry.registry import Changes, Claim, JobRegistry
from ferry.registry.roll import Roll

__all__ = ["Changes", "Claim", "JobRegistry", "JournalStore", "RedisJournal", "Roll"]
