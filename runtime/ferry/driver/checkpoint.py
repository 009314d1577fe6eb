"""The checkpoint of a query: what of it is committed with the state, and how it is written again.

Spark renames its files into place and never syncs them, and a directory may be lost or put back; the state is elsewhere.
So what is needed to begin an epoch again is part of the notes that the epoch commits:

    checkpoint/metadata       the query's id
    checkpoint/offsets/E-1    where epoch E begins
    checkpoint/offsets/E      where it ends; written before the epoch begins
    checkpoint/commits/E      the query has seen its end; written after the sinks have it

The driver's own query keeps the same files, so either goes on where the other one has stopped.

A new driver compares them, and writes what is missing, before Spark looks. Must never let Spark plan an epoch anew that the
state has committed: what came since would be skipped.

`checkpoint/sources` belongs to Spark's own sources. They write there what they plan before Spark has it in its offsets, so
they may always be ahead of these, and read on from any offsets that they have given out.
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
"""An entry of Spark's commit log. Its watermark is that of Spark's own stateful operators, which are refused."""

KEPT_EPOCHS = 10
"""So many files stay in each log."""

WHAT_TO_DO = (
    "Bring back the checkpoint/ of the run that belongs to the state (on Kubernetes it outlives the driver's pod below "
    "spec.kubernetes.checkpoint), or start a new job"
)


class Checkpoint:
    """The folder of one query. The folder itself may be a mount: it is never renamed or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._removing = ThreadPoolExecutor(1, "checkpoint")

    def ended(self) -> int:
        """The last epoch that Spark has seen the end of, -1 for none: of the one before any that it has begun, too."""
        return max(self._last("commits"), self._last("offsets") - 1)

    def notes(self, epoch: int) -> str:
        """What to commit with an epoch that has begun: its files, packed, or their digest when they are too large."""
        texts = [self._text("metadata"), self._text(f"offsets/{epoch - 1}"), self._text(f"offsets/{epoch}")]
        content = json.dumps(texts).encode()
        packed = base64.b85encode(zlib.compress(content)).decode()
        return packed if len(packed) <= limits.OFFSETS_BYTES_MAX else f"{_digest(texts[-1] or '')} {len(content)}"

    def begin(self, epoch: int, offset: Any) -> None:
        """What Spark writes before an epoch, for a query that is not Spark's: where the epoch ends.

        Raises Unreachable when it was planned before, as only another driver can have done.
        """
        if self._text(f"offsets/{epoch}") is not None:
            raise Unreachable(f"{self._folder}/offsets/{epoch} is there already: another driver has planned this epoch")
        if self._text("metadata") is None:
            self._put("metadata", json.dumps({"id": str(uuid4())}))
        about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}})
        self._put(f"offsets/{epoch}", f"v1\n{about}\n{json.dumps(offset)}")

    def end(self, epoch: int) -> None:
        """What Spark writes after one. Older files are removed, as Spark does; nobody waits for a slow disk."""
        self._put(f"commits/{epoch}", COMMIT)
        for log in ("offsets", "commits"):
            self._removing.submit((self._folder / log / str(epoch - KEPT_EPOCHS)).unlink, missing_ok=True)

    def begun(self) -> tuple[int, bool]:
        """The last epoch that was planned, -1 for none, and whether its end was seen."""
        last = self._last("offsets")
        return last, self._last("commits") >= last

    def offset(self, epoch: int) -> Any:
        """Where an epoch ends, which was planned; None: nobody knows any more."""
        text = self._text(f"offsets/{epoch}")
        return json.loads(text.split("\n")[-1]) if text else None

    def require_sources(self, epoch: int, splits: Sequence[str], foreign: Sequence[str]) -> None:
        """Raises SpecRefused, with their names, when the offsets of an epoch are those of other sources.

        `splits`: names of Ferry's sources; `foreign`: of Spark's own, of which the offsets tell only how many there were.
        """
        lines = (self._text(f"offsets/{epoch}") or "").split("\n")[2:]
        known = next((found for line in lines if "positions" in (found := _document(line))), None)
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
                f"{'; '.join(changes)}: the running job has read others, and nobody knows which records of a new one belong "
                "to epochs that are over. Put the sources back as they were, or begin without the state of this job"
            )

    def planned(self, epoch: int) -> int:
        """When Spark has planned an epoch that has begun, in milliseconds: the same however often it is begun again."""
        _, about, *_ = (self._text(f"offsets/{epoch}") or "v1\n{}").split("\n")
        return int(json.loads(about).get("batchTimestampMs", time.time() * 1000))

    def settle(self, epoch: int, final: bool, notes: str | None, foreign: Sequence[str]) -> bool:
        """Make the folder agree with the committed `epoch` (-1: none) and its `notes`; whether Spark begins it again.

        `final`: the state says that Spark had seen its end. `foreign`: Spark's own sources, whose logs only Spark writes.
        Raises StateUnavailable when going on would lose records or count them twice.
        """
        spark = self.ended()
        if spark > epoch:
            raise StateUnavailable(
                f"the state ends with epoch {epoch}, and Spark's checkpoint ({self._folder}) with epoch {spark}: the state "
                f"was lost or put back. {WHAT_TO_DO}"
            )
        if epoch < 0:
            return False
        if notes is None:  # of a release that did not keep them
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
        """Have Spark forget all epochs after this one, whose `notes` a restore has brought back; before `settle`.

        Sources of Spark's own go on with it: what they have planned since, they give out again. Raises StateUnavailable for
        the folder of another query.
        """
        ahead = max(self._last("offsets"), self._last("commits")) > epoch
        if ahead and notes is not None and " " not in notes:
            texts = json.loads(zlib.decompress(base64.b85decode(notes)))
            if (metadata := self._text("metadata")) not in (None, texts[0]):
                raise self._differs("metadata")
            # Spark keeps the last few epochs only. The logs of its sources, which are further than that, have all.
            for name, text in zip((f"offsets/{epoch - 1}", f"offsets/{epoch}"), texts[1:], strict=True):
                if metadata is not None and text is not None and self._text(name) is None:
                    self._write(name, text)
        # The newest first: whenever this is cut short, what is left is what Spark may leave.
        for later in sorted({*self._numbers("commits"), *self._numbers("offsets")}, reverse=True):
            for file in (self._folder / "commits" / str(later), self._folder / "offsets" / str(later)):
                if later > epoch and file.exists():
                    file.unlink()
                    files.sync(file.parent)

    def require_same(self, epoch: int, notes: str | None) -> None:
        """Before a later operator reads, and before rows are given out: Spark has begun the epoch with committed offsets.

        The newest offsets may have been lost again after `settle`, before Spark looked: then it has planned the epoch anew.
        Raises Unreachable: another driver puts them right.
        """
        found = self._text(f"offsets/{epoch}")
        if found is None or notes is None:
            return
        if " " in notes:
            same = _digest(found) == notes.split()[0]
        else:
            same = found == json.loads(zlib.decompress(base64.b85decode(notes)))[-1]
        if not same:
            raise Unreachable(
                f"{self._folder}/offsets/{epoch} was lost and planned anew since this driver put it right"
            )

    def _restore(self, epoch: int, notes: str, foreign: Sequence[str]) -> None:
        """Write what of the kept files is missing, torn, or planned anew since; refuse those of another day."""
        if " " in notes:
            digest, size = notes.split()
            if (found := self._text(f"offsets/{epoch}")) is None:
                raise self._lacks(f"offsets/{epoch}", f"its {size} bytes were too many to be kept with the state")
            if _digest(found) != digest:
                raise self._differs(f"offsets/{epoch}")
            return
        texts = json.loads(zlib.decompress(base64.b85decode(notes)))
        # Where its offsets were lost, a driver that was given up long ago may have planned the epoch anew.
        anew = (
            f"offsets/{epoch}" if not foreign and self._text("metadata") and not self._text(f"commits/{epoch}") else ""
        )
        for name, text in zip(("metadata", f"offsets/{epoch - 1}", f"offsets/{epoch}"), texts, strict=True):
            found = self._text(name)
            if text is None or found == text:
                continue
            # What a file system has not written yet may read as zeros.
            torn = found is not None and text.startswith(found.rstrip("\0"))
            if found is not None and not torn and name != anew:
                raise self._differs(name)
            if foreign and name != "metadata":
                raise self._lacks(
                    name,
                    f"{', '.join(foreign)}: Spark's own source, whose log in checkpoint/sources cannot be written anew",
                )
            how = "was lost" if found is None or torn else "is not what the state has committed"
            log.warning("%s %s: it is written again from what the state has kept", self._folder / name, how)
            self._write(name, text)

    def _forget_torn(self, epoch: int, like: str) -> None:
        """Remove the offsets of an epoch that only began, when a power cut left no whole file: Spark would stop at it."""
        found = self._text(f"offsets/{epoch}")
        if found is not None and (len(found.split("\n")) < len(like.split("\n")) or not _is_whole(found)):
            (self._folder / f"offsets/{epoch}").unlink()

    def _lacks(self, what: str, why: str) -> StateUnavailable:
        return StateUnavailable(
            f"Spark's checkpoint ({self._folder}) does not have {what}, which the state has committed, and it cannot be "
            f"written again: {why}. {WHAT_TO_DO}"
        )

    def _differs(self, name: str) -> StateUnavailable:
        return StateUnavailable(
            f"{self._folder / name} is not what the state has committed: the checkpoint is another query's, or was put back "
            f"to another day. {WHAT_TO_DO}"
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
        """Whole or not at all, as long as the power is not cut."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(file) as new:
            new.write_text(text, "utf-8")

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, and still there after a power cut."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(file, durable=True) as new:
            new.write_text(text, "utf-8")
        for folder in (file.parent, self._folder, self._folder.parent):
            files.sync(folder)


def _document(line: str) -> dict[str, Any]:
    """What a line of Spark's offsets says; empty: of a source that has other offsets than maps."""
    with suppress(ValueError):
        if isinstance(found := json.loads(line), dict):
            return found
    return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_whole(entry: str) -> bool:
    """Whether an entry of one of Spark's logs ends as they do: with a line of JSON."""
    line = entry.split("\n")[-1]
    try:
        json.loads(line)
    except ValueError:
        return line == "-"  # a source that has begun nothing yet
    return True
