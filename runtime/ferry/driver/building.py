"""Builds a program that is deployed in this process, once a child process has built it."""

from __future__ import annotations

from dataclasses import replace

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.settings import CONTINUOUS
from ferry.driver.beside import plan_of
from ferry.driver.life import Life
from ferry.driver.program import Program, works_for
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
