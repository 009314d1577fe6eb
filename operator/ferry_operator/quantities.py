"""Durations and sizes of a job file: text that keeps its spelling in a dump and knows its value.

Pure: no I/O, no clock. The types only parse; which values a field allows is said by the field (`models`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")


class Duration(str):
    """A length of time such as '200ms', '1.5s', '2m', '1h'; the text is kept.

    Raises ValueError when the text is no number with one of the units ms, s, m, h. A bare number is refused: its
    unit would be a guess.
    """

    __slots__ = ("seconds",)

    seconds: float
    """The length in seconds."""

    def __new__(cls, text: str) -> Duration:
        """Parse; the only way to build one."""
        match = _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] not in _SECONDS:
            raise ValueError("a duration is a number with a unit (ms, s, m, h), such as '200ms', '1.5s' or '2m'")
        self = super().__new__(cls, text)
        self.seconds = float(match[1]) * _SECONDS[match[2]]
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read from text alone (pydantic's hook)."""
        return _core_schema(cls, core_schema.any_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of the text (pydantic's hook)."""
        return {"type": "string", "pattern": DURATION_PATTERN}


class Quantity(str):
    """A number of bytes such as '512Mi', '1G' or '1048576', spelled as in Kubernetes; the text is kept.

    Raises ValueError when the text is no number with one of the units k, M, G, T, Ki, Mi, Gi, Ti or none.
    """

    __slots__ = ("bytes",)

    bytes: int
    """The size in bytes, rounded down."""

    def __new__(cls, text: str | int) -> Quantity:
        """Parse; the only way to build one."""
        match = _NUMBER_AND_UNIT.fullmatch(str(text))
        if match is None or match[2] not in _BYTES:
            raise ValueError("a size is a number of bytes with k, M, G, T, Ki, Mi, Gi, Ti or no unit, such as '512Mi'")
        self = super().__new__(cls, str(text))
        whole = match[1].isdigit()
        self.bytes = int(match[1]) * _BYTES[match[2]] if whole else int(float(match[1]) * _BYTES[match[2]])
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read from a string or a whole number (pydantic's hook)."""
        return _core_schema(cls, core_schema.no_info_plain_validator_function(_text_or_int))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as Kubernetes writes it for quantities (pydantic's hook)."""
        return {"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN}


def _text_or_int(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("a size is text such as '512Mi', or a whole number of bytes")
    return value


def _core_schema(cls: Callable[[Any], Any], inner: CoreSchema) -> CoreSchema:
    """Validate by `inner`, then by the constructor; dump as plain text."""
    return core_schema.no_info_after_validator_function(
        cls, inner, serialization=core_schema.plain_serializer_function_ser_schema(str.__str__)
    )


def between(low: str, high: str) -> Callable[[Duration], Duration]:
    """A validator: the duration lies in [low, high]; raises ValueError with both bounds."""
    least, most = Duration(low).seconds, Duration(high).seconds

    def check(value: Duration) -> Duration:
        if not least <= value.seconds <= most:
            raise ValueError(f"must be between {low!r} and {high!r}")
        return value

    return check


def at_least(low: str) -> Callable[[Quantity], Quantity]:
    """A validator: the quantity is at least `low`; raises ValueError with the bound."""
    least = Quantity(low).bytes

    def check(value: Quantity) -> Quantity:
        if value.bytes < least:
            raise ValueError(f"must be at least {low!r}")
        return value

    return check
