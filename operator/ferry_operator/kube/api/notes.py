"""The request for a checkpoint in an annotation of a StreamJob. Pure.

A request has an id, and is handed to a driver once; what it answered is kept in the status, so that another operator does
not ask again. An operator that ends between the two does ask again: then there are two checkpoints of that name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ferry.contract.documents import LATEST, NOTHING
from ferry.contract.lenient import known
from ferry_operator.kube.api import names

ID_MAX = 253
"""Characters of an id."""

_NAME = re.compile("[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
"""Of a checkpoint; as the driver takes it."""


@dataclass(frozen=True, slots=True)
class AskedCheckpoint:
    """What the annotation CHECKPOINT asks for."""

    id: str
    name: str | None = None

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))


def is_name(text: str) -> bool:
    """Whether a checkpoint may be called so: `restoreFrom` takes it for no number, and no other word."""
    return _NAME.fullmatch(text) is not None and not text.isdecimal() and text not in (LATEST, NOTHING)


def request(annotations: Mapping[str, str]) -> AskedCheckpoint | None:
    """What is asked for; what makes no sense asks for nothing."""
    try:
        wanted = AskedCheckpoint(**known(AskedCheckpoint, json.loads(annotations.get(names.CHECKPOINT) or "{}")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(wanted.id, str) or not 0 < len(wanted.id) <= ID_MAX:
        return None
    return wanted if wanted.name is None or (isinstance(wanted.name, str) and is_name(wanted.name)) else None


def pending(annotations: Mapping[str, str], answered: str | None) -> AskedCheckpoint | None:
    """What is asked for, and was not answered yet; `answered`: id of the last request that was."""
    wanted = request(annotations)
    return None if wanted is None or wanted.id == answered else wanted
