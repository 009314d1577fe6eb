"""Dead letters: records that tasks have set aside, in one folder per epoch, `epoch=E/*.jsonl`.

Tasks write to the hidden folder of their epoch; files of accepted attempts appear with the epoch. Their total size is
bounded: the oldest epochs are removed when a new epoch needs room. Must never touch other files in the directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ferry.contract import limits
from ferry.spark.tasks.letters import hidden_dead_letters


class DeadLetters:
    """The folders of dead letters below one directory; the directory need not exist."""

    def __init__(self, directory: Path, bytes_max: int = limits.DEAD_LETTER_BYTES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        folders = [p for p in directory.glob("epoch=*") if p.name[6:].isdigit()]
        self._bytes = {int(p.name[6:]): _size(p) for p in sorted(folders, key=lambda p: int(p.name[6:]))}

    def __str__(self) -> str:
        return str(self._directory)

    def keep(self, epoch: int, letters: Mapping[str, Sequence[str]]) -> None:
        """Write the letters that came with receipts to the hidden folder, where tasks with a shared directory write."""
        for name, lines in letters.items():
            if lines:
                hidden = hidden_dead_letters(self._directory, epoch)
                hidden.mkdir(parents=True, exist_ok=True)
                (hidden / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def publish(self, epoch: int, accepted: Iterable[str]) -> None:
        """Make the records of accepted attempts visible, remove the rest. Idempotent."""
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
