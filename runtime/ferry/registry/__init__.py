"""The registry in Redis where the processes of a run find each other, and the journal of the routing table.

The only importer of redis in the runtime, and the only room that talks to the API server of Kubernetes. Every failure
of either is `Unreachable`: the caller decides what waits. Data never goes through them.

Only drivers import `api_journal`: other processes start faster without its HTTP client (0.2 s).
"""

from ferry.registry.journal import JournalStore, RedisJournal
from ferry.registry.member_cache import MemberCache
from ferry.registry.registry import Changes, Claim, JobRegistry

__all__ = ["Changes", "Claim", "JobRegistry", "JournalStore", "RedisJournal", "MemberCache"]
