"""`python -m ferry.driver.check REQUEST ANSWER`: build a pipeline as the driver of its job would, and start nothing.

REQUEST is a file with JSON: {"pipeline": [module, file, folder of the copy], "arguments": [arguments, output, events],
"spark": bool, "operators": bool, "sources": [name]}. The file ANSWER gets {"refused": reason} or {"plan": ...}, with
"operators" also their descriptors, and digests of the sources' settings. With "sources" all other sources have to name
their first position. If the program needs Spark itself (`spark.readStream`, `.transform`), a JVM starts; without "spark",
the answer is {}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from ferry.connectors.splits import Splits
from ferry.connectors.users import source_code
from ferry.contract.errors import FerryError, SpecRefused
from ferry.contract.last_words import words_of
from ferry.driver import session
from ferry.driver.program_parts import digests_of, signatures_of
from ferry.spark import compile
from ferry.spark.described import described


class SparkNeeded(BaseException):
    """The program uses Spark, and Spark must not start. A user's `except Exception` does not catch it."""


class LateSession(SparkSession):
    """A session that starts on first use. After that it behaves as the started session."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        object.__setattr__(self, "_start", start)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            start = object.__getattribute__(self, "_start")
            object.__setattr__(self, "__class__", SparkSession)
            self.__dict__.update(vars(start()))
        return object.__getattribute__(self, name)


def answer(text: str, folder: str) -> dict[str, Any]:
    """The plan of a pipeline, or the reason for its refusal; {}: only Spark could tell, and Spark must not start."""
    request = json.loads(text)

    def start() -> SparkSession:
        if not request["spark"]:
            raise SparkNeeded
        return session.tried(folder)

    try:
        program = compile.load(*request["pipeline"])
        try:
            plan = compile.build(LateSession(start), program, *request["arguments"])
        except SpecRefused as refused:
            if not _wants_session(refused):
                raise
            plan = compile.build(start(), program, *request["arguments"])
        sources = digests_of(signatures_of(plan))  # Before any source begins.
        for name, source in plan.sources.items() if "sources" in request else ():
            if name not in request["sources"] and isinstance(source, Splits):
                with source_code(f"start() of source {name!r}", source):
                    source.start()
        if not request.get("operators"):
            return {"plan": described(plan)}
        operators = [one.descriptor.to_wire() for one in plan.operators]
        return {"plan": described(plan), "operators": operators, "sources": sources}
    except SparkNeeded:
        return {}
    except SpecRefused as refused:
        return {} if isinstance(refused.__cause__, SparkNeeded) else {"refused": str(refused)}
    except (FerryError, OSError) as error:
        return {"refused": words_of(error)} if request["spark"] else {}


def _wants_session(refused: BaseException) -> bool:
    """Whether PySpark failed because no session exists: `col(...)` raises, other functions return None.

    A pickling error also comes from PySpark, but a session does not help.
    """
    first = refused.__cause__ or refused
    last = traceback.extract_tb(first.__traceback__)[-1].filename
    of_pyspark = last.startswith(os.path.dirname(pyspark.__file__)) and "cloudpickle" not in last
    of_none = isinstance(first, AttributeError) and "'NoneType'" in str(first)
    return SparkSession.getActiveSession() is None and (of_pyspark or of_none)


def main() -> None:
    """Write the answer and end the process at once, even if the program left threads running."""
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        Path(sys.argv[2]).write_text(json.dumps(answer(Path(sys.argv[1]).read_text("utf-8"), folder)), "utf-8")
        session.kill()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
