"""The `ferry` command and `kubectl streamjob`: they read arguments, make calls and print tables. Nothing here decides.

The client of Kubernetes is imported only for a command on a cluster.
"""

from __future__ import annotations

import sys
from types import TracebackType

_show = sys.excepthook


def _shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Hide the traceback of an interrupt during the imports, which take a second."""
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, trace)


sys.excepthook = _shown
