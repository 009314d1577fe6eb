"""Unit tests have no bounds of time that a slow machine reaches."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
