"""Reading what another release wrote: the operator and the images of its jobs are released, and updated, apart."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def known(kind: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """The entries of a document that a dataclass has fields for; unknown entries are left out."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in doc.items() if key in names}
