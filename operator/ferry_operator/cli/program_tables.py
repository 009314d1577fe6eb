"""Tables and sentences about the programs of a job, as `ferry deploy` and `ferry versions` print them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ferry.contract.program_diff import OperatorFate


def versions_table(programs: Sequence[dict[str, Any]]) -> Table:
    """One row for each program. Of its arguments: those in which the programs differ."""
    names = sorted({name for record in programs for name in record["arguments"]})
    changed = [name for name in names if len({_shown(record["arguments"], name) for record in programs}) > 1]
    columns = (
        "number",
        "state",
        "since epoch",
        "file",
        "text",
        *(["arguments"] * bool(changed)),
        "operators",
        "reason",
    )
    table = Table(*columns, box=None, pad_edge=False)
    for record in programs:
        since = "" if record["since"] is None else str(record["since"])
        file = Path(record["file"]).name if record["file"] else record["module"] or ""
        arguments = ", ".join(filter(None, (_shown(record["arguments"], name) for name in changed)))
        cells = (
            str(record["number"]),
            record["state"],
            since,
            file,
            Path(record["folder"]).name if record["folder"] else "",
            *([arguments] * bool(changed)),
            ", ".join(record["operators"]),
            record["refused"]
            or record.get("wentBack")
            or record.get("failed")
            or (comparison(record["compared"]) if record["compared"] else ""),
        )
        table.add_row(*map(Text, cells))
    return table


def _shown(arguments: dict[str, Any], name: str) -> str:
    return f"{name}={json.dumps(arguments[name], ensure_ascii=False)}" if name in arguments else ""


def fates_table(fates: list[OperatorFate]) -> Table:
    """One row for each operator: its name, its fate, and what happens to its state."""
    table = Table("operator", "fate", "state", box=None, pad_edge=False)
    for one in fates:
        table.add_row(*map(Text, (one.name, one.fate, one.words)))
    return table


def cost(fates: list[OperatorFate], size: int | None, both: bool) -> str:
    """The cost of a deploy. `size`: bytes of all state, None if they are not known; `both`: two programs are to run."""
    state = f"the state (at most {size / 1e6:,.1f} MB)" if size is not None else "the state"
    if both:
        return f"cost: {state} is copied while epochs go on, and then each epoch runs the operators of both programs"
    if altered := [one.name for one in fates if one.fate == "altered"]:
        return (
            f"cost: {state} of {', '.join(altered)} is derived while epochs go on, and is kept twice until the switch"
        )
    return "cost: no state is rewritten"


def comparison(compared: dict[str, Any]) -> str:
    """How many rows of a shadow and of the program in force differ."""
    rows = f"{compared['rows']:,} rows of {compared['epochs']:,} epochs"
    return f"{rows}: {compared['missing']:,} are missing, {compared['more']:,} are more"
