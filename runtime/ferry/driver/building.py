"""Builds a program that is deployed in this process, once a child process has built it.

What a program asks for its sources, such as a registry of schemas, may have answered the child and not answer here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.settings import CONTINUOUS
from ferry.contract.user_code import here
from ferry.driver.beside import plan_of
from ferry.driver.life import Life
from ferry.driver.program import Program, works_for
from ferry.driver.program_check import CHECK_SECONDS
from ferry.driver.program_parts import same_parts
from ferry.spark.feeds import why_planned


def journaled(life: Life, number: int) -> ProgramRecord:
    """A program that another driver deployed, after this driver had read the journal. Raises Refusal."""
    catalogue, _ = life.announcer.journaled()
    if catalogue is None or (record := catalogue.program(number)) is None:
        raise Refusal(f"the journal has no text of program {number}")
    return record


def built(life: Life, record: ProgramRecord, before: Program) -> Program:
    """A program, with the connections of the program `before` it that stay the same. Raises SpecRefused."""
    text = life.texts.build(record)
    text = replace(text, plan=same_parts(before.plan, before.signatures, text.plan, text.signatures))
    life.texts.keep(text)
    catalogue = life.announcer.catalogue
    plan, signatures = plan_of(life.settings, record, text, lambda number: life.texts.of(number, catalogue))
    works = works_for(life.settings, life.env, plan)
    if before.mode == CONTINUOUS and (planned := why_planned(plan, works)):
        raise SpecRefused(planned)
    return replace(before, plan=plan, works=works, number=record.number, signatures=signatures)


def in_time(build: Callable[[], Program]) -> Program:
    """The program that `build` returns within the time that the child process had; later it is not used any more.

    Raises what `build` raises, and SpecRefused when the time is over.
    """
    outcome: Future[Program] = Future()

    def run() -> None:
        try:
            outcome.set_result(build())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="building of a program", daemon=True)
    thread.start()
    thread.join(CHECK_SECONDS)
    frame = sys._current_frames().get(thread.ident or 0)
    if outcome.done() or frame is None:
        return outcome.result()
    at = f" ({place})" if (place := here(frame)) else ""
    raise SpecRefused(
        f"sources() and pipeline() have returned in the process that checks a program, but not in the driver within "
        f"{CHECK_SECONDS:g} s{at}"
    )
