"""The objects in the API server of Kubernetes that hold the journals of jobs: their names and their fields.

| field of `spec` | what |
|---|---|
| `generation`, `number` | the version of the table |
| `virtualNodes` | number of virtual nodes |
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
    """Name of the journal of a job's run; `run`: its number. It holds the whole uid, so that code which runs in another
    job cannot guess the name."""
    return f"{job}-{uid}" if run == 1 else f"{job}-{uid}-{run}"


def packed(table: Table) -> str:
    """A table as the object holds it: compressed, because 32,768 virtual nodes do not fit as text."""
    return b64encode(zlib.compress(json.dumps(table.to_journal(), separators=(",", ":")).encode(), 6)).decode()


def unpacked(text: str) -> Table:
    """Inverse of packed. Raises Refusal for any other text."""
    try:
        return Table.from_wire(json.loads(zlib.decompress(b64decode(text))))
    except (ValueError, zlib.error) as error:
        raise Refusal(f"the journal holds no routing table: {error}") from error
