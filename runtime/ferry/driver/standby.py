"""A driver that is ready before it is needed: Spark runs, its workers have their kernels, and nobody knows of it yet.

Whoever started it says on its standard input when the driver before has ended; it claims its generation then, as any driver
does, so that one that was told too early takes nothing from one that still works but its next generation. Must never tell
the registry or the journal anything while it waits.
"""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Callable
from typing import TextIO

from ferry import environment
from ferry.contract import variables

log = logging.getLogger("ferry.driver")

WARM_SECONDS, AGAIN_SECONDS = 30.0, 1.0
"""Spark ends Python workers that had nothing to do for a minute; one that is not ready looks again soon."""


def await_turn(warm: Callable[[], None], line: TextIO = sys.stdin) -> bool:
    """Wait for the line. False: whoever would write it is gone. `warm` is called now and again, and may fail.

    It must not take long, for nobody hears the line meanwhile: where Spark is gone, another driver has to be started.
    """
    ready = False
    while True:
        try:
            warm()
            if not ready:
                log.info("standby: ready to take over")
            ready, pause = True, WARM_SECONDS
        except Exception as error:
            log.warning("standby: not ready: %s", str(error)[:300])
            pause = AGAIN_SECONDS
        if select.select([line], [], [], pause)[0]:
            environment.forget(variables.STANDBY)
            return bool(line.readline())
