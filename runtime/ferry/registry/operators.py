"""The stateful operators of a job as text, and the check of a pipeline against them."""

from __future__ import annotations

import json

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.differences import WHAT_TO_DO, differences
from ferry.contract.errors import SpecRefused


def dump(descriptors: list[OperatorDescriptor]) -> str:
    """JSON."""
    return json.dumps({"operators": [descriptor.to_wire() for descriptor in descriptors]})


def load(text: str) -> list[OperatorDescriptor]:
    """Inverse of dump."""
    return [OperatorDescriptor.from_wire(doc) for doc in json.loads(text)["operators"]]


def check(before: str | None, descriptors: list[OperatorDescriptor]) -> None:
    """Raises SpecRefused, with every difference, when the operators of the running job keep other state."""
    if before is not None and (found := differences(load(before), descriptors)):
        raise SpecRefused(f"{'; '.join(found)}: the pipeline's operators differ from the running job. {WHAT_TO_DO}")
