"""Python values for Arrow, which truncates some of them without an error."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow.types as types
from pyarrow import DataType


def is_cut(value: Any, kind: DataType) -> bool:
    """Whether Arrow would truncate this number: it converts 1.5 to the integer 1."""
    if not types.is_integer(kind) or not isinstance(value, float | Decimal):
        return False
    return not math.isfinite(value) or int(value) != value  # `value % 1` fails from 28 digits on
