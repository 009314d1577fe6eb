"""The log of a process: one record a line, and the lines of a traceback below it, further in.

Text of others (a sink's error, a record, a name) can make up no record, and its escapes reach no terminal.
"""

from __future__ import annotations

import io
import logging
import sys
from types import TracebackType

from ferry.contract.one_line import one_line, printable

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class RecordFormatter(logging.Formatter):
    """As `logging.Formatter`, for text that is not trusted."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:
        """See Formatter."""
        return "\n".join(f"  {line}" for line in printable(super().formatException(ei)).split("\n"))


class _Kept(io.TextIOWrapper):
    """Standard output or error: code of the user's that closes it takes no words of this process along."""

    def close(self) -> None:
        """Nothing but flush."""
        self.flush()


def begin(text: str) -> None:
    """Have this process log to its standard error, in this format of `logging`, whatever code of the user's closes."""
    sys.stdout, sys.stderr = (
        _Kept(io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)), "utf-8", "backslashreplace", line_buffering=True)
        for fd in (1, 2)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RecordFormatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
