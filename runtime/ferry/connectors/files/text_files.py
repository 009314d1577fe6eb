"""Files of lines, compressed or not, in blocks of whole lines. A compressed file is unpacked block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from ferry.contract.errors import Fault, RowsGone

PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""Arrow's codecs by the first bytes of a file. The file's name does not matter."""

SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(....)", re.DOTALL)
"""A skippable frame of zstd and lz4, without data. Files of pzstd begin with such a frame."""

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
"""Formats by (offset, magic bytes at that offset)."""

HEAD_BYTES = 512
"""Bytes at the beginning of a file that identify its format."""

BARE = (".snappy", ".lz4", ".deflate", ".lzo", ".br")
"""Name endings of compressed files without magic bytes, as Hadoop writes them."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{")
"""First bytes of a file in UTF-16."""

OLD_MAC = re.compile(rb"\r(?!\n)\s*\{")
"""An object behind a line end without a line feed."""

LINE_BYTES_MAX = 2 << 30
"""Greatest number of bytes of a line and its block. No record is as long."""


def packing(path: str) -> str | None:
    """The codec of a compressed file; None for a plain file. Raises Fault for a format that cannot be read as lines."""
    with open(path, "rb") as file:
        begin = file.read(HEAD_BYTES)
    codec = _codec(begin)
    within = ""
    if codec is not None:
        with closing(opened(path, codec)) as file:
            begin, within = file.read(HEAD_BYTES), f"compressed with {codec}, and within "
    formats = [name for (at, magic), name in OTHERS.items() if begin.startswith(magic, at)]
    if codec is None and path.endswith(BARE) and begin.strip()[:1] not in (b"{", b""):
        formats.append(f"compressed as its name says, {path.rpartition('.')[2]}")
    if codec is not None and (inner := _codec(begin)) is not None:
        formats.append(f"compressed with {inner}")
    if formats:
        raise Fault(
            f"{path} cannot be read: it is {within}{formats[0]}; lines are read plain, or in gzip, bz2, zstd or lz4 "
            "frames: put such a file in its place, or remove it"
        )
    return codec


def _codec(begin: bytes) -> str | None:
    while skipped := SKIPPED.match(begin):
        begin = begin[skipped.end() + int.from_bytes(skipped[1], "little") :]
    return next((codec for magic, codec in PACKINGS.items() if begin.startswith(magic)), None)


def opened(path: str, packed: str | None) -> Any:
    """The unpacked bytes of a file."""
    return open(path, "rb") if packed is None else pa.input_stream(for_arrow(path), compression=packed)


def first_line(path: str, packed: str | None) -> bytes:
    """The first line of a file, with its line end. Empty for an empty file."""
    line = b""
    with closing(opened(path, packed)) as file:
        while b"\n" not in line and (more := file.read(1 << 16)):
            line += more
            _require_short(path, len(line))
    return line[: line.find(b"\n") + 1 or None]


def for_arrow(path: str) -> Any:
    """A file for Arrow: its path, or the open file if the path is not valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return open(path, "rb")
    return path


def blocks(path: str, packed: str | None, low: int, high: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(offset, whole lines) of the lines that begin in [low, high). All lines of a compressed file."""
    if packed is not None:
        yield from _unpacked(path, packed, size)
        return
    with open(path, "rb") as file:
        if low:
            file.seek(low - 1)
            # The read stops at `high`: a line over several pieces is read to its end only by the piece of its beginning.
            while (part := file.readline(size)) and not part.endswith(b"\n") and file.tell() < high:
                pass
        while (at := file.tell()) < high:
            data = file.read(min(size, high - at))
            if not data:
                raise RowsGone(f"{path} became shorter while it was read; put back the original file")
            if not data.endswith(b"\n"):
                data += file.readline(LINE_BYTES_MAX)
                _require_short(path, len(data))
            yield at, data


def line_edges(path: str, low: int, high: int, parts: int) -> list[int]:
    """Offsets that divide the lines that begin in [low, high) into at most `parts` parts. Empty for a single line."""
    size, edges = max((high - low) // parts, 1), {low}
    with open(path, "rb") as file:
        for at in (low, *range(low + size, high, size)):
            file.seek(at)
            file.readline()
            if (edge := file.tell()) < high:
                edges.add(edge)
    return [*sorted(edges), high] if len(edges) > 1 else []


def _unpacked(path: str, packed: str, size: int) -> Iterator[tuple[int, bytes]]:
    at, parts, held = 0, [], 0
    with closing(opened(path, packed)) as file:
        while data := file.read(size):
            end = data.rfind(b"\n") + 1
            if not end:
                parts.append(data)  # A line longer than a block.
                held += len(data)
                _require_short(path, held)
                continue
            whole = b"".join([*parts, data[:end]])
            yield at, whole
            at, parts, held = at + len(whole), [data[end:]], len(data) - end
    if rest := b"".join(parts):
        yield at, rest


def _require_short(path: str, line: int) -> None:
    """Raise Fault for a line that would fill the memory."""
    if line > LINE_BYTES_MAX:
        raise Fault(
            f"{path} cannot be read: a line is longer than {LINE_BYTES_MAX:,} bytes; put lines in its place, or "
            "a file without records"
        )


def hint(path: str, data: bytes) -> str:
    """The reason why the lines of a whole file cannot be parsed (encoding, line ends). Empty if no reason is known."""
    with open(path, "rb") as file:
        begin = file.read(2)
    if begin.startswith(UTF_16) or data[:2] in UTF_16:
        return "the file is UTF-16: write it as UTF-8; "
    if OLD_MAC.search(data):
        return "lines end with a carriage return alone: end them with a line feed; "
    return ""
