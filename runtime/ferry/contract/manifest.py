"""The manifest of a durable checkpoint: a checkpoint exists once its manifest does. Values and their JSON form.

    LOCATION/JOB/manifests/NUMBER-GENERATION-TOKEN.json     written last, never replaced
    LOCATION/JOB/files/...                                  named by manifests; other files are garbage
    LOCATION/JOB/pins/...                                   protect files that readers need (`ferry.durable`)

The state of a virtual node is its chain: the result of a scan, and every change since the scan began, the oldest first.
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
from ferry.contract.programs import Programs, first_program, from_wire, to_wire
from ferry.contract.results import Results, StepResult

FILE_FORMAT, MANIFEST_FORMAT = 1, 3
"""A file or manifest of a higher format is refused. The first release wrote manifests of format 2; a manifest of the first
program of a job is still written as such."""


FILES = "files"
"""The folder of files."""


def file_name(run: str, made_at: float, unique: str) -> str:
    """Name of a new file; the run and the time in it tell whether a checkpoint may still come to name it."""
    return f"{FILES}/{run}/{int(made_at)}-{unique}"


def is_of_run(name: str, run: str) -> bool:
    """Whether this run began the file."""
    return name.removeprefix(f"{FILES}/").rpartition("/")[0] == run


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a checkpoint: state, or changes of it, of one operator."""

    name: str
    """below LOCATION/JOB"""
    bytes: int
    checksum: int
    """CRC-32 of the file's index, which has the checksums of its parts"""
    operator: int
    kind: Literal["scan", "changes"]
    epoch: int
    """of a scan: when it began; of changes: their last epoch"""
    rows: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Virtual nodes whose state is in the same files."""

    vnodes: tuple[int, ...]
    files: tuple[StoredFile, ...]
    """In load order. The files may also hold rows of virtual nodes outside this chain."""


def chain_from_wire(doc: dict[str, Any]) -> Chain:
    """From plain maps and lists, as `asdict` makes them."""
    return Chain(tuple(doc["vnodes"]), tuple(StoredFile(**known(StoredFile, one)) for one in doc["files"]))


@dataclass(frozen=True, slots=True)
class Manifest:
    """One durable checkpoint."""

    number: int
    """Unique in its job and growing; of two manifests with one number the higher generation counts."""
    job: str
    run: str
    lineage: str
    """Common to all checkpoints that go back to the same beginning of a job, restored ones included."""
    generation: int
    """Of the driver that wrote it."""
    made_at: float
    """Seconds since 1970."""
    commit_id: CommitId
    """The state is as of this step, the last one of its epoch; the sinks have the rows of that epoch."""
    results: Results
    meta: bytes
    """The driver's notes committed with the step: positions, offsets, counters (`contract.notes`)."""
    virtual_nodes: int
    operators: tuple[OperatorDescriptor, ...]
    """By id, also of operators that the program of this epoch does not have."""
    chains: tuple[Chain, ...]
    name: str | None = None
    restored_from: str | None = None
    """The checkpoint from which a job was restored; this one is another name for it."""
    programs: Programs = ()
    """The program of the epoch, and the next one if it has another; empty: the first program has all operators."""
    void: tuple[int, ...] = ()
    """Ids of operators without a state, whose names have no state either (`Catalogue.void`)."""
    format: int = 0
    """0: the lowest one that has all of this."""

    def __post_init__(self) -> None:
        every = first_program(len(self.operators))
        programs = self.programs or every
        object.__setattr__(self, "programs", programs)
        if not self.format:
            object.__setattr__(self, "format", 2 if programs == every else MANIFEST_FORMAT)

    @property
    def epoch(self) -> int:
        """The last epoch whose changes are included."""
        return self.commit_id.step.epoch

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files, each once."""
        return tuple({file.name: file for chain in self.chains for file in chain.files}.values())

    @property
    def total_bytes(self) -> int:
        """Bytes that a restore reads, at most."""
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
        if self.format > 2:
            doc["programs"] = to_wire(self.programs)
        if self.void:
            doc["void"] = self.void
        return json.dumps(doc | {"digest": _digest(json.loads(json.dumps(doc)))}, indent=1).encode()

    @staticmethod
    def load(text: bytes) -> Manifest:
        """Inverse of dump. Raises Refusal for a text that is no manifest, is damaged, or is of a later release."""
        try:
            doc: dict[str, Any] = json.loads(text)
            if doc["format"] > MANIFEST_FORMAT:
                raise Refusal(f"its format is {doc['format']}, this release reads up to {MANIFEST_FORMAT}")
            if doc.pop("digest") != _digest(doc):
                raise Refusal("it is damaged: its digest does not match")
            files = [StoredFile(**known(StoredFile, one)) for one in doc.pop("files")]
            (step, attempt), results = doc["commit_id"], doc["results"]
            return Manifest(
                **{
                    **known(Manifest, doc),
                    "commit_id": CommitId(Step(*step), Attempt(*attempt)),
                    "results": tuple(StepResult(Attempt(*one[0]), *one[1:]) for one in results),
                    "programs": from_wire(doc.get("programs", ())),
                    "void": tuple(doc.get("void", ())),
                    "meta": base64.b64decode(doc["meta"]),
                    "operators": tuple(OperatorDescriptor.from_wire(one) for one in doc["operators"]),
                    "chains": tuple(
                        Chain(tuple(one["vnodes"]), tuple(files[i] for i in one["files"])) for one in doc["chains"]
                    ),
                }
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise Refusal(f"this is no manifest of a checkpoint: {type(error).__name__}: {error}") from error


def _digest(doc: dict[str, Any]) -> str:
    """SHA-256 of the document, independent of its layout, behind the name of the algorithm (decision 0038)."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
