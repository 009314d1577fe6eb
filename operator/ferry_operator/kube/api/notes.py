"""What annotations of a StreamJob say, as values: which of its runs it is at, and checkpoints that users ask for. Pure.

A request has an id, and is handed to a driver once; what it answered is noted beside it, so that another operator does not
ask again. An operator that ends between the two does ask again: then there are two checkpoints of that name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ferry.contract.lenient import known
from ferry_operator.kube.api import names

LATEST = "latest"
"""What a run begins from after the first one."""

TEXT_MAX = 253
"""Characters of an id or a name."""


@dataclass(frozen=True, slots=True)
class RunNote:
    """What the annotation RUN says of the run that a job is at."""

    number: int = 1
    over: bool = False
    """its driver has ended with a last checkpoint"""
    before: str | None = None
    """`spec.restoreFrom` as it was in the run before: only another one is meant for this run"""

    @staticmethod
    def read(annotations: Mapping[str, str]) -> RunNote:
        """Of a StreamJob; what makes no sense counts as none."""
        try:
            found = RunNote(**known(RunNote, json.loads(annotations.get(names.RUN) or "{}")))
        except (ValueError, TypeError, AttributeError):
            return RunNote()
        return found if isinstance(found.number, int) else RunNote()

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))

    def restore_from(self, asked: str | None) -> str | None:
        """The checkpoint that this run begins from; `asked`: `spec.restoreFrom`."""
        if self.number == 1 or (asked is not None and asked != self.before):
            return asked
        return LATEST


@dataclass(frozen=True, slots=True)
class AskedCheckpoint:
    """What the annotation CHECKPOINT asks for."""

    id: str
    name: str | None = None

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """What the annotation ANSWERED says."""

    id: str
    number: int | None = None
    """of the checkpoint; it is complete once the status names it, or a later one"""
    refused: str | None = None

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))


def request(annotations: Mapping[str, str]) -> AskedCheckpoint | None:
    """What is asked for; what makes no sense asks for nothing."""
    try:
        found = AskedCheckpoint(**known(AskedCheckpoint, json.loads(annotations.get(names.CHECKPOINT) or "{}")))
    except (ValueError, TypeError, AttributeError):
        return None
    texts = [found.id] if found.name is None else [found.id, found.name]
    return found if all(isinstance(one, str) and 0 < len(one) <= TEXT_MAX for one in texts) else None


def answer(annotations: Mapping[str, str]) -> CheckpointAnswer | None:
    """What was answered last."""
    try:
        return CheckpointAnswer(**known(CheckpointAnswer, json.loads(annotations.get(names.ANSWERED) or "{}")))
    except (ValueError, TypeError, AttributeError):
        return None


def pending(annotations: Mapping[str, str]) -> AskedCheckpoint | None:
    """What is asked for, and was not answered yet."""
    wanted, given = request(annotations), answer(annotations)
    return None if wanted is None or (given is not None and given.id == wanted.id) else wanted
