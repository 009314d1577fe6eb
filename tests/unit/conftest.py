"""Unit tests have no bounds of time that a slow machine reaches."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # Virtual machines, which run some of them, have fewer libraries.
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")
