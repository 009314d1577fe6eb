"""Durations, sizes and CPUs of a job file: text that keeps its spelling in a dump and has a value.

Pure: no I/O, no clock. The types only parse; each field of `models` states its bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
CPU_PATTERN = r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)$"

TEXT_MAX = 24
"""Characters of a duration, a size or a share of CPUs: longer texts are typing errors."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_CPUS = re.compile(CPU_PATTERN.strip("^$"))


class Duration(str):
    """A length of time such as '200ms', '1.5s', '2m', '1h'; the text is kept.

    Raises ValueError unless the text is a number with one of the units ms, s, m, h. A number without a unit is
    refused: the unit would be a guess.
    """

    __slots__ = ("seconds",)

    seconds: float
    """The length in seconds."""

    def __new__(cls, text: str) -> Duration:
        """Parse a text; the only constructor."""
        match = _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) and len(text) <= TEXT_MAX else None
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
        return {"type": "string", "pattern": DURATION_PATTERN, "maxLength": TEXT_MAX}


class Quantity(str):
    """A number of bytes such as '512Mi', '1G' or '1048576', spelled as in Kubernetes; the text is kept.

    Raises ValueError unless the text is a number with one of the units k, M, G, T, Ki, Mi, Gi, Ti or without a unit.
    """

    __slots__ = ("bytes",)

    bytes: int
    """The size in bytes, rounded down."""

    def __new__(cls, text: str | int) -> Quantity:
        """Parse a text; the only constructor."""
        match = _NUMBER_AND_UNIT.fullmatch(str(text)) if len(str(text)) <= TEXT_MAX else None
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
        return {"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": TEXT_MAX}


class Cpus(str):
    """A share of CPUs such as '500m', '0.5' or '2', spelled as in Kubernetes; the text is kept.

    Raises ValueError unless the text is a number of thousandths ('m') or of CPUs with at most three decimals.
    """

    __slots__ = ("millis",)

    millis: int
    """Thousandths of a CPU."""

    def __new__(cls, text: str | int) -> Cpus:
        """Parse a text; the only constructor."""
        if len(str(text)) > TEXT_MAX or not _CPUS.fullmatch(str(text)):
            raise ValueError("CPUs are a number, or thousandths with m, such as '500m', '1.5' or 2")
        self = super().__new__(cls, str(text))
        self.millis = int(self[:-1]) if self.endswith("m") else round(float(self) * 1000)
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read from a string or a whole number (pydantic's hook)."""
        return _core_schema(cls, core_schema.no_info_plain_validator_function(_cpus_text))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as Kubernetes writes it for quantities (pydantic's hook)."""
        return {"x-kubernetes-int-or-string": True, "pattern": CPU_PATTERN, "maxLength": TEXT_MAX}


def _text_or_int(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("a size is text such as '512Mi', or a whole number of bytes")
    return value


def _cpus_text(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("CPUs are text such as '500m', or a whole number")
    return value


def _core_schema(cls: Callable[[Any], Any], inner: CoreSchema) -> CoreSchema:
    """Validate by `inner`, then by the constructor; dump as plain text."""
    return core_schema.no_info_after_validator_function(
        cls, inner, serialization=core_schema.plain_serializer_function_ser_schema(str.__str__)
    )


Text = Duration | Quantity | Cpus


@dataclass(frozen=True)
class Bounds:
    """A validator: the value lies in [low, high]; without `high` there is no upper bound. The CRD's rules read it."""

    kind: type[Text]
    low: str
    high: str | None = None
    or_zero: bool = False
    """zero is allowed as well"""

    def __call__(self, value: Any) -> Any:
        """The value; raises ValueError with the bounds."""
        least, most = self.kind(self.low), self.kind(self.high) if self.high is not None else None
        if self.or_zero and amount(value) == 0:
            return value
        if amount(value) < amount(least) or (most is not None and amount(value) > amount(most)):
            zero = "0 or " if self.or_zero else ""
            bounds = f"at least {self.low!r}" if most is None else f"between {self.low!r} and {self.high!r}"
            raise ValueError(f"must be {zero}{bounds}")
        return value


def amount(value: Text) -> float:
    """The value of a text in seconds, bytes or thousandths of a CPU: equal for two spellings of the same value."""
    return (
        value.seconds if isinstance(value, Duration) else value.bytes if isinstance(value, Quantity) else value.millis
    )


def between(low: str, high: str, or_zero: bool = False) -> AfterValidator:
    """The duration lies in [low, high], or is zero if `or_zero` allows zero."""
    return AfterValidator(Bounds(Duration, low, high, or_zero))


def at_least(low: str, or_zero: bool = False) -> AfterValidator:
    """The size is at least `low`, or zero if `or_zero` allows zero."""
    return AfterValidator(Bounds(Quantity, low, or_zero=or_zero))


def cpus_at_least(low: str) -> AfterValidator:
    """The share of CPUs is at least `low`."""
    return AfterValidator(Bounds(Cpus, low))
