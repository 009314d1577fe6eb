"""Values of Python on their way to Arrow, which cuts some of them without a word."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow.types as types
from pyarrow import DataType


def is_cut(value: Any, kind: DataType) -> bool:
    """Whether Arrow would leave out a part of this number: 1.5 as an integer is 1 to it."""
    if not types.is_integer(kind) or not isinstance(value, float | Decimal):
        return False
    return not math.isfinite(value) or int(value) != value  # `value % 1` is an error from 28 digits on
