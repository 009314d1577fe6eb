"""The objects in the API server of Kubernetes that hold the journals of jobs: their names and their fields.

| field of `spec` | what |
|---|---|
| `generation`, `number` | the version of the table |
| `virtualNodes` | number of virtual nodes |
| `writer` | the life of the driver that wrote it |
| `operators` | the operators and programs: JSON; if it is long, compressed as the table, behind `zlib:` |
| `table` | the routing table: JSON, compressed by zlib, in base64 |
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode

from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import Refusal
from ferry.contract.routing import Table

GROUP, VERSION = "ferry.dev", "v1alpha1"
PLURAL, KIND = "streamjobjournals", "StreamJobJournal"

PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{PLURAL}/{{name}}"

LONG, COMPRESSED = 128 * 1024, "zlib:"
"""Characters of a long catalogue, and what a compressed catalogue begins with."""


def name(job: str, uid: str, run: int = 1) -> str:
    """Name of the journal of a job's run; `run`: its number. It holds the whole uid, so that code which runs in another
    job cannot guess the name."""
    return f"{job}-{uid}" if run == 1 else f"{job}-{uid}-{run}"


def written(catalogue: Catalogue) -> str:
    """A catalogue as the object holds it. 20 programs of 25 operators have 1 MB, and an object has room for 1.5 MB."""
    text = catalogue.dump()
    if len(text) <= LONG:
        return text
    return COMPRESSED + b64encode(zlib.compress(text.encode(), 6)).decode()


def read(text: str) -> Catalogue:
    """Inverse of written. Raises Refusal for a text that is no catalogue."""
    try:
        if text.startswith(COMPRESSED):
            text = zlib.decompress(b64decode(text.removeprefix(COMPRESSED))).decode()
        return Catalogue.load(text)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Refusal(f"the journal holds no catalogue of operators: {error}") from error


def packed(table: Table) -> str:
    """A table as the object holds it: compressed, because 32,768 virtual nodes do not fit as text."""
    return b64encode(zlib.compress(json.dumps(table.to_journal(), separators=(",", ":")).encode(), 6)).decode()


def unpacked(text: str) -> Table:
    """Inverse of packed. Raises Refusal for any other text."""
    try:
        return Table.from_wire(json.loads(zlib.decompress(b64decode(text))))
    except (ValueError, zlib.error) as error:
        raise Refusal(f"the journal holds no routing table: {error}") from error
