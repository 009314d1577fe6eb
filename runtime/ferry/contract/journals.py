"""The objects in the API server of Kubernetes that hold the journals of jobs: what they are called, and where they are.

| field of `spec` | what |
|---|---|
| `generation`, `number` | the version of the table |
| `virtualNodes` | how many the table has |
| `writer` | the life of the driver that wrote it |
| `operators` | the stateful operators as JSON |
| `table` | the routing table: JSON, compressed by zlib, in base64 |
"""

from __future__ import annotations

GROUP, VERSION = "ferry.dev", "v1alpha1"
PLURAL, KIND = "streamjobjournals", "StreamJobJournal"

PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}/{{name}}"


def name(job: str, uid: str, run: int = 1) -> str:
    """Of the journal of a job's run; `run`: its number. The uid is in it as a whole: who may run code in another job cannot
    guess it."""
    return f"{job}-{uid}" if run == 1 else f"{job}-{uid}-{run}"
