"""Answers of the commands for a run on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.cli import client


@pytest.mark.parametrize(
    ("workers", "room"),
    [(3, ""), (2, ""), (None, ""), (1, "state.replicas is 1, and with workers=1 there is room for 0")],
)
def test_too_few_workers_for_copies_are_told(workers: int | None, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(entry: Any, method: str, path: str, document: Any = None) -> Any:
        asked.append((method, path, document))
        return {"spec": {"replicas": 1}}

    monkeypatch.setattr(client, "ask", ask)
    run: Any = None
    said = client.Local(run, run).scale(workers, None)
    assert asked[0] == ("PATCH", "/spec", {} if workers is None else {"workers": workers})
    assert room in said and (bool(room) is ("room" in said)), said
