"""Separates a descriptor's state from its program text: names of classes hold the hash of their file or program."""

from __future__ import annotations

import re

PREFIX = "ferry_pipeline_"
"""Prefix of the name of a module that was loaded from a pipeline's file; the stem, `_`, and the hash follow."""

PACKAGE = "ferry_program_"
"""Prefix of the package of a program's other modules; the hash of the program follows."""

FERRYS = "ferry."
"""Prefix of the names of Ferry's own classes."""

DIGITS = 12
"""of a hash"""

_MODULE = re.compile(rf"{PREFIX}[^\":\s\\]*_[0-9a-f]{{{DIGITS}}}(?=:)|{PACKAGE}[0-9a-f]{{{DIGITS}}}\.")


def without_text(names: str) -> str:
    """The names of classes without their file and its hash: the same class whatever else the file holds.

    Example:
        >>> without_text('"made_of": "ferry_pipeline_sales_0123456789ab:Rate"')
        '"made_of": ":Rate"'
    """
    return _MODULE.sub("", names)
