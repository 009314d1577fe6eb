"""Dead letters of a task: lines of JSON in a hidden file of its attempt, which the driver makes visible."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from ferry.contract.errors import Unreachable
from ferry.contract.names import Fragment
from ferry.contract.notes import dead_letters_name


def letters(records: Sequence[str], reasons: Sequence[str]) -> list[str]:
    """One line per record."""
    return [json.dumps({"reason": why, **_texts(record)}) for record, why in zip(records, reasons, strict=True)]


def _texts(record: str) -> dict[str, str]:
    """A record as text; also its bytes if they are not UTF-8."""
    try:
        data = record.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # from a user's source
        return {"record": record}
    text = data.decode("utf-8", "replace")
    return {"record": text} if text == record else {"record": text, "base64": b64encode(data).decode()}


def write(directory: str, fragment: Fragment, lines: Sequence[str]) -> None:
    """Append lines to the file of an attempt. Raises Unreachable."""
    folder = hidden_dead_letters(Path(directory), fragment.step.epoch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{dead_letters_name(fragment)}.jsonl", "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as wrong:
        raise Unreachable(
            f"malformed records cannot be set aside in {directory}: {wrong.strerror}; mend that folder"
        ) from wrong


def hidden_dead_letters(directory: Path, epoch: int) -> Path:
    """The folder in which the tasks of an epoch set records aside."""
    return directory / f".epoch={epoch}"
