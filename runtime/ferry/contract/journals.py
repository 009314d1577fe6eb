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

import json
import zlib
from base64 import b64decode, b64encode

from ferry.contract.errors import Refusal
from ferry.contract.routing import Table

GROUP, VERSION = "ferry.dev", "v1alpha1"
PLURAL, KIND = "streamjobjournals", "StreamJobJournal"

PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}/{{name}}"


def name(job: str, uid: str, run: int = 1) -> str:
    """Of the journal of a job's run; `run`: its number. The uid is in it as a whole: who may run code in another job cannot
    guess it."""
    return f"{job}-{uid}" if run == 1 else f"{job}-{uid}-{run}"


def packed(table: Table) -> str:
    """A table as the object holds it: 32,768 virtual nodes have to fit, and as text they do not."""
    return b64encode(zlib.compress(json.dumps(table.to_journal(), separators=(",", ":")).encode(), 6)).decode()


def unpacked(text: str) -> Table:
    """Inverse of packed. Raises Refusal for what is no table."""
    try:
        return Table.from_wire(json.loads(zlib.decompress(b64decode(text))))
    except (ValueError, zlib.error) as error:
        raise Refusal(f"the journal holds no routing table: {error}") from error
