"""What of a descriptor is the text of the program, and what is the state: classes of a file have its hash in their names."""

from __future__ import annotations

import re

PREFIX = "ferry_pipeline_"
"""With which the name of a module begins that was loaded from a pipeline's file; then its stem, `_`, and 12 digits."""

_MODULE = re.compile(rf"{PREFIX}[^\":\s\\]*_[0-9a-f]{{12}}(?=:)")


def without_text(names: str) -> str:
    """The names of classes without the file that they come from, and its hash: the same class whatever else is there.

    Example:
        >>> without_text('"made_of": "ferry_pipeline_sales_0123456789ab:Rate"')
        '"made_of": ":Rate"'
    """
    return _MODULE.sub("", names)
