"""SMQ (on-the-fly reconfiguration): consecutive numbers with their event times.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ferry_workloads.arrivals import Arrivals, Ints, Values
from ferry_workloads.ranges import ArrivalSplits

SCHEMAS = {"smq": pa.schema([("seq", pa.int64()), ("ts", pa.int64())])}


@dataclass(frozen=True, kw_only=True)
class SmqGenerator(Arrivals):
    """Stream ``smq``, always in order and without random values. `seed` is accepted and has no effect."""

    title = "SMQ"
    schemas = SCHEMAS

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        assert name == "ts", name
        return self.times(n)


class SmqSplits(ArrivalSplits):
    """The numbers, generated inside the ingest tasks: ``SmqSplits(SmqGenerator(rate=1e6))``."""

    def __init__(self, generator: SmqGenerator, stream: str = "smq") -> None:
        super().__init__(generator, stream)
