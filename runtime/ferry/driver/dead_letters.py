"""Dead letters: records that tasks have set aside, in one folder an epoch, `epoch=E/*.jsonl`.

Tasks write to the hidden folder of their epoch; what accepted attempts wrote appears with the epoch. Together they have a
bound: the oldest epochs go first, as soon as a new one needs the room. Must never touch anything else in the directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ferry.contract import limits
from ferry.spark.tasks.letters import hidden_dead_letters


class DeadLetters:
    """The folders below one directory, which need not exist."""

    def __init__(self, directory: Path, bytes_max: int = limits.DEAD_LETTER_BYTES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        found = [p for p in directory.glob("epoch=*") if p.name[6:].isdigit()]
        self._bytes = {int(p.name[6:]): _size(p) for p in sorted(found, key=lambda p: int(p.name[6:]))}

    def __str__(self) -> str:
        return str(self._directory)

    def keep(self, epoch: int, letters: Mapping[str, Sequence[str]]) -> None:
        """Write those that came with receipts where tasks that share the directory with the driver write theirs."""
        for name, lines in letters.items():
            if lines:
                hidden = hidden_dead_letters(self._directory, epoch)
                hidden.mkdir(parents=True, exist_ok=True)
                (hidden / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def publish(self, epoch: int, accepted: Iterable[str]) -> None:
        """Make the records of accepted attempts visible, forget those of others. Idempotent."""
        hidden, final = hidden_dead_letters(self._directory, epoch), self._directory / f"epoch={epoch}"
        names = {f"{name}.jsonl" for name in accepted}
        if not hidden.is_dir():
            return
        if not final.exists():
            for file in hidden.iterdir():
                if file.name not in names:
                    file.unlink()
            if any(hidden.iterdir()):
                hidden.rename(final)
                self._bytes[epoch] = _size(final)
                self._make_room()
        shutil.rmtree(hidden, ignore_errors=True)

    def _make_room(self) -> None:
        total = sum(self._bytes.values())
        for epoch in sorted(self._bytes)[:-1]:
            if total <= self._bytes_max:
                return
            total -= self._bytes.pop(epoch)
            shutil.rmtree(self._directory / f"epoch={epoch}", ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
