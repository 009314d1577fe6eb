"""SMQ (on-the-fly reconfiguration): numbers that go up one by one, each with the time when it was made.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the columns that are asked for are made. Must never make a record by Python code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ferry_workloads.arrivals import Arrivals, Ints, Values
from ferry_workloads.ranges import ArrivalSplits

SCHEMAS = {"smq": pa.schema([("seq", pa.int64()), ("ts", pa.int64())])}


@dataclass(frozen=True, kw_only=True)
class SmqGenerator(Arrivals):
    """Stream ``smq``, always in order; nothing in it is drawn, so `seed` is accepted and has no effect."""

    title = "SMQ"
    schemas = SCHEMAS

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        assert name == "ts", name
        return self.times(n)


class SmqSplits(ArrivalSplits):
    """The numbers, made inside the ingest tasks: ``SmqSplits(SmqGenerator(rate=1e6))``."""

    def __init__(self, generator: SmqGenerator, stream: str = "smq") -> None:
        super().__init__(generator, stream)
