"""The request for a checkpoint in an annotation of a StreamJob. Pure.

A request has an id, and is handed to a driver once. The answer is kept in the status, so that another operator does not
ask again. When an operator ends before it has kept the answer, the next one asks again, and there are two checkpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ferry.contract.lenient import known
from ferry.contract.settings import LATEST, NOTHING
from ferry_operator.kube.api import names

ID_MAX = 253
"""Characters of an id."""

_NAME = re.compile("[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
"""Name of a checkpoint, as the driver takes it."""


@dataclass(frozen=True, slots=True)
class AskedCheckpoint:
    """The request of the annotation CHECKPOINT."""

    id: str
    name: str | None = None

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))


def is_name(text: str) -> bool:
    """Whether a checkpoint may be called so: `restoreFrom` takes it for no number, and no other word."""
    return _NAME.fullmatch(text) is not None and not text.isdecimal() and text not in (LATEST, NOTHING)


def request(annotations: Mapping[str, str]) -> AskedCheckpoint | None:
    """The request in the annotations; None: there is none, or it has another form."""
    try:
        wanted = AskedCheckpoint(**known(AskedCheckpoint, json.loads(annotations.get(names.CHECKPOINT) or "{}")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(wanted.id, str) or not 0 < len(wanted.id) <= ID_MAX:
        return None
    return wanted if wanted.name is None or (isinstance(wanted.name, str) and is_name(wanted.name)) else None


def pending(annotations: Mapping[str, str], answered: str | None) -> AskedCheckpoint | None:
    """The request that was not answered yet; `answered`: id of the last one that was."""
    wanted = request(annotations)
    return None if wanted is None or wanted.id == answered else wanted
