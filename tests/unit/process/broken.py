"""An aggregator as its author should not have written it, in a file of its own: the lines are told."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ferry


@dataclass
class Product(ferry.Aggregator):
    """Of a column; `broken` says how."""

    broken: str
    state = output = pa.schema([("product", pa.float64())])

    def update(self, rows: pa.RecordBatch, begins: Any) -> Any:
        if self.broken == "update raises":
            1 // 0
        found = np.multiply.reduceat(rows.column("v").to_numpy().astype(float), begins)
        return {"other" if self.broken == "update column" else "product": found}

    def merge(self, states: pa.RecordBatch, begins: Any) -> Any:
        if self.broken == "merge raises":
            1 // 0
        found = np.multiply.reduceat(states.column("product").to_numpy(), begins)
        return {"product": found[: 0 if self.broken == "merge rows" else None]}

    def result(self, states: pa.RecordBatch) -> Any:
        if self.broken == "result raises":
            1 // 0
        if self.broken == "result exits":
            sys.exit(3)
        if self.broken == "result none":
            return None
        if self.broken == "result type":
            return {"product": ["x"] * states.num_rows}
        return states
