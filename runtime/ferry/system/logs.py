"""The log of a process: one record a line, and the lines of a traceback below it, further in.

Foreign text (a sink's error, a record, a name) cannot fake a record, and its escapes reach no terminal.
"""

from __future__ import annotations

import io
import logging
import sys
from types import TracebackType

from ferry.contract.one_line import one_line, printable

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class RecordFormatter(logging.Formatter):
    """As `logging.Formatter`, for untrusted text."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:
        return "\n".join(f"  {line}" for line in printable(super().formatException(ei)).split("\n"))


class _Kept(io.TextIOWrapper):
    """Standard output or error that survives a close by the user's code."""

    def close(self) -> None:
        """Only flush."""
        self.flush()


def begin(text: str) -> None:
    """Log to standard error in this format of `logging`, even if the user's code closes the stream."""
    sys.stdout, sys.stderr = (
        _Kept(io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)), "utf-8", "backslashreplace", line_buffering=True)
        for fd in (1, 2)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RecordFormatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
