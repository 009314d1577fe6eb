"""Reading what another release wrote: the operator and the images of its jobs are released, and updated, apart."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def known(kind: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """What a dataclass has a field for; what is new to this release is left out."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in doc.items() if key in names}
