"""The log of prepared deltas of one instance: one file per (label, source).

What was prepared must survive the process, so that a commit can be finished after a restart: a delta is logged before it
is acknowledged, and forgotten when a later step proves that it is final (design section 4). Files are written under
another name and renamed; no fsync, replicas cover the loss of the machine. A file with a wrong checksum is absent.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgpack
import pyarrow as pa

from ferry.contract.errors import Exhausted
from ferry.contract.names import Attempt, Label, Step
from ferry.store import mapped

_HEADER = struct.Struct("<8sII")
"""magic, checksum of all that follows it, bytes of the meta document"""
_MAGIC = b"FERRYLG1"
_NAME = re.compile(r"^(\d{20})-(\d{6})-(\d{10})-(\d{10})-(.*)\.delta$")


class DeltaLog:
    """Prepared deltas as files below `directory`."""

    def __init__(self, directory: Path) -> None:
        """Open the log that is there; unfinished files are removed."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._sources: dict[Label, dict[str, Path]] = {}
        self._fresh: dict[Path, tuple[dict[str, Any], pa.RecordBatch]] = {}
        """What this life appended: not read again from its file. A delta lives for one epoch."""
        for path in sorted(directory.iterdir()):
            if path.suffix == ".tmp":
                path.unlink()
            elif found := _NAME.match(path.name):
                epoch, operator, generation, number = (int(g) for g in found.groups()[:4])
                label = Label(Step(epoch, operator), Attempt(generation, number))
                if _read(path) is not None:
                    self._sources.setdefault(label, {})[unquote(found[5])] = path

    def append(self, label: Label, source: str, meta: dict[str, Any], batch: pa.RecordBatch) -> None:
        """Keep one delta; the same label and source again replaces it. Raises Exhausted when there is no room."""
        (epoch, operator), (generation, number) = label
        name = f"{epoch:020d}-{operator:06d}-{generation:010d}-{number:010d}-{quote(source, safe='')}.delta"
        path, unfinished = self.directory / name, self.directory / f"{name}.tmp"
        about = msgpack.packb(meta)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = sink.getvalue()
        checksum = zlib.crc32(body, zlib.crc32(about, zlib.crc32(len(about).to_bytes(4, "little"))))
        mapped.require_room(self.directory, body.size + len(about))
        try:
            with unfinished.open("wb") as f:
                f.write(_HEADER.pack(_MAGIC, checksum, len(about)))
                f.write(about)
                f.write(body)
        except OSError as e:
            unfinished.unlink(missing_ok=True)
            raise Exhausted(f"{path}: delta of {body.size} bytes could not be written: {e}") from e
        os.replace(unfinished, path)
        self._sources.setdefault(label, {})[source] = path
        self._fresh[path] = (meta, batch)

    def entries(self, label: Label) -> list[tuple[str, dict[str, Any], pa.RecordBatch]]:
        """(source, meta, batch) of every delta of this label, by source; torn ones are left out."""
        out = []
        for source, path in sorted(self._sources.get(label, {}).items()):
            found = self._fresh.get(path) or _read(path)
            if found is not None:
                out.append((source, *found))
        return out

    def labels(self, step: Step | None = None) -> list[Label]:
        """Labels (of this step) of which a delta is here, in order of steps and attempts."""
        return sorted(label for label in self._sources if step is None or label.step == step)

    def forget(self, upto: Step) -> None:
        """Remove the deltas of all steps up to and including `upto`."""
        for label in [label for label in self._sources if label.step <= upto]:
            for path in self._sources.pop(label).values():
                self._fresh.pop(path, None)
                path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], pa.RecordBatch] | None:
    try:
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    if content.size < _HEADER.size:
        return None
    magic, checksum, about_bytes = _HEADER.unpack(content.slice(0, _HEADER.size))
    if magic != _MAGIC or zlib.crc32(content.slice(12)) != checksum:
        return None
    about = msgpack.unpackb(content.slice(_HEADER.size, about_bytes))
    batch = pa.ipc.open_stream(content.slice(_HEADER.size + about_bytes)).read_next_batch()
    return about, batch
