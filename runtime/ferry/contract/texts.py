"""Texts that a user writes in a pipeline: names of columns, topics. They are checked where they are written."""

from __future__ import annotations

from typing import Any

from ferry.contract.errors import SpecRefused


def require_name(value: Any, noun: str) -> str:
    """The value itself. Raises SpecRefused for an empty text or any other type.

    Example:
        >>> require_name("", "kafka: topic")
        Traceback (most recent call last):
        ferry.contract.errors.SpecRefused: kafka: topic ''; give its name
    """
    if not isinstance(value, str) or not value:
        raise SpecRefused(f"{noun} {value!r}; give its name")
    return value
