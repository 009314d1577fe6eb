"""`python -m ferry.driver.check ASKED ANSWER`: build a pipeline as the driver of its job would, and begin nothing.

ASKED is JSON, [module, file, arguments, output, events]; into the file ANSWER goes {"refused": why} or {"plan": ...}. A JVM
is started when the program needs Spark itself (`spark.readStream`, `.transform`), and not before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from ferry.contract.errors import FerryError, SpecRefused
from ferry.contract.last_words import words_of
from ferry.driver import session
from ferry.spark import compile
from ferry.spark.described import described


class LateSession(SparkSession):
    """A session that starts when it is first used. From then on it is the session that has started."""

    def __init__(self, folder: str) -> None:
        object.__setattr__(self, "_folder", folder)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            folder = object.__getattribute__(self, "_folder")
            object.__setattr__(self, "__class__", SparkSession)
            self.__dict__.update(vars(session.tried(folder)))
        return object.__getattribute__(self, name)


def answer(asked: str, folder: str) -> dict[str, Any]:
    """The plan of a pipeline, or why it is refused."""
    module, file, *given = json.loads(asked)
    try:
        program = compile.load(module, file)
        try:
            plan = compile.build(LateSession(folder), program, *given)
        except SpecRefused as refused:
            if not _wants_session(refused):
                raise
            plan = compile.build(session.tried(folder), program, *given)
        return {"plan": described(plan)}
    except SpecRefused as refused:
        return {"refused": str(refused)}
    except (FerryError, OSError) as error:
        return {"refused": words_of(error)}


def _wants_session(refused: BaseException) -> bool:
    """PySpark itself has failed, as `col(...)` of pyspark.sql.functions does where no session has started.

    What cannot be pickled fails in it, too, and needs none.
    """
    first = refused.__cause__ or refused
    last = traceback.extract_tb(first.__traceback__)[-1].filename
    in_spark = last.startswith(os.path.dirname(pyspark.__file__)) and "cloudpickle" not in last
    return SparkSession.getActiveSession() is None and in_spark


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
