"""The commit record of an instance: what it is, should it crash now, and whether the files beside it are those it describes.

Must never let files pass for a copy that are of another run, another boot of the machine, or another life of the job.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import StateUnavailable
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.results import StepResult
from ferry.protocol import instance as core
from ferry.sidecar.signs import crashed
from ferry.store import seal
from ferry.store.commit_record import CommitRecord

log = logging.getLogger("ferry.sidecar")

FORMAT = 5
"""Of what is in an instance's directory: files of another one are no copy."""


class SavedRecord:
    """The commit record in an instance's directory. Files of which it says nothing are removed when it is opened."""

    def __init__(self, directory: Path, top: Path, run: str, boot_id: Path) -> None:
        """`top` is the directory of the run: up to there folders have to be on the disk, too, when it is sealed."""
        self._directory = directory
        self._top = top
        # A directory of the machine may be found again by another run of a job with the same name: its state is no copy.
        self._of = f"{run} {FORMAT}"
        self._boot = f"{boot_id.read_text().strip()} {self._of}"
        self._record = CommitRecord(directory / "commit-record")
        self._erases = False
        """What is here is of a life of the job that is over: the next process removes it before it opens anything."""
        self.damage = ""
        """Why the life before gave up what it held; empty: it did not."""
        self.empty = False
        """Nothing of any life of the job is here: also what was dropped leaves traces, as how far rows were released."""
        self.saved = self._load()

    def _load(self) -> core.InstanceRecord:
        """What is of this run and this boot of the machine, or was sealed: other files may be torn."""
        doc, sealed, damage = self._record.read(), None, ""
        try:
            sealed = seal.read(self._directory)
        except StateUnavailable as error:
            damage = str(error)
        if doc is None and any(self._directory.glob("state-*")):  # They are made after the record.
            damage = damage or f"{self._directory}/commit-record is missing, or not what was written"
        if sealed is not None and sealed["of"] == self._of:
            doc = {"boot": self._boot, "saved": sealed["saved"]}
            self._record.write(doc)  # Before the seal is broken: a process that is killed in between loses nothing.
        elif damage and (doc is None or (doc["boot"] != self._boot and doc["boot"].endswith(f" {self._of}"))):
            doc = self._given_up(core.InstanceRecord(), damage)
        seal.break_open(self._directory)
        if doc is not None and doc["boot"] != self._boot:
            log.warning(
                "%s: files of another run or release, or of a boot of the machine that did not end with a clean end of this "
                "instance, are not used",
                self._directory,
            )
            doc = None
        if doc is not None and doc.get("opens") and crashed(self._directory):
            doc = self._given_up(saved_from_wire(doc["saved"]), "the process crashed while it opened them")
        if doc is not None:
            self.damage = doc.get("damage", "")
            if not doc.get("erases", False):
                return saved_from_wire(doc["saved"])
        for entry in self._directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        self.empty = True
        return core.InstanceRecord() if doc is None else saved_from_wire(doc["saved"])

    def write(self, saved: core.InstanceRecord) -> None:
        """Replace it. Another life of the job than before, and nothing is what it was."""
        if saved.origin != self.saved.origin:
            self._erases = True
        else:
            self.empty &= saved.committed is None and saved.released < 0 and not saved.holds and not saved.learned
        self.saved = saved
        self._record.write({"boot": self._boot, "saved": saved_to_wire(saved), "erases": self._erases})

    def opens(self) -> None:
        """The files are opened now: if that ends the process, they are damaged."""
        self._record.write({"boot": self._boot, "saved": saved_to_wire(self.saved), "erases": False, "opens": True})

    def give_up(self, damage: str) -> None:
        """What is here is not what was written: the next process removes it, and holds nothing."""
        self._given_up(self.saved, damage)

    def _given_up(self, saved: core.InstanceRecord, damage: str) -> dict[str, Any]:
        empty = core.InstanceRecord(saved.generation, origin=saved.origin)
        doc = {"boot": self._boot, "saved": saved_to_wire(empty), "erases": True, "damage": damage}
        self._record.write(doc)
        return doc

    def erased(self) -> None:
        """Nothing is here of the life of the job before."""
        self._erases = False
        self.write(self.saved)

    def seal(self) -> None:
        """Have everything on the disk, so that it is a copy in another boot, too. Raises OSError."""
        seal.make(self._directory, self._top, {"of": self._of, "saved": saved_to_wire(self.saved)})


def saved_to_wire(saved: core.InstanceRecord) -> dict[str, Any]:
    """Plain lists and maps."""
    doc = dict(vars(saved))
    doc["committed"] = list(saved.committed) if saved.committed else None
    doc["committing"] = m.encode(saved.committing) if saved.committing else None
    return doc


def saved_from_wire(doc: dict[str, Any]) -> core.InstanceRecord:
    """Inverse of saved_to_wire."""
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
        }
    )
