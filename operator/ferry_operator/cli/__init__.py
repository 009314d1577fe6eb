"""The `ferry` command and `kubectl streamjob`: arguments in, calls, tables out. Nothing here decides.

The client of Kubernetes is imported when a cluster is meant, and not before.
"""

from __future__ import annotations

import sys
from types import TracebackType

_show = sys.excepthook


def _shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An interrupt while the rest is imported, which takes a second, has no traceback that helps."""
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, trace)


sys.excepthook = _shown
