"""Files of lines, compressed or not, in blocks of whole lines. A compressed file is unpacked block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from ferry.contract.errors import Fault, RowsGone

PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""Codecs of Arrow by what a file begins with; its name may say something else."""

SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(....)", re.DOTALL)
"""A frame without data, which zstd and lz4 pass over; pzstd begins with one."""

OTHERS = {
    (0, b"PK\x03\x04"): "a zip archive",
    (0, b"PK\x05\x06"): "a zip archive",
    (0, b"Rar!"): "a rar archive",
    (0, b"7z\xbc\xaf"): "a 7z archive",
    (257, b"ustar"): "a tar archive",
    (0, b"\xfd7zXZ"): "compressed with xz",
    (0, b"]\0\0"): "compressed with lzma",
    (0, b"\x1f\x9d"): "compressed with compress",
    (0, b"x\x01"): "compressed with zlib",
    (0, b"x\x9c"): "compressed with zlib",
    (0, b"x\xda"): "compressed with zlib",
    (0, b"\xff\x06\x00\x00sNaPpY"): "compressed with snappy",
    (0, b"PAR1"): "a Parquet file",
    (0, b"PARE"): "an encrypted Parquet file",
    (0, b"ARROW1"): "an Arrow file",
    (0, b"ORC"): "an ORC file",
    (0, b"Obj\x01"): "an Avro file",
}
"""Formats by (place, what a file has there)."""

HEAD_BYTES = 512
"""So much of a file says what it is."""

BARE = (".snappy", ".lz4", ".deflate", ".lzo", ".br")
"""Endings of names of files that are compressed without saying so in their first bytes, as Hadoop does."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{")

OLD_MAC = re.compile(rb"\r(?!\n)\s*\{")


LINE_BYTES_MAX = 2 << 30
"""Of one line, with the block that it begins in; no record is as long."""


def packing(path: str) -> str | None:
    """How a file is compressed; None: it is not. Raises Fault for what cannot be unpacked, or holds no lines."""
    with open(path, "rb") as file:
        begin = file.read(HEAD_BYTES)
    codec = _codec(begin)
    within = ""
    if codec is not None:
        with closing(opened(path, codec)) as file:
            begin, within = file.read(HEAD_BYTES), f"compressed with {codec}, and within "
    found = [what for (at, magic), what in OTHERS.items() if begin.startswith(magic, at)]
    if codec is None and path.endswith(BARE) and begin.strip()[:1] not in (b"{", b""):
        found.append(f"compressed as its name says, {path.rpartition('.')[2]}")
    if codec is not None and (inner := _codec(begin)) is not None:
        found.append(f"compressed with {inner}")
    if found:
        raise Fault(
            f"{path} cannot be read: it is {within}{found[0]}; lines are read plain, or in gzip, bz2, zstd or lz4 "
            "frames: put such a file in its place, or remove it"
        )
    return codec


def _codec(begin: bytes) -> str | None:
    while skipped := SKIPPED.match(begin):
        begin = begin[skipped.end() + int.from_bytes(skipped[1], "little") :]
    return next((codec for magic, codec in PACKINGS.items() if begin.startswith(magic)), None)


def opened(path: str, packed: str | None) -> Any:
    """The bytes of a file, unpacked."""
    return open(path, "rb") if packed is None else pa.input_stream(for_arrow(path), compression=packed)


def first_line(path: str, packed: str | None) -> bytes:
    """The first line of a file, with its end; empty: the file is."""
    line = b""
    with closing(opened(path, packed)) as file:
        while b"\n" not in line and (more := file.read(1 << 16)):
            line += more
            _require_short(path, len(line))
    return line[: line.find(b"\n") + 1 or None]


def for_arrow(path: str) -> Any:
    """A file as Arrow opens it: by its name, unless that is no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return open(path, "rb")
    return path


def blocks(path: str, packed: str | None, low: int, high: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins, whole lines) of those lines that begin in [low, high); of all, when the file is compressed."""
    if packed is not None:
        yield from _unpacked(path, packed, size)
        return
    with open(path, "rb") as file:
        if low:
            file.seek(low - 1)
            # A line that goes on beyond `high` is not read to its end by everybody whose piece it covers.
            while (part := file.readline(size)) and not part.endswith(b"\n") and file.tell() < high:
                pass
        while (at := file.tell()) < high:
            data = file.read(min(size, high - at))
            if not data:
                raise RowsGone(f"{path} became shorter while it was read; put it back as it was")
            if not data.endswith(b"\n"):
                data += file.readline(LINE_BYTES_MAX)
                _require_short(path, len(data))
            yield at, data


def line_edges(path: str, low: int, high: int, parts: int) -> list[int]:
    """Where to cut the lines that begin in [low, high), so that parts hold some of them each; none for a single line."""
    size, found = max((high - low) // parts, 1), {low}
    with open(path, "rb") as file:
        for at in (low, *range(low + size, high, size)):
            file.seek(at)
            file.readline()
            if (edge := file.tell()) < high:
                found.add(edge)
    return [*sorted(found), high] if len(found) > 1 else []


def _unpacked(path: str, packed: str, size: int) -> Iterator[tuple[int, bytes]]:
    at, parts, held = 0, [], 0
    with closing(opened(path, packed)) as file:
        while data := file.read(size):
            end = data.rfind(b"\n") + 1
            if not end:
                parts.append(data)  # A line that is longer than a block.
                held += len(data)
                _require_short(path, held)
                continue
            whole = b"".join([*parts, data[:end]])
            yield at, whole
            at, parts, held = at + len(whole), [data[end:]], len(data) - end
    if rest := b"".join(parts):
        yield at, rest


def _require_short(path: str, line: int) -> None:
    """A file that unpacks to one line without an end would take all memory."""
    if line > LINE_BYTES_MAX:
        raise Fault(
            f"{path} cannot be read: a line is longer than {LINE_BYTES_MAX:,} bytes; put lines in its place, or "
            "a file without records"
        )


def hint(path: str, data: bytes) -> str:
    """What is wrong with lines that cannot be parsed because of how the whole file was written; empty: nothing is known."""
    with open(path, "rb") as file:
        begin = file.read(2)
    if begin.startswith(UTF_16) or data[:2] in UTF_16:
        return "the file is UTF-16: write it as UTF-8; "
    if OLD_MAC.search(data):
        return "lines end with a carriage return alone: end them with a line feed; "
    return ""
