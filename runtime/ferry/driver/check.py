"""`python -m ferry.driver.check ASKED ANSWER`: build a pipeline as the driver of its job would, and begin nothing.

ASKED is JSON: {"pipeline": [module, file, folder of the copy], "arguments": [arguments, output, events], "spark": bool}.
Into the file ANSWER goes {"refused": why} or {"plan": ...}. Where the program needs Spark itself (`spark.readStream`,
`.transform`), a JVM is started, or, without "spark", the answer is {}.
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

from ferry.contract.errors import FerryError, SpecRefused
from ferry.contract.last_words import words_of
from ferry.driver import session
from ferry.spark import compile
from ferry.spark.described import described


class SparkNeeded(BaseException):
    """The program uses Spark, which is not to be started. No `except Exception` of a user's takes it for an error."""


class LateSession(SparkSession):
    """A session that starts when it is first used. From then on it is the session that has started."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        object.__setattr__(self, "_start", start)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            start = object.__getattribute__(self, "_start")
            object.__setattr__(self, "__class__", SparkSession)
            self.__dict__.update(vars(start()))
        return object.__getattribute__(self, name)


def answer(asked: str, folder: str) -> dict[str, Any]:
    """The plan of a pipeline, or why it is refused; {}: it takes Spark to tell, which is not to be started."""
    given = json.loads(asked)

    def start() -> SparkSession:
        if not given["spark"]:
            raise SparkNeeded
        return session.tried(folder)

    try:
        program = compile.load(*given["pipeline"])
        try:
            plan = compile.build(LateSession(start), program, *given["arguments"])
        except SpecRefused as refused:
            if not _wants_session(refused):
                raise
            plan = compile.build(start(), program, *given["arguments"])
        return {"plan": described(plan)}
    except SparkNeeded:
        return {}
    except SpecRefused as refused:
        return {} if isinstance(refused.__cause__, SparkNeeded) else {"refused": str(refused)}
    except (FerryError, OSError) as error:
        return {"refused": words_of(error)} if given["spark"] else {}


def _wants_session(refused: BaseException) -> bool:
    """Without a session PySpark itself has failed, as `col(...)` of its functions does; or what it gave was None.

    What cannot be pickled fails in PySpark, too, and needs no session.
    """
    first = refused.__cause__ or refused
    last = traceback.extract_tb(first.__traceback__)[-1].filename
    of_pyspark = last.startswith(os.path.dirname(pyspark.__file__)) and "cloudpickle" not in last
    of_none = isinstance(first, AttributeError) and "'NoneType'" in str(first)
    return SparkSession.getActiveSession() is None and (of_pyspark or of_none)


def main() -> None:
    """Write the answer; the process ends at once then, whatever the program has left running."""
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        found = answer(sys.argv[1], folder)
        Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")
        session.kill()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
