"""What tests of stores share."""

from __future__ import annotations

import pytest

from ferry.store import hole_punching, slice_files


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual nodes have one region each in tables that are made now: few rows make it large."""
    monkeypatch.setattr(slice_files, "PARTS_MIN", 1)


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests wait until everything is given back."""
    monkeypatch.setattr(hole_punching, "REST_TIMES", 0)
