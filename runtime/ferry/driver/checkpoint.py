"""Spark's checkpoint of a query: which of its files are committed with the state, and how they are restored.

Spark renames its files into place and never syncs them. A directory may be lost or rolled back, while the state survives.
So an epoch commits the files that are needed to repeat it, as part of its notes:

    checkpoint/metadata       the query's id
    checkpoint/offsets/E-1    where epoch E begins
    checkpoint/offsets/E      where it ends; written before the epoch begins
    checkpoint/commits/E      the query has seen its end; written after the sinks have it

The driver's own query keeps the same files, so either query resumes where the other one stopped.

A new driver compares the files with the notes, and writes missing files before Spark reads the checkpoint. Must never let
Spark replan an epoch that the state has committed: the records that arrived since would be skipped.

`checkpoint/sources` belongs to Spark's own sources. They log their plan there before Spark logs its offsets, so they may
be ahead of the offsets, and can resume from any offsets that they returned.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ferry.contract import limits
from ferry.contract.errors import SpecRefused, StateUnavailable, Unreachable
from ferry.system import files

log = logging.getLogger("ferry.driver")

COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of Spark's commit log. The watermark belongs to Spark's own stateful operators, which Ferry refuses."""

KEPT_EPOCHS = 10
"""Number of files that each log keeps."""

WHAT_TO_DO = (
    "Bring back the checkpoint/ of the run that belongs to the state (on Kubernetes it outlives the driver's pod below "
    "spec.kubernetes.checkpoint), or start a new job"
)


class Checkpoint:
    """The checkpoint folder of one query. The folder may be a mount: it is never renamed or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._removing = ThreadPoolExecutor(1, "checkpoint")

    def ended(self) -> int:
        """The last epoch whose end Spark has seen, -1 for none. When Spark begins an epoch, it has seen the previous end."""
        return max(self._last("commits"), self._last("offsets") - 1)

    def notes(self, epoch: int) -> str:
        """The notes to commit with an epoch that has begun: its files, packed, or their digest when they are too large."""
        texts = [self._text("metadata"), self._text(f"offsets/{epoch - 1}"), self._text(f"offsets/{epoch}")]
        content = json.dumps(texts).encode()
        packed = base64.b85encode(zlib.compress(content)).decode()
        return packed if len(packed) <= limits.OFFSETS_BYTES_MAX else f"{_digest(texts[-1] or '')} {len(content)}"

    def begin(self, epoch: int, offset: Any) -> None:
        """Log the end offset of an epoch before it begins, as Spark does; for the driver's own query.

        Raises Unreachable when the epoch was planned before: only another driver can have done that.
        """
        if self._text(f"offsets/{epoch}") is not None:
            raise Unreachable(f"{self._folder}/offsets/{epoch} exists already: another driver has planned this epoch")
        if self._text("metadata") is None:
            self._put("metadata", json.dumps({"id": str(uuid4())}))
        about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}})
        self._put(f"offsets/{epoch}", f"v1\n{about}\n{json.dumps(offset)}")

    def end(self, epoch: int) -> None:
        """Log that an epoch has ended, as Spark does. Older files are removed in the background: a disk may be slow."""
        self._put(f"commits/{epoch}", COMMIT)
        for log in ("offsets", "commits"):
            self._removing.submit((self._folder / log / str(epoch - KEPT_EPOCHS)).unlink, missing_ok=True)

    def begun(self) -> tuple[int, bool]:
        """The last planned epoch, -1 for none, and whether its end was seen."""
        last = self._last("offsets")
        return last, self._last("commits") >= last

    def offset(self, epoch: int) -> Any:
        """The end offset of a planned epoch; None: the file is gone."""
        text = self._text(f"offsets/{epoch}")
        return json.loads(text.split("\n")[-1]) if text else None

    def require_sources(self, epoch: int, splits: Sequence[str], foreign: Sequence[str]) -> None:
        """Raises SpecRefused, with their names, when the offsets of an epoch belong to other sources.

        `splits`: names of Ferry's sources; `foreign`: names of Spark's own sources, which the offsets only count.
        """
        lines = (self._text(f"offsets/{epoch}") or "").split("\n")[2:]
        known = next((doc for line in lines if "positions" in (doc := _document(line))), None)
        if known is None:
            return
        before, now = known["positions"], set(splits)
        changes = [f"source {name!r} was added" for name in splits if name not in before]
        changes += [f"source {name!r} was removed" for name in before if name not in now]
        if not changes and len(lines) - 1 != len(foreign):
            changes.append(
                f"there were {len(lines) - 1} sources of Spark's own, and now there are {len(foreign)}"
                + (f" ({', '.join(foreign)})" if foreign else "")
            )
        if changes:
            raise SpecRefused(
                f"{'; '.join(changes)}: the running job has read other sources, and it is not known which records of a new "
                "source belong to past epochs. Restore the sources as they were, or begin without the state of this job"
            )

    def planned(self, epoch: int) -> int:
        """The planning time of an epoch that has begun, in milliseconds. A retry of the epoch has the same time."""
        _, about, *_ = (self._text(f"offsets/{epoch}") or "v1\n{}").split("\n")
        return int(json.loads(about).get("batchTimestampMs", time.time() * 1000))

    def settle(self, epoch: int, final: bool, notes: str | None, foreign: Sequence[str]) -> bool:
        """Make the folder agree with the committed `epoch` (-1: none) and its `notes`. Returns whether Spark repeats it.

        `final`: the state says that Spark had seen the end of the epoch. `foreign`: Spark's own sources, whose logs only
        Spark writes. Raises StateUnavailable when the job would lose records or count them twice.
        """
        spark = self.ended()
        if spark > epoch:
            raise StateUnavailable(
                f"the state ends with epoch {epoch}, and Spark's checkpoint ({self._folder}) with epoch {spark}: the state "
                f"was lost or rolled back. {WHAT_TO_DO}"
            )
        if epoch < 0:
            return False
        if notes is None:  # written by a release without notes
            if spark < epoch - 1:
                raise self._lacks(f"the end of epoch {epoch - 1}", "the state does not have it")
            return spark < epoch
        self._restore(epoch, notes, foreign)
        again = spark < epoch and not final
        if epoch - again >= 0 and not _is_whole(self._text(f"commits/{epoch - again}") or ""):
            self._write(f"commits/{epoch - again}", COMMIT)
        self._forget_torn(epoch + 1, self._text(f"offsets/{epoch}") or "")
        return again

    def rewind(self, epoch: int, notes: str | None) -> None:
        """Remove all epochs after this one from the logs; a restore brought `notes` back. Call it before `settle`.

        Spark's own sources return the same plan again for the removed epochs. Raises StateUnavailable for the folder of
        another query.
        """
        ahead = max(self._last("offsets"), self._last("commits")) > epoch
        if ahead and notes is not None and " " not in notes:
            texts = json.loads(zlib.decompress(base64.b85decode(notes)))
            if (metadata := self._text("metadata")) not in (None, texts[0]):
                raise self._differs("metadata")
            # Spark keeps only the last few epochs, while the logs of its sources keep all.
            for name, text in zip((f"offsets/{epoch - 1}", f"offsets/{epoch}"), texts[1:], strict=True):
                if metadata is not None and text is not None and self._text(name) is None:
                    self._write(name, text)
        # The newest first: after a crash in between, the rest looks like a log that Spark wrote.
        for later in sorted({*self._numbers("commits"), *self._numbers("offsets")}, reverse=True):
            for file in (self._folder / "commits" / str(later), self._folder / "offsets" / str(later)):
                if later > epoch and file.exists():
                    file.unlink()
                    files.sync(file.parent)

    def require_same(self, epoch: int, notes: str | None) -> None:
        """Check that Spark began the epoch with the committed offsets. Call it before a later operator reads or rows go out.

        The newest offsets may be lost again after `settle`, before Spark reads them: then Spark has replanned the epoch.
        Raises Unreachable: the next driver restores the offsets.
        """
        offsets = self._text(f"offsets/{epoch}")
        if offsets is None or notes is None:
            return
        if " " in notes:
            same = _digest(offsets) == notes.split()[0]
        else:
            same = offsets == json.loads(zlib.decompress(base64.b85decode(notes)))[-1]
        if not same:
            raise Unreachable(
                f"{self._folder}/offsets/{epoch} was lost and planned anew since this driver restored the file"
            )

    def _restore(self, epoch: int, notes: str, foreign: Sequence[str]) -> None:
        """Write the committed files that are missing, torn or replanned; refuse files of another query or another day."""
        if " " in notes:
            digest, size = notes.split()
            if (offsets := self._text(f"offsets/{epoch}")) is None:
                raise self._lacks(f"offsets/{epoch}", f"its {size} bytes were too many to be kept with the state")
            if _digest(offsets) != digest:
                raise self._differs(f"offsets/{epoch}")
            return
        texts = json.loads(zlib.decompress(base64.b85decode(notes)))
        # After its offsets were lost, a stale driver may have replanned the epoch.
        anew = (
            f"offsets/{epoch}" if not foreign and self._text("metadata") and not self._text(f"commits/{epoch}") else ""
        )
        for name, text in zip(("metadata", f"offsets/{epoch - 1}", f"offsets/{epoch}"), texts, strict=True):
            present = self._text(name)
            if text is None or present == text:
                continue
            # A file system may return zeros for data that it has not written yet.
            torn = present is not None and text.startswith(present.rstrip("\0"))
            if present is not None and not torn and name != anew:
                raise self._differs(name)
            if foreign and name != "metadata":
                raise self._lacks(
                    name,
                    f"{', '.join(foreign)}: Spark's own source, whose log in checkpoint/sources cannot be written anew",
                )
            how = "was lost" if present is None or torn else "is not what the state has committed"
            log.warning("%s %s: it is written again from the notes in the state", self._folder / name, how)
            self._write(name, text)

    def _forget_torn(self, epoch: int, like: str) -> None:
        """Remove the offsets of a begun epoch if a power cut tore the file: Spark would fail on it."""
        text = self._text(f"offsets/{epoch}")
        if text is not None and (len(text.split("\n")) < len(like.split("\n")) or not _is_whole(text)):
            (self._folder / f"offsets/{epoch}").unlink()

    def _lacks(self, missing: str, why: str) -> StateUnavailable:
        return StateUnavailable(
            f"Spark's checkpoint ({self._folder}) does not have {missing}, which the state has committed, and it cannot be "
            f"written again: {why}. {WHAT_TO_DO}"
        )

    def _differs(self, name: str) -> StateUnavailable:
        return StateUnavailable(
            f"{self._folder / name} is not what the state has committed: the checkpoint belongs to another query, or was "
            f"rolled back to another day. {WHAT_TO_DO}"
        )

    def _last(self, log: str) -> int:
        return max(self._numbers(log), default=-1)

    def _numbers(self, log: str) -> list[int]:
        return [int(p.name) for p in (self._folder / log).glob("*") if p.name.isdigit()]

    def _text(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None

    def _put(self, name: str, text: str) -> None:
        """Write atomically, but not durably: a power cut may tear the file."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(file) as new:
            new.write_text(text, "utf-8")

    def _write(self, name: str, text: str) -> None:
        """Write atomically and durably."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(file, durable=True) as new:
            new.write_text(text, "utf-8")
        for folder in (file.parent, self._folder, self._folder.parent):
            files.sync(folder)


def _document(line: str) -> dict[str, Any]:
    """The JSON object of a line of Spark's offsets; empty when a source's offset is no object."""
    with suppress(ValueError):
        if isinstance(doc := json.loads(line), dict):
            return doc
    return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_whole(entry: str) -> bool:
    """Whether an entry of Spark's log is complete: then its last line is JSON."""
    line = entry.split("\n")[-1]
    try:
        json.loads(line)
    except ValueError:
        return line == "-"  # a source that has not begun
    return True
