"""The commit record of an instance on disk, and whether the files beside it belong to it.

Must never accept files as a copy that are of another run, another boot of the machine, or another life of the job.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import StateUnavailable
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.programs import from_wire as programs_from_wire
from ferry.contract.programs import to_wire as programs_to_wire
from ferry.contract.results import StepResult
from ferry.protocol import instance as core
from ferry.sidecar.signs import crashed
from ferry.store import seal
from ferry.store.commit_record import CommitRecord

log = logging.getLogger("ferry.sidecar")

FORMAT = 5
"""Format of an instance's directory: files of another format are no copy."""


class InstanceRecordFile:
    """The commit record in an instance's directory. Files that it does not name are removed when it is opened."""

    def __init__(self, directory: Path, top: Path, run: str, boot_id: Path) -> None:
        """`top` is the directory of the run: a seal syncs the folders up to there, too."""
        self._directory = directory
        self._top = top
        # Another run of a job with the same name may find this directory of the machine: its state is no copy.
        self._of = f"{run} {FORMAT}"
        self._boot = f"{boot_id.read_text().strip()} {self._of}"
        self._record = CommitRecord(directory / "commit-record")
        self._erases = False
        """The files are of an earlier life of the job: the next process removes them before it opens any."""
        self.damage = ""
        """Why the life before dropped its state; empty: it did not."""
        self.empty = False
        """No trace of any life of the job is here: dropped state leaves traces, such as the released epoch."""
        self.saved = self._load()

    def _load(self) -> core.InstanceRecord:
        """The record if its files are of this run and this boot of the machine, or sealed: others may be torn."""
        doc, sealed, damage = self._record.read(), None, ""
        try:
            sealed = seal.read(self._directory)
        except StateUnavailable as error:
            damage = str(error)
        if doc is None and any(self._directory.glob("state-*")):  # State is created after the record.
            damage = damage or f"{self._directory}/commit-record is missing, or damaged"
        if sealed is not None and sealed["of"] == self._of:
            doc = {"boot": self._boot, "saved": sealed["saved"]}
            self._record.write(doc)  # Before the seal is broken: a kill in between loses nothing.
        elif damage and (doc is None or (doc["boot"] != self._boot and doc["boot"].endswith(f" {self._of}"))):
            doc = self._given_up(core.InstanceRecord(), damage)
        seal.break_open(self._directory)
        if doc is not None and doc["boot"] != self._boot:
            log.warning(
                "%s: files of another run or release, or from a boot of the machine without a clean end of this "
                "instance, are not used",
                self._directory,
            )
            doc = None
        if doc is not None and doc.get("opens") and crashed(self._directory):
            doc = self._given_up(record_from_wire(doc["saved"]), "the process crashed while it opened them")
        if doc is not None:
            self.damage = doc.get("damage", "")
            if not doc.get("erases", False):
                return record_from_wire(doc["saved"])
        for entry in self._directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        self.empty = True
        return core.InstanceRecord() if doc is None else record_from_wire(doc["saved"])

    def write(self, saved: core.InstanceRecord) -> None:
        """Replace the record. In another life of the job no earlier file counts."""
        if saved.origin != self.saved.origin:
            self._erases = True
        else:
            self.empty &= saved.committed is None and saved.released < 0 and not saved.holds and not saved.learned
        self.saved = saved
        self._record.write({"boot": self._boot, "saved": record_to_wire(saved), "erases": self._erases})

    def opens(self) -> None:
        """The files are opened now: if that ends the process, they are damaged."""
        self._record.write({"boot": self._boot, "saved": record_to_wire(self.saved), "erases": False, "opens": True})

    def give_up(self, damage: str) -> None:
        """The files are damaged: the next process removes them, and holds nothing."""
        self._given_up(self.saved, damage)

    def _given_up(self, saved: core.InstanceRecord, damage: str) -> dict[str, Any]:
        empty = core.InstanceRecord(saved.generation, origin=saved.origin)
        doc = {"boot": self._boot, "saved": record_to_wire(empty), "erases": True, "damage": damage}
        self._record.write(doc)
        return doc

    def erased(self) -> None:
        """All files of the earlier life of the job are removed."""
        self._erases = False
        self.write(self.saved)

    def seal(self) -> None:
        """Sync all files, so that they are a copy after a reboot, too. Raises OSError."""
        seal.make(self._directory, self._top, {"of": self._of, "saved": record_to_wire(self.saved)})


def record_to_wire(saved: core.InstanceRecord) -> dict[str, Any]:
    """Plain lists and maps."""
    doc = dict(vars(saved))
    doc["committed"] = list(saved.committed) if saved.committed else None
    doc["committing"] = m.encode(saved.committing) if saved.committing else None
    doc["programs"] = programs_to_wire(saved.programs)
    return doc


def record_from_wire(doc: dict[str, Any]) -> core.InstanceRecord:
    """Inverse of record_to_wire."""
    commit_id = doc["committed"]
    committing = m.decode(m.CODES[m.Commit], doc["committing"]) if doc["committing"] else None
    return core.InstanceRecord(
        **{
            **doc,
            "committed": CommitId(Step(*commit_id[0]), Attempt(*commit_id[1])) if commit_id else None,
            "results": tuple(StepResult(Attempt(*attempt), *counts) for attempt, *counts in doc["results"]),
            "holds": tuple(doc["holds"]),
            "learned": tuple(doc.get("learned", ())),
            "committing": committing,
            "programs": programs_from_wire(doc.get("programs", ())),
        }
    )
