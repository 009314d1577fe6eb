"""A standby driver: Spark runs and its workers have loaded their kernels, but the driver is not announced yet.

The supervisor writes a line to its standard input when the previous driver has ended. Then the standby claims its
generation, as any driver does; a line that comes too early only costs the running driver its generation. Must never write
to the registry or the journal while it waits.
"""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Callable
from typing import TextIO

from ferry import environment
from ferry.contract import variables
from ferry.driver.errors import BeginsAgain

log = logging.getLogger("ferry.driver")

WARM_SECONDS, AGAIN_SECONDS = 30.0, 1.0
"""Spark ends Python workers that are idle for a minute. A standby that is not ready tries again soon."""


def await_turn(warm: Callable[[], None], line: TextIO = sys.stdin) -> bool:
    """Wait for the line. False: the supervisor is gone. `warm` is called now and again, and may fail.

    `warm` must be short, because the line is not read meanwhile. If Spark is gone, another driver must be started. Raises
    BeginsAgain from `warm`.
    """
    ready = False
    while True:
        try:
            warm()
            if not ready:
                log.info("standby: ready to take over")
            ready, pause = True, WARM_SECONDS
        except BeginsAgain:
            raise
        except Exception as error:
            log.warning("standby: not ready: %s", str(error)[:300])
            pause = AGAIN_SECONDS
        if select.select([line], [], [], pause)[0]:
            environment.forget(variables.STANDBY)
            return bool(line.readline())
