"""The stateful operators of a job as text, and whether a pipeline has those of the running one."""

from __future__ import annotations

import json

from ferry.contract.descriptors import OperatorDescriptor, of_any_version
from ferry.contract.errors import SpecRefused


def dump(descriptors: list[OperatorDescriptor]) -> str:
    """JSON."""
    return json.dumps({"operators": [descriptor.to_wire() for descriptor in descriptors]})


def load(text: str) -> list[OperatorDescriptor]:
    """Inverse of dump."""
    return [OperatorDescriptor.from_wire(doc) for doc in json.loads(text)["operators"]]


def check(before: str | None, descriptors: list[OperatorDescriptor]) -> None:
    """Raises SpecRefused when the running job has others."""
    if before is None or of_any_version(load(before)) == of_any_version(descriptors):
        return
    were, are = (
        ", ".join(one["name"] for one in json.loads(text)["operators"]) for text in (before, dump(descriptors))
    )
    raise SpecRefused(
        f"the pipeline's operators are not those of the running job (they were {were}, now they "
        f"are {are}; keys, windows and aggregates count as well), and their state cannot be "
        "taken over yet. Put them back as they were, or delete the job and start it under the new program"
    )
