"""The request for a checkpoint in an annotation of a StreamJob. Pure.

The driver gets a request, with its id, once. The status keeps the answer, so another operator does not repeat the request.
When an operator ends before it has written the answer, the next operator repeats the request: there are two checkpoints.
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
"""Name of a checkpoint, in the syntax of the driver."""


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """The request of the annotation CHECKPOINT."""

    id: str
    name: str | None = None

    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self))


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a checkpoint: in `restoreFrom` it is neither a number nor a keyword."""
    return _NAME.fullmatch(text) is not None and not text.isdecimal() and text not in (LATEST, NOTHING)


def request(annotations: Mapping[str, str]) -> CheckpointRequest | None:
    """The request in the annotations; None without a valid one."""
    try:
        wanted = CheckpointRequest(**known(CheckpointRequest, json.loads(annotations.get(names.CHECKPOINT) or "{}")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(wanted.id, str) or not 0 < len(wanted.id) <= ID_MAX:
        return None
    return wanted if wanted.name is None or (isinstance(wanted.name, str) and is_name(wanted.name)) else None


def pending(annotations: Mapping[str, str], answered: str | None) -> CheckpointRequest | None:
    """The request without an answer; `answered`: id of the last answered request."""
    wanted = request(annotations)
    return None if wanted is None or wanted.id == answered else wanted
