"""A durable checkpoint as its manifest says it: the one document that makes it one. Values and their JSON form.

    LOCATION/JOB/manifests/NUMBER-GENERATION-TOKEN.json     written last, never replaced
    LOCATION/JOB/files/...                                  what manifests name; nothing else counts
    LOCATION/JOB/pins/...                                   what readers still need (`ferry.durable`)

The state of a virtual node is its chain: what a scan has found, and every change since the scan began, the oldest first.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Refusal
from ferry.contract.lenient import known
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.results import Results, StepResult

FILE_FORMAT, MANIFEST_FORMAT = 1, 2
"""What has a higher one is refused. The first release wrote these."""


FILES = "files"
"""The folder of files."""


def file_name(run: str, made_at: float, unique: str) -> str:
    """Of a new file, with what tells whether it is still on its way into a checkpoint."""
    return f"{FILES}/{run}/{int(made_at)}-{unique}"


def is_of_run(name: str, run: str) -> bool:
    """Whether a run has begun the file."""
    return name.removeprefix(f"{FILES}/").rpartition("/")[0] == run


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a checkpoint: state, or changes of it, of one operator."""

    name: str
    """below LOCATION/JOB"""
    bytes: int
    checksum: int
    """CRC-32 of its index, which has those of its parts"""
    operator: int
    kind: Literal["scan", "changes"]
    epoch: int
    """of a scan: when it began; of changes: the last one in them"""
    rows: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Virtual nodes whose state is in the same files."""

    vnodes: tuple[int, ...]
    files: tuple[StoredFile, ...]
    """In the order in which they are loaded. They may hold rows of other virtual nodes, which are none of this chain's."""


def chain_from_wire(doc: dict[str, Any]) -> Chain:
    """Of plain maps and lists, as `asdict` makes them."""
    return Chain(tuple(doc["vnodes"]), tuple(StoredFile(**known(StoredFile, one)) for one in doc["files"]))


@dataclass(frozen=True, slots=True)
class Manifest:
    """One durable checkpoint."""

    number: int
    """Unique in its job and growing; of two with one number that of the higher generation counts."""
    job: str
    run: str
    lineage: str
    """Of all checkpoints that go back to the same beginning of a job, restored ones with them."""
    generation: int
    """Of the driver that wrote it."""
    made_at: float
    """Seconds since 1970."""
    commit_id: CommitId
    """The state is as of this step, the last one of its epoch; that epoch's rows are with the sinks."""
    results: Results
    meta: bytes
    """The driver's notes that were committed with the step: positions, offsets, counters (`contract.notes`)."""
    virtual_nodes: int
    operators: tuple[OperatorDescriptor, ...]
    chains: tuple[Chain, ...]
    name: str | None = None
    restored_from: str | None = None
    """The checkpoint that this one is another name of: a job was restored from it."""
    format: int = MANIFEST_FORMAT

    @property
    def epoch(self) -> int:
        """The last one whose changes are in it."""
        return self.commit_id.step.epoch

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All of them, once each."""
        return tuple({file.name: file for chain in self.chains for file in chain.files}.values())

    @property
    def total_bytes(self) -> int:
        """That a restore reads, at most."""
        return sum(file.bytes for file in self.files)

    def dump(self) -> bytes:
        """JSON."""
        files = self.files
        numbers = {file.name: i for i, file in enumerate(files)}
        chains = [{"vnodes": chain.vnodes, "files": [numbers[f.name] for f in chain.files]} for chain in self.chains]
        doc = {
            name: getattr(self, name)
            for name in ("format", "number", "name", "job", "run", "lineage", "generation", "made_at", "virtual_nodes")
        }
        doc |= {
            "commit_id": self.commit_id,
            "results": self.results,
            "meta": base64.b64encode(self.meta).decode(),
            "operators": [descriptor.to_wire() for descriptor in self.operators],
            "files": [asdict(file) for file in files],
            "chains": chains,
            "restored_from": self.restored_from,
        }
        return json.dumps(doc | {"digest": _digest(json.loads(json.dumps(doc)))}, indent=1).encode()

    @staticmethod
    def load(text: bytes) -> Manifest:
        """Inverse of dump. Raises Refusal for what is no manifest, is damaged, or is of a later release."""
        try:
            doc: dict[str, Any] = json.loads(text)
            if doc["format"] > MANIFEST_FORMAT:
                raise Refusal(f"its format is {doc['format']}, this release reads up to {MANIFEST_FORMAT}")
            if doc.pop("digest") != _digest(doc):
                raise Refusal("it is damaged: it is not what its digest was computed of")
            files = [StoredFile(**known(StoredFile, one)) for one in doc.pop("files")]
            (step, attempt), results = doc["commit_id"], doc["results"]
            return Manifest(
                **{
                    **known(Manifest, doc),
                    "commit_id": CommitId(Step(*step), Attempt(*attempt)),
                    "results": tuple(StepResult(Attempt(*one[0]), *one[1:]) for one in results),
                    "meta": base64.b64decode(doc["meta"]),
                    "operators": tuple(OperatorDescriptor.from_wire(one) for one in doc["operators"]),
                    "chains": tuple(
                        Chain(tuple(one["vnodes"]), tuple(files[i] for i in one["files"])) for one in doc["chains"]
                    ),
                }
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise Refusal(f"no manifest of a checkpoint is like this: {type(error).__name__}: {error}") from error


def _digest(doc: dict[str, Any]) -> str:
    """SHA-256 of the document, however it is laid out. The name of the algorithm stands before it (decision 0038)."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
